"""What the command line shows beside study tables: lists of names, inspections, un-sharing proofs, progress."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from thrice.errors import ConfigError
from thrice.files import read_json

if TYPE_CHECKING:
    from thrice.compare.grid import Study
    from thrice.model.encoder import Encoder
    from thrice.model.packing import PackedBatch

logger = logging.getLogger("thrice")

HUGE_BYTES = 2_000_000_000

# Real sentences in several scripts: what an un-shared model is proved equal on.
SENTENCES = (
    "The same layer is called again and again, and each depth would rather have one of its own.",
    "这本书的内容很好，但是包装破了，客服的态度也不太友好。",
    "Un vieux livre, trois lecteurs, et autant d'avis.",
    "Небольшой файл ещё не быстрая модель.",
    "小さなファイルは速いモデルではない。",
    "Yes.",
)


def _tasks() -> dict[str, str]:
    from thrice.registry import plugins

    return {name: task.summary for name, task in plugins("tasks").items()}


def _objectives() -> dict[str, str]:
    from thrice.registry import plugins

    return {name: objective.summary for name, objective in plugins("objectives").items()}


def _families() -> dict[str, str]:
    from thrice.registry import plugins

    formats = plugins("checkpoints.formats")
    return {name: f"stock classes: {', '.join(form.classes)}" for name, form in formats.items()}


def _presets() -> dict[str, str]:
    from thrice.model.presets import PRESETS
    from thrice.sharing.patterns import describe

    return {
        name: f"{c.num_calls} layers, hidden {c.hidden_size}, {c.num_attention_heads} heads, feed-forward "
        f"{c.intermediate_size}, embedding {c.embedding_size}, vocabulary {c.vocab_size}, shared: "
        f"{describe(c.attention_map, c.ffn_map)}"
        for name, c in PRESETS.items()
    }


def _patterns() -> dict[str, str]:
    from thrice.sharing.patterns import PATTERNS

    return dict(PATTERNS)


def _recipes() -> dict[str, str]:
    from thrice.pretraining import find_recipe, read_recipe, recipe_names

    found = {}
    for name in recipe_names():
        first = find_recipe(name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        said = read_recipe(name)
        shape = f"{said['model']['num_hidden_layers']} layers of {said['model']['hidden_size']}"
        spent = ", ".join(f"{amount:,} {unit}" for unit, amount in said["budget"].items())
        found[name] = f"{shape}, {spent}. {first}"
    return found


def _zoo() -> dict[str, str]:
    from thrice.checkpoints import inspect, zoo_names

    found = {name: inspect(f"zoo:{name}") for name in zoo_names()}
    return {
        name: f"{card['family']}, {card['parameters_stored'] / 1e6:.2f} M parameters stored, shared: {card['sharing']}"
        for name, card in found.items()
    }


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "families": _families,
    "objectives": _objectives,
    "patterns": _patterns,
    "presets": _presets,
    "recipes": _recipes,
    "tasks": _tasks,
    "zoo": _zoo,
}


def inspection(found: dict[str, Any], console: Console) -> None:
    """Print what `checkpoints.inspect` found: a few facts, then every tensor with its fate."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column()
    facts.add_column(overflow="fold")
    for key, value in found.items():
        if key not in ("tensors", "config", "problems"):
            facts.add_row(Text(key), Text(f"{value:,}" if isinstance(value, int) else _shown(value)))
    for key, value in (found.get("config") or {}).items():
        if key in found:
            continue
        facts.add_row(Text(key, style="dim"), Text(_shown(value), style="dim"))
    console.print(facts)
    tensors = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("tensor", "shape", "fate"):
        tensors.add_column(column, overflow="fold")  # a name that is cut short names nothing
    for tensor in found["tensors"]:
        tensors.add_row(*map(Text, (tensor["name"], _shown(tensor["shape"]), tensor["fate"])))
    console.print(tensors)
    for problem in found.get("problems") or ():
        console.print(Text(f"problem: {problem}", style="bold red"))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(key if of is None else f"{key} ({of})" for key, of in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def write_transformed(verb: str, name: str, folder: Path, *, pattern: str, method: str | None) -> dict[str, Any]:
    """Un-share or share a named model, write it, and give what that did to outputs, parameters and file size.

    Outputs are compared on real sentences where the model has a tokenizer: before against the folder read back by
    thrice, and before against the folder read by stock transformers.
    """
    from thrice import sharing
    from thrice.checkpoints import carried_config, inspect, load, read_sidecar, resolve, save
    from thrice.sharing.patterns import describe
    from thrice.sharing.transform import max_difference

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not empty; name a new folder")
    source = resolve(name)
    if source.folder is not None and (size := 4 * inspect(str(source.folder))["parameters_called"]) > HUGE_BYTES:
        logger.warning(
            "%s: may become %.1f GB on disk; this command takes three times that in memory", name, size / 1e9
        )
    encoder, before = load(name), load(name)
    stored, called = before.parameter_counts()
    if verb == "unshare":
        encoder = sharing.unshare(encoder, pattern)
    else:
        encoder = sharing.share(encoder, pattern, method=method or "mean")
    tokenizer = _tokenizer(source.folder, encoder)
    batch = _proof_batch(tokenizer, encoder)
    extra, sidecar = {}, {}
    if source.folder is not None:
        extra = carried_config(source.folder)
        held = read_sidecar(source.folder) or {}
        sidecar = {k: v for k, v in held.items() if not k.endswith("_map") and k != "packed"}
    save(encoder, folder, extra_config=extra, tokenizer=tokenizer, sidecar=sidecar or None)
    config, old = encoder.config, before.config
    return {
        "command": verb,
        "model": name,
        "folder": str(folder),
        "sharing_before": describe(old.attention_map, old.ffn_map),
        "sharing_after": describe(config.attention_map, config.ffn_map),
        "parameters_stored_before": stored,
        "parameters_stored_after": encoder.parameter_counts()[0],
        "parameters_called": called,
        "file_bytes_before": None if source.folder is None else _weight_bytes(source.folder),
        "dtype_before": None if source.folder is None else _dtype(source.folder),
        "file_bytes_after": _weight_bytes(folder),
        "inputs": f"{len(batch.lengths)} sentences" if tokenizer else f"{len(batch.lengths)} random sequences",
        "tokens": batch.num_tokens,
        "max_difference": max_difference(before, load(str(folder)), batch),
        "max_difference_in_transformers": _stock_difference(before, folder, batch),
    }


def _tokenizer(folder: Path | None, encoder: Encoder) -> Any:
    from thrice.data.tokenizer import Tokenizer, has_vocabulary

    if folder is None:
        return None
    if not has_vocabulary(folder):
        logger.warning("%s has no tokenizer; none is written, and equality is shown on random token ids", folder)
        return None
    sizes = {"vocab_size": encoder.config.vocab_size, "type_vocab_size": encoder.config.type_vocab_size}
    return Tokenizer.from_folder(folder, **sizes)


def _proof_batch(tokenizer: Any, encoder: Encoder) -> PackedBatch:
    import numpy as np

    from thrice.model.packing import pack

    if tokenizer is not None:
        length = min(64, encoder.config.max_length)
        return pack([ids[:length] for ids in (tokenizer.backend.encode(s).ids for s in SENTENCES)])
    draw = np.random.default_rng(0)
    return pack([draw.integers(0, encoder.config.vocab_size, n) for n in (8, 8, 5, 3)])


def _stock_difference(before: Encoder, folder: Path, batch: PackedBatch) -> float:
    """Give the largest difference of hidden states between an encoder and stock transformers on a saved folder."""
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()  # a folder without a pooler makes AutoModel draw one, which nothing here reads
    logging.disable_progress_bar()
    try:
        stock = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()
    largest, place = 0.0, 0
    with torch.no_grad():
        hidden = before(batch)
        for length in batch.lengths:
            row = slice(place, place + length)
            other = stock(input_ids=batch.input_ids[None, row], token_type_ids=batch.token_type_ids[None, row])
            largest = max(largest, float((other.last_hidden_state[0] - hidden[row]).abs().max()))
            place += length
    return largest


def _weight_bytes(folder: Path) -> int:
    weights = list(folder.glob("model*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    return sum(p.stat().st_size for p in weights)


def _dtype(folder: Path) -> str:
    config = read_json(folder / "config.json")
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def transformed(result: dict[str, Any], console: Console) -> None:
    """Print what `write_transformed` gave: the proof or the error introduced, and what it costs."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    same = "difference" if result["command"] == "unshare" else "error introduced"
    stored = (result["parameters_stored_before"], result["parameters_stored_after"])
    size = result["file_bytes_before"]
    facts.add_row("sharing", f"{result['sharing_before']} -> {result['sharing_after']}")
    facts.add_row(
        f"largest {same}", f"{result['max_difference']:.3g} over {result['tokens']} tokens, {result['inputs']}"
    )
    facts.add_row("  in stock transformers", f"{result['max_difference_in_transformers']:.3g}")
    facts.add_row("parameters stored", f"{stored[0] / 1e6:,.2f} M -> {stored[1] / 1e6:,.2f} M")
    facts.add_row("parameters called", f"{result['parameters_called'] / 1e6:,.2f} M, before and after: the same speed")
    before = "" if size is None else f"{size / 1e6:,.1f} MB ({result['dtype_before']}) -> "
    facts.add_row("weights", f"{before}{result['file_bytes_after'] / 1e6:,.1f} MB (float32)")
    console.print(facts)
    if result["file_bytes_after"] > HUGE_BYTES:
        text = (
            f"a large file: {result['file_bytes_after'] / 1e9:.2f} GB; training needs about four times that in memory"
        )
        console.print(Text(f"warning: {text}", style="bold yellow"))
    console.print(Text(f"written to {result['folder']}"))


def advised(found: dict[str, Any], console: Console) -> None:
    """Print what `compare.advise.advise` gave."""
    nearest = found["nearest_miss"]
    if found["pick"]:
        console.print(Text.assemble("take ", (found["pick"], "bold")))
        if found["runner_up"]:
            console.print(Text(f"second: {found['runner_up']}"))
    elif nearest:
        console.print(Text.assemble("nothing fits; nearest: ", (nearest["arm"], "bold")))
    else:
        console.print(Text("nothing fits, and nothing was measured that comes near"))
    for sentence in found["reasons"]:
        console.print(Text(f"- {sentence}"))
    for failed in found["fails"]:
        console.print(Text(f"out: {failed['arm']}: {'; '.join(failed['because'])}", style="dim"))


def fewshot_result(found: dict[str, Any], console: Console) -> None:
    """Print what `compare.fewshot.fewshot_table` gave: a row per model and method, a column per examples per class."""
    sizes = sorted({row["shots"] for row in found["rows"] if row["shots"] is not None})
    table = Table(box=None, pad_edge=False)
    for name in ("model", "method", *(f"{k} per class" for k in sizes)):
        table.add_column(name, overflow="fold")
    cells: dict[tuple[str, str], dict[int | None, str]] = {}
    for row in found["rows"]:
        cells.setdefault((row["model"], row["method"]), {})[row["shots"]] = _mean_and_spread(row)
    for (model, method), own in cells.items():
        table.add_row(model, method, *(own.get(k, own.get(None, "")) for k in sizes))
    console.print(table)
    for name, costs in found.get("cost", {}).items():
        stored, called = costs["parameters_stored"] / 1e6, costs["parameters_called"] / 1e6
        size = costs["file_bytes"] / 1e6
        console.print(Text(f"{name}: {stored:.2f} M parameters stored, {called:.2f} M called, {size:.1f} MB (float32)"))
    for pair in found["differences"]:
        if pair["mean"] is not None:
            reach = "" if pair["low"] is None else f" [{100 * pair['low']:+.1f}, {100 * pair['high']:+.1f}]"
            text = f"{pair['model']}, {pair['shots']} per class: prompt less plain {100 * pair['mean']:+.1f}{reach}"
            console.print(Text(f"{text}, n = {pair['n']}"))
    where = "test" if found["score"] == "test" else "dev, on which the epoch was chosen"
    console.print(Text(f"{found['metric']} x 100 on {where}: mean ± standard deviation over samples and seeds (n)"))


def _mean_and_spread(row: dict[str, Any]) -> str:
    if row["mean"] is None:
        return "-"
    spread = "" if row["std"] is None else f" ± {100 * row['std']:.1f}"
    alike = f", {row['collapsed']} of one answer" if row["collapsed"] else ""
    return f"{100 * row['mean']:.1f}{spread} ({row['n']}{alike})"


@contextlib.contextmanager
def study_progress(study: Study, console: Console) -> Iterator[dict[str, Callable[..., None]]]:
    """Draw a study's progress; yields the callbacks of `run_study`."""
    from thrice.compare.cell import cell_of

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(
        *columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console, transient=True
    ) as bar:
        line = bar.add_task(f"{len(study.cells)} cells", total=None)
        count = {"finished": 0, "missing": len(study.cells)}

        def start(steps: int, done: int) -> None:
            bar.update(line, total=steps, completed=done)

        def cell(row: dict[str, Any]) -> None:
            count["finished"] += 1
            test = (row.get("test") or {}).get(row["metric"])
            scores = f"best dev {row['best_dev']:.4f} at epoch {row['best_epoch']}"
            scores += "" if test is None else f", test {test:.4f}"
            collapsed = ", COLLAPSED" if row["collapsed"] else ""
            console.print(Text(f"{cell_of(row)}: {scores}{collapsed}"))
            bar.update(line, description=f"{count['finished']} cells finished")

        def cost() -> None:
            bar.update(line, description="measuring cost", total=None)

        yield {
            "on_start": start,
            "on_steps": lambda steps: bar.advance(line, steps),
            "on_cell": cell,
            "on_cost": cost,
        }
