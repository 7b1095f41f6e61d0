# make demo   the first essay on real text, in a virtual environment of its own
# make test   formatting, types and tests
# TORCH       what pip installs as torch; the default is the CPU build pinned in constraints.txt. Elsewhere, for example:
#               make demo TORCH="torch==2.13.0 --index-url URL-OF-THE-CPU-OR-CUDA-WHEELS"

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint clean

demo: $(VENV)/.demo
	$(VENV)/bin/thrice demo

test: $(VENV)/.test lint
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile

lint: $(VENV)/.test
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt $(TORCH)
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) --constraint constraints.txt --editable ".[demo]"
	touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml
	$(PIP) --constraint constraints.txt --editable ".[bench,demo,test]"
	touch $@

clean:
	rm -rf $(VENV) demo demo-reviews.csv
