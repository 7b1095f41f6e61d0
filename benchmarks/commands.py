"""Whole commands, as people run them: fine-tuning from file to folder, and how long a command takes to begin.

    python benchmarks/commands.py --rows 2000 --epochs 3
    python benchmarks/commands.py --no-finetune

`thrice finetune zoo:albert-nano-zh` stands against benchmarks/trainer_side.py, which is the same with transformers'
Trainer: same rows, epochs, batch size, rate, schedule, clipping, evaluation and saving each epoch, best epoch kept.
Each run is a process of its own, the sides take turns, and the clock runs from its start to its end: imports,
tokenising, training, evaluation, saving. Peak memory is the largest sum of the resident sets of the process and its
children. The head and the order of the rows are drawn from the seed on both sides, but differently: both accuracies
are printed, to be compared with their noise. thrice works with an empty cache of encoded texts.

Starting: the median of `thrice --help` and of importing what heavy commands need, each in a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from texts import SENTIMENT
from timing import arguments_for, median, ratio, show, times

from thrice.checkpoints import resolve
from thrice.data.readers import read_table

BENCHMARKS = Path(__file__).parent
STARTS = {
    "thrice --help": ["-m", "thrice", "--help"],
    "python -c pass": ["-c", "pass"],
    "import thrice": ["-c", "import thrice"],
    "import torch": ["-c", "import torch"],
    "import transformers.AutoModel": ["-c", "from transformers import AutoModelForSequenceClassification"],
    "import accelerate": ["-c", "import accelerate"],
    "import thrice.finetune": ["-c", "import thrice.finetune"],
}
EVERY = 0.02
"""Seconds between two looks at a process's memory."""


def main(words: list[str] | None = None) -> None:
    """Print both parts, or JSON."""
    parser = arguments_for(__doc__)
    parser.add_argument(
        "--rows", type=int, default=2000, help="training rows (default 2000); a tenth each dev and test"
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--starts", type=int, default=10, help="new processes per measured start (default 10)")
    parser.add_argument("--no-finetune", action="store_true", help="measure the starts alone")
    parser.set_defaults(rounds=3)
    arguments = parser.parse_args(words)
    result: dict[str, Any] = {"threads": arguments.threads, "starts": starts(arguments.starts)}
    if not arguments.no_finetune:
        with tempfile.TemporaryDirectory() as place:
            result["finetune"] = finetune(Path(place), arguments)
    show(result, as_json=arguments.json, text=table)


def starts(count: int) -> dict[str, Any]:
    """Give what -> median seconds of a new process that does it, taking turns."""
    spent: dict[str, list[float]] = {name: [] for name in STARTS}
    for turn in range(-1, count):
        for name, words in STARTS.items():
            found = run([sys.executable, *words], {})["seconds"]
            if turn >= 0:
                spent[name].append(found)
    return {name: median(values) for name, values in spent.items()}


def finetune(place: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give wall clock, peak memory and accuracy of both commands."""
    files = write_splits(place, arguments.rows)
    model = resolve("zoo:albert-nano-zh").folder
    settings = [f"--{part}={path}" for part, path in files.items()]
    settings += [
        f"--epochs={arguments.epochs}",
        f"--batch-size={arguments.batch_size}",
        f"--learning-rate={arguments.learning_rate}",
        f"--max-length={arguments.max_length}",
        f"--threads={arguments.threads}",
    ]
    commands = {
        "thrice": ["-m", "thrice", "finetune", "zoo:albert-nano-zh", "OUT", *settings, "--json"],
        "trainer": [str(BENCHMARKS / "trainer_side.py"), str(model), "OUT", *settings],
    }
    sides = {"thrice": "thrice", "trainer": "trainer", "thrice again": "thrice"}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for turn in range(arguments.rounds):
        for name, command in sides.items():
            runs[name].append(one_run(commands[command], place / f"{name} {turn}", turn))
    spent = {name: [r["seconds"] for r in found] for name, found in runs.items()}
    return {
        "rows": arguments.rows,
        "epochs": arguments.epochs,
        "rounds": arguments.rounds,
        "seconds": {name: median(values) for name, values in spent.items()},
        "ratio": ratio(spent["thrice"], spent["trainer"]),
        "control": ratio(spent["thrice"], spent["thrice again"]),
        "peak_bytes": {name: max(r["peak_bytes"] for r in found) for name, found in runs.items()},
        "best_dev": {name: [r["best_dev"] for r in runs[name]] for name in ("thrice", "trainer")},
        "test": {name: [r["test"] for r in runs[name]] for name in ("thrice", "trainer")},
    }


def one_run(command: list[str], out: Path, seed: int) -> dict[str, Any]:
    """Run one command with a seed and an empty cache; give seconds, peak memory and accuracies."""
    # `thrice finetune` names its folder by --out, trainer_side.py by place.
    named = ["--out", str(out)] if "thrice" in command else [str(out)]
    words = [word for part in command for word in (named if part == "OUT" else [part])]
    found = run([sys.executable, *words, f"--seed={seed}"], {"THRICE_CACHE": str(out) + ".cache"})
    answer = json.loads(found.pop("output").splitlines()[-1])
    test = answer["test"]
    return found | {
        "best_dev": answer["best_dev"],
        "test": test["accuracy"] if isinstance(test, dict) else test,
    }


def write_splits(place: Path, rows: int) -> dict[str, Path]:
    """Write tsv files of Chinese reviews: train, and a tenth of that each for dev and test."""
    table = read_table(SENTIMENT, columns=("text", "label"), format="tsv")
    few = max(8, rows // 10)
    borders = {"train": (0, rows), "dev": (rows, rows + few), "test": (rows + few, rows + 2 * few)}
    files = {}
    for part, (start, stop) in borders.items():
        lines = [f"{row['text']}\t{row['label']}\n" for row in table.rows[start:stop]]
        files[part] = place / f"{part}.tsv"
        files[part].write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
    return files


def run(command: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a command to its end; give seconds, peak memory of it and its children, and standard output."""
    surroundings = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"} | environment
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=surroundings)
        peak = 0
        while process.poll() is None:
            peak = max(peak, resident_bytes(process.pid))
            time.sleep(EVERY if environment else EVERY / 10)
        spent = time.perf_counter() - started
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{err.read()[-2000:]}")
        return {"seconds": spent, "peak_bytes": peak, "output": out.read()}


def resident_bytes(pid: int) -> int:
    """Give the resident memory of a process and its children now (Linux; 0 elsewhere, and once it has ended)."""
    home = Path("/proc") / str(pid)
    try:
        own = int((home / "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        children = (home / "task" / str(pid) / "children").read_text(encoding="ascii").split()
    except (OSError, IndexError):
        return 0
    return own + sum(resident_bytes(int(child)) for child in children)


def table(result: Mapping[str, Any]) -> str:
    """Give the result for a reader."""
    lines = ["starting, seconds (median of new processes):"]
    for name, found in result["starts"].items():
        low, high = found["interval"]
        lines.append(f"  {name:32} {found['median']:.2f} ({low:.2f} to {high:.2f})")
    if "finetune" in result:
        found = result["finetune"]
        ours, theirs = found["seconds"]["thrice"]["median"], found["seconds"]["trainer"]["median"]
        memory = {name: value / 2**20 for name, value in found["peak_bytes"].items()}
        lines += [
            f"fine-tuning, {found['rows']} rows, {found['epochs']} epochs, {found['rounds']} rounds, "
            f"{result['threads']} threads: {times(found['ratio'])}; control {times(found['control'])}",
            f"  thrice {ours:.1f} s, {memory['thrice']:.0f} MiB; Trainer {theirs:.1f} s, {memory['trainer']:.0f} MiB",
            f"  test accuracy, one a seed: thrice {_list(found['test']['thrice'])}; Trainer "
            f"{_list(found['test']['trainer'])}",
        ]
    return "\n".join(lines)


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)


if __name__ == "__main__":
    main()
