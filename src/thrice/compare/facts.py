"""What a study was made of: the arms' weights, what they differ in, the machine and the versions."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from thrice.checkpoints.digest import weights_digest
from thrice.compare.data import data_facts, read_task
from thrice.compare.grid import TFIDF, Study
from thrice.errors import ConfigError, ThriceError
from thrice.finetune import build, cut_note
from thrice.model.stock import StockEncoder
from thrice.tasks.base import TaskModel


def made_of(study: Study) -> dict[str, dict[str, Any]]:
    """Give arm -> what it is made of; raises ConfigError that lists every arm that cannot be built for a task."""
    found: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    for arm in study.arms:
        for task in study.tasks:
            if arm.model == TFIDF:
                continue
            learned, splits = read_task(task)
            try:
                model, tokenizer = build(arm.model, learned, seed=study.seeds[0], tokenizer=study.tokenizer)
            except ThriceError as error:
                problems.setdefault(arm.name, str(error))
                continue
            config = model.encoder.config
            facts = {
                "weights": found[arm.name]["weights"] if arm.name in found else _digest(model),
                "tokenizer": tokenizer.fingerprint,
                "family": config.family,
                "packed": model.encoder.packed,
                "hidden_size": config.hidden_size,
                "hidden_dropout_prob": config.hidden_dropout_prob,
                "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
            }
            cut = {task.name: cut_note(model.task.encode(splits.train, tokenizer))}
            found.setdefault(arm.name, {**facts, "cut": {}})["cut"] |= cut
    if problems:
        listed = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise ConfigError(f"{len(problems)} of {len(study.arms)} arms cannot be built: {listed}")
    return found


def _digest(model: TaskModel) -> str:
    """Give the sha256 of an encoder's weights, the fresh head aside: a name may mean other weights tomorrow."""
    encoder = model.encoder
    if isinstance(encoder, StockEncoder):  # its class draws more than a head where the checkpoint has no pooler
        held = {name: tensor for name, tensor in encoder.model.state_dict().items() if name in encoder.given}
    else:
        held = {name: tensor for name, tensor in encoder.named_parameters() if not name.startswith("heads.")}
    return weights_digest(held)


# What arms may differ in beside their weights, and what that means for a reader.
UNEQUAL = {
    "tokenizer": "not the same tokenizer as {first}: {others}; their inputs differ, not the model alone",
    "family": "not the family of {first}: {others}; their heads are built differently",
    "packed": "not packed as {first} is, or the other way round: {others}; a model that is not runs through its own "
    "transformers class, with padding, and its times are those of that class",
    "hidden_size": "not as wide as {first}: {others}; the first weights of their heads are other draws",
    "hidden_dropout_prob": "trained with another dropout than {first}: {others}",
    "attention_probs_dropout_prob": "trained with another attention dropout than {first}: {others}",
}


def study_facts(study: Study, parts_of: dict[str, dict[str, Any]], command: str | None) -> dict[str, Any]:
    """Give what stands in study.json beside the study itself. parts_of: what `made_of` gave."""
    notes = []
    for task in study.tasks:
        found = [*read_task(task)[1].facts["notes"]]
        found += dict.fromkeys(note for parts in parts_of.values() for note in parts["cut"][task.name])
        notes += [f"{task.name}: {note}" if len(study.tasks) > 1 else note for note in found]
    first = next(iter(parts_of), "")
    for key, sentence in UNEQUAL.items():
        others = [arm for arm, parts in parts_of.items() if parts[key] != parts_of[first][key]]
        if others:
            notes.append(sentence.format(first=first, others=", ".join(others)))
    return {
        "data": data_facts(study),
        "made_of": parts_of,
        "notes": notes,
        "command": command,
        "machine": machine(),
        "versions": versions(),
    }


@functools.cache
def machine() -> dict[str, Any]:
    """Give system, processor, cores and GPU of this machine."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


@functools.cache
def versions() -> dict[str, str]:
    """Give the versions of everything that a result depends on."""
    packages = ("thrice", "torch", "transformers", "accelerate", "tokenizers")
    return {name: version(name) for name in packages} | {"python": platform.python_version()}


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
