"""A study of real data, 3 arms x 2 tasks x 3 seeds, killed at five random moments: the rows of one left alone."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_compare import _written, comparable

from thrice.compare.results import read_rows
from thrice.compare.summary import summarise

STUDY = """
threads = 1

[arms]
shared = "zoo:albert-nano-zh+all"
unshared = "zoo:albert-nano-zh+none"
control = "tfidf"

[tasks.sentiment]
data = "sentiment.csv"
max_length = 32

[tasks.news]
data = "news.jsonl"
text_column = "sentence"
label_column = "label_desc"
max_length = 24

[training]
epochs = 2
batch_size = 8
learning_rate = 3e-4
save_every_steps = 3
"""

RUN = """
import sys
from pathlib import Path
from thrice.compare import runner
from thrice.compare.study_file import read_study_file, study_of
runner.measure_cost = lambda *_: None
if __name__ == "__main__":
    path = Path(sys.argv[1])
    engine = runner.Engine(jobs=2)
    runner.run_study(study_of(read_study_file(path), name=str(path)), Path(sys.argv[2]), engine=engine)
"""
KILLS = 5


@pytest.fixture
def room(shared_data: Path, tmp_path: Path) -> Path:
    """A folder with a study of real reviews and real headlines, 60 of each."""
    with gzip.open(shared_data / "sentiment_bojone" / "sentiment.train.data.gz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    rows = [row for label in "01" for row in [line for line in lines if line[1:] == [label]][:30]]
    text = "text,label\n" + "".join(f"{json.dumps(text, ensure_ascii=False)},{label}\n" for text, label in rows)
    (tmp_path / "sentiment.csv").write_text(text.replace('\\"', '""'), encoding="utf-8")
    with gzip.open(shared_data / "fewclue" / "tnews.train_few_all.json.gz", "rt", encoding="utf-8") as file:
        news = [json.loads(line) for line in file]
    kinds = sorted({row["label_desc"] for row in news})[:3]
    chosen = [row for kind in kinds for row in [row for row in news if row["label_desc"] == kind][:20]]
    (tmp_path / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen), encoding="utf-8")
    (tmp_path / "study.toml").write_text(STUDY, encoding="utf-8")
    (tmp_path / "run.py").write_text(RUN, encoding="utf-8")
    return tmp_path


def start(room: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(room / "run.py"), str(room / "study.toml"), str(out)]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)


def test_a_study_killed_at_five_random_moments_ends_with_the_rows_of_a_quiet_one(room: Path) -> None:
    quiet = start(room, room / "quiet")
    _, errors = quiet.communicate()
    assert quiet.returncode == 0, errors
    all_of_it = _written(room / "quiet") + sum(row.get("steps", 0) for row in read_rows(room / "quiet"))

    draw = random.Random(11)
    for _ in range(KILLS):
        process = start(room, room / "killed")
        wanted = _written(room / "killed") + draw.randint(1, all_of_it // 9)
        while process.poll() is None and _written(room / "killed") < wanted:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors
    assert len(read_rows(room / "killed")) < 18
    last = start(room, room / "killed")
    _, errors = last.communicate()
    assert last.returncode == 0, errors

    rows = read_rows(room / "killed")
    assert len(rows) == 18
    assert comparable(rows) == comparable(read_rows(room / "quiet"))
    ours, theirs = (
        json.loads((room / name / "items.json").read_text(encoding="utf-8")) for name in ("killed", "quiet")
    )
    assert ours == theirs
    parts = [summarise(room / name)["tasks"] for name in ("killed", "quiet")]
    assert parts[0] == parts[1]
    assert {part["task"] for part in parts[0]} == {"sentiment", "news"}
