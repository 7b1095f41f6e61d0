"""Imports run downward only, and light commands do not wait for heavy libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "thrice"

# Room -> the rooms it may import; a file of the package's top folder is a room of its own.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "files": set(),
    "locks": {"errors"},
    "ray_cluster": {"errors"},
    "registry": {"errors"},
    "schema": set(),
    "metrics": set(),
    "trackers": {"errors"},
    "model": {"errors"},
    "sharing": {"model", "errors"},
    "checkpoints": {"model", "sharing", "errors", "files", "registry", "zoo", "schema"},
    "data": {"errors", "files", "locks", "ray_cluster", "registry", "schema"},
    "objectives": {"model", "data", "errors", "registry"},
    "pretraining": {
        "objectives",
        "data",
        "model",
        "sharing",
        "checkpoints",
        "training",
        "run_folder",
        "registry",
        "files",
        "launcher",
        "schema",
        "trackers",
        "errors",
    },
    "tasks": {"model", "data", "errors"},
    "launcher": {"errors"},
    "training": {"model.packing", "errors", "files", "launcher", "schema"},
    "source": {"data", "tasks", "errors", "registry"},
    "finetune": {"model", "checkpoints", "data", "tasks", "training", "errors", "run_folder", "source"},
    "run_folder": {"checkpoints", "training", "errors", "files", "locks"},
    "predict": {"checkpoints", "data", "tasks", "errors", "files", "registry", "schema"},
    "compare": {
        "model",
        "checkpoints",
        "data",
        "tasks",
        "training",
        "finetune",
        "source",
        "errors",
        "files",
        "launcher",
        "locks",
        "metrics",
        "ray_cluster",
        "registry",
        "schema",
        "trackers",
    },
    "report": {"errors", "files", "metrics"},
    "study_result": {"compare", "report"},
    "zoo": set(),
    "recipes": set(),
    "hub": {"compare", "report", "errors", "files"},
    "demo": {"compare", "source", "training", "errors", "files"},
    "terminal": {"compare", "checkpoints", "data", "model", "pretraining", "sharing", "registry", "errors", "files"},
}


def imports() -> list[tuple[str, str, Path]]:
    """Give (room, imported module without "thrice.", file) for every import inside the package, deferred ones too."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "thrice":
                names = [node.module] if node.module != "thrice" else [f"thrice.{a.name}" for a in node.names]
                found += [(room, name.removeprefix("thrice."), path) for name in names]
            if isinstance(node, ast.Import):
                own = [a.name for a in node.names if a.name.split(".")[0] == "thrice"]
                found += [(room, name.removeprefix("thrice").removeprefix("."), path) for name in own]
    return found


def test_imports_run_downward_only() -> None:
    wrong = []
    for room, target, path in imports():
        if room in ("__init__", "__main__", "cli") or target.split(".")[0] == room:
            continue
        allowed = ALLOWED[room]
        if target.split(".")[0] not in allowed and target not in allowed:
            wrong.append(f"{path.relative_to(SOURCE)} imports {target}")
    assert not wrong


def test_the_rule_sees_the_imports_it_is_about() -> None:
    seen = {(room, target) for room, target, _ in imports()}
    assert ("finetune", "training") in seen
    assert ("checkpoints", "sharing.patterns") in seen
    assert len(seen) > 50


def test_tasks_never_import_each_other() -> None:
    tasks = {p.stem for p in (SOURCE / "tasks").glob("*.py")} - {"__init__", "base"}
    for room, target, path in imports():
        if room == "tasks" and path.stem in tasks:
            assert target.removeprefix("tasks.") not in tasks - {path.stem}


@pytest.mark.parametrize("statement", ["import thrice", "import thrice.cli", "import thrice.report.page"])
def test_what_need_not_wait_for_torch_does_not(statement: str) -> None:
    heavy = ("torch", "transformers", "datasets", "sklearn", "scipy", "accelerate")
    code = f"{statement}, sys; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_sorted_and_all_there() -> None:
    import thrice

    assert thrice.__all__ == sorted(thrice.__all__)
    assert set(thrice.__all__) == set(thrice._HOMES)
    for name in thrice.__all__:
        assert getattr(thrice, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = thrice.lod
