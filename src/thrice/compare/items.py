"""The answers of every finished cell to the test items, and what they say: intervals over items, and disagreements.

One parquet file per cell holds a row per test item: the answer as JSON text, and what the item adds to the metrics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thrice.compare.statistics import item_interval
from thrice.errors import DataError
from thrice.files import written_beside
from thrice.tasks.base import Prediction, Task

RESAMPLES = 2000
MOST_DISAGREEMENTS = 30
MOST_CHARACTERS = 300

RIGHT = "accuracy"
"""The metric that says of one item whether it is answered right, where a task has it; its own metric otherwise."""

WAY_OUT = "delete it and its cell's file in cells/ and start the study again, it computes only what is missing"


@dataclass(frozen=True, kw_only=True)
class Items:
    """What one cell answered to the test items."""

    path: Path
    """Where it was read, for messages."""
    answers: list[Any]
    """(n) the "prediction" of each item."""
    counts: np.ndarray | None
    """(n, k) float64, see `Task.counts`; None where the task does not count."""


def write_items(path: Path, task: Task, predictions: Sequence[Prediction], examples: Sequence[Any]) -> Path:
    """Write a cell's answers to the test items, whole or not at all; give the path.

    Columns: prediction (JSON text) and, where the task counts, c0, c1, ... (float64). Neither texts nor gold answers.
    """
    import pyarrow
    import pyarrow.parquet

    answers = [json.dumps(prediction["prediction"], ensure_ascii=False) for prediction in predictions]
    columns: dict[str, Any] = {"prediction": pyarrow.array(answers, pyarrow.string())}
    counts = task.counts(predictions, examples)
    if counts is not None:
        columns |= {f"c{k}": np.ascontiguousarray(column) for k, column in enumerate(counts.T)}
    with written_beside(path) as beside:
        pyarrow.parquet.write_table(pyarrow.table(columns), beside, compression="zstd")
    return path


def read_items(path: Path) -> Items:
    """Give what `write_items` wrote; raises DataError where the file is missing, damaged or of other columns."""
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise DataError(f"{path} is missing: the answers of a finished cell - {WAY_OUT}")
    try:
        table = pyarrow.parquet.ParquetFile(path).read()
        names = table.schema.names
        if names != ["prediction", *(f"c{k}" for k in range(len(names) - 1))]:
            raise ValueError(f"columns prediction, c0, c1, ... wanted, got {', '.join(names[:8])}")
        answers = [json.loads(text) for text in table.column("prediction").to_pylist()]
        counts = None
        if len(names) > 1:
            counts = np.stack([table.column(name).to_numpy() for name in names[1:]], axis=1).astype(np.float64)
            if not np.isfinite(counts).all():
                raise ValueError("a count is no finite number")
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path} holds no answers to test items: {error} - {WAY_OUT}") from error
    return Items(path=path, answers=answers, counts=counts)


def compare_items(
    study_arms: Sequence[str],
    tables: Mapping[str, Mapping[int, Items]],
    task: Task,
    examples: Sequence[Any],
    metric: str,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """Give what the answers to one task's test items say, as JSON values: the task's entry of items.json.

    study_arms: in the study's order, the first is the baseline. tables: arm -> seed -> answers of the runs that count;
    arms and seeds may be missing. seed: draws the resamples, those of an arm whatever other arms there are.
    "items" and "resamples" are numbers; "arms": arm -> {mean, low, high} of its difference to the baseline over test
    items (`item_interval`), over the seeds that both have, which makes `mean` that of the paired difference;
    "disagreements": at most 30 items on which an arm's share of right runs differs from the baseline's, the largest
    difference first, with text, gold answer, every answer and the share of right runs.
    Raises DataError that lists the files that are not of these test items.
    """
    _check(tables, task, len(examples))
    result: dict[str, Any] = {"items": len(examples), "resamples": resamples, "arms": {}, "disagreements": []}
    counted = {arm: dict(sorted(tables.get(arm, {}).items())) for arm in study_arms if tables.get(arm)}
    first = study_arms[0] if study_arms else None
    if first not in counted or not examples or any(run.counts is None for run in counted[first].values()):
        return result
    for arm, runs in counted.items():
        shared = [s for s in runs if s in counted[first]]
        if arm == first or not shared:
            continue
        own, base = (np.stack([counted[name][s].counts for s in shared]) for name in (arm, first))  # type: ignore[misc]
        found = item_interval(
            own,
            base,
            lambda sums: task.from_counts(metric, sums),
            rng=np.random.default_rng(seed),
            resamples=resamples,
        )
        result["arms"][arm] = {"mean": found.mean, "low": found.low, "high": found.high}
    result["disagreements"] = _disagreements(counted, str(first), task, examples, metric)
    return result


def _disagreements(
    counted: Mapping[str, Mapping[int, Items]], first: str, task: Task, examples: Sequence[Any], metric: str
) -> list[dict[str, Any]]:
    """Give the items on which arms differ most from the first in how many of their runs are right, ties by index."""
    decides = RIGHT if RIGHT in task.metrics else metric
    shares = {
        arm: np.mean([task.from_counts(decides, run.counts) for run in runs.values()], axis=0)  # type: ignore[arg-type]
        for arm, runs in counted.items()
    }
    apart = np.max([np.abs(share - shares[first]) for share in shares.values()], axis=0)
    worst = np.lexsort((np.arange(len(apart)), -apart.round(9)))[:MOST_DISAGREEMENTS]
    found = []
    for index in worst[apart[worst] > 0].tolist():
        shown = task.shown(examples[index])
        answers = {arm: [_shown(run.answers[index]) for run in runs.values()] for arm, runs in counted.items()}
        found.append(
            {
                "index": index,
                "text": cut(shown["text"]),
                "gold": cut(shown["gold"]),
                "answers": answers,
                "right": {arm: float(share[index]) for arm, share in shares.items()},
            }
        )
    return found


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Give a text of at most so many characters, its end replaced by an ellipsis where it is longer."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _shown(answer: Any) -> str:
    """Give an answer as text: as it is, a list with commas, anything else as JSON."""
    if isinstance(answer, list) and all(isinstance(part, str) for part in answer):
        return cut(", ".join(answer))
    return cut(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))


def _check(tables: Mapping[str, Mapping[int, Items]], task: Task, n: int) -> None:
    """Raise DataError where a table has another number of items or of counts than the rest."""
    runs = [run for by_seed in tables.values() for run in by_seed.values()]
    widths = [None if run.counts is None else run.counts.shape[1] for run in runs]
    common = max(widths, key=widths.count, default=None)
    problems = []
    for run, width in zip(runs, widths, strict=True):
        if len(run.answers) != n:
            problems.append(f"{run.path} holds {len(run.answers)} answers, the test data {n} items")
        elif width != common:
            problems.append(f"{run.path} holds {width or 'no'} counts per item, the others {common or 'none'}")
    if problems:
        raise DataError(f"{task.name}: {'; '.join(problems[:8])} - {WAY_OUT}")
