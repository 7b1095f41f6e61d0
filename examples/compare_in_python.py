"""A small controlled comparison from Python: one ALBERT shared and un-shared, two seeds, and the table it gives.

    python examples/compare_in_python.py

Takes under a minute on a CPU. 240 reviews for one epoch are too few to tell the arms apart, and the verdict says so.
The reviews are those of the demo: pip install "thrice[demo]". Everything is written to a temporary folder; give
`run_study` a folder of your own and it goes on after a kill and never computes a finished cell again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import thrice
from thrice.compare.grid import Study, StudyTask, arms_of
from thrice.compare.runner import run_study
from thrice.demo import write_reviews
from thrice.finetune import DataSource
from thrice.training import TrainingConfig


def main() -> None:
    """Run the study, print its table and its verdict, write its page."""
    with tempfile.TemporaryDirectory() as place:
        reviews = write_reviews(Path(place) / "reviews.csv", count=240)
        task = StudyTask(
            name="reviews", metric="accuracy", options={"max_length": 32}, source=DataSource(data=str(reviews))
        )
        study = Study(
            arms=arms_of("zoo:albert-nano-zh+all", "zoo:albert-nano-zh+none", "tfidf"),
            tasks=(task,),
            seeds=(0, 1),
            training=TrainingConfig(epochs=1, learning_rate=3e-4, max_grad_norm=0.0),
        )
        folder = Path(place) / "study"
        run_study(study, folder, on_cell=lambda row: print(row["arm"], row["seed"], row["best_dev"]))
        result = thrice.read_study(folder)
        print(result.table()[["arm", "best_dev", "test", "difference", "low", "high"]].to_string(index=False))
        print(result.verdict())
        page = result.report()
        print(f"the page has {page.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
