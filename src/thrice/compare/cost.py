"""What a model costs: parameters, file, operations, time and memory, each measured beside those of the other models."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thrice.checkpoints import load_any
from thrice.checkpoints.inspect import config_of, stock_shapes
from thrice.checkpoints.name_map import apart, wanted_shapes
from thrice.compare.data import read_task
from thrice.compare.grid import TFIDF, Arm, Cell, Study
from thrice.compare.memory import in_own_process, training_memory
from thrice.compare.results import COST_OF_TASK, FORMAT
from thrice.compare.timing import LONG, SHORT, prediction_times, step_times
from thrice.data.columns import Columns
from thrice.data.encoding import Encoded
from thrice.errors import ConfigError
from thrice.files import read_json, write_json
from thrice.finetune import build
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.flops import forward_flops, parameter_counts, tensor_bytes, training_flops
from thrice.source import Splits
from thrice.tasks.base import Task, TaskData, TaskModel
from thrice.tasks.classification import Classification, ClassificationData
from thrice.training import TrainingConfig

METHOD = (
    "times: the models take turns, A B C A B C ..., and the first is built a second time and takes its turn too, so "
    "that two measurements of one model show the noise; latency: one text, from token ids to the answer; training: "
    "forward, backward and fused AdamW on batches of the training order; s/epoch: the median time per token times the "
    "tokens of an epoch; memory: at the peak of a training step on the batch with most tokens, what torch allocated; "
    "peak memory: the most that a process of its own holds over three such steps, by the kernel's high-water mark, "
    "less its code and what it held before the model, freed blocks given back at once (a process that keeps them held "
    "up to a third more); file: the tensors of the stock folder, its header aside; FLOPs: matrix products, a "
    "multiply-add counted as two, head and pooler left out, training three times the forward pass"
)
TIMES = ("latency_short_ms", "latency_long_ms", "step_ms")

Numbers = dict[str, Any]

# No arm can be called so; it stands for the first arm, built a second time.
_AGAIN = ""


def measure_cost(
    study: Study,
    folder: Path,
    tasks: Mapping[str, tuple[Task, Splits]],
    points: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
) -> Numbers:
    """Measure all arms on all tasks, write cost.json and give it; one that has all of them already is kept.

    tasks: name of the task -> what it learned and its examples. What depends on a task little is measured on the first
    one alone. Arms are measured together, so one new arm means measuring all again: only times taken in turns compare.
    points: task -> arm -> the grid point at which it is measured; the first one where None.
    """
    path = folder / "cost.json"
    arms = {arm.name: arm for arm in study.arms if arm.model != TFIDF}
    before = _measured_before(path)
    points = points or {name: {arm.name: dict(arm.points[0]) for arm in arms.values()} for name in tasks}
    known = before.get("points", {})
    if all(known.get(name, {}).get(arm) == points[name][arm] for name in tasks for arm in arms):
        return before
    torch.set_num_threads(study.threads)
    result: Numbers = {"format": FORMAT, "method": METHOD, "threads": study.threads, "arms": {}, "tasks": {}}
    result["points"] = points
    first = next(iter(tasks))
    for name, (task, splits) in tasks.items():
        models, data, training = _built(study, arms, name, task, splits, points, twice=name == first)
        if name == first:
            result |= cost_card(models, data, training)
        else:
            result["tasks"][name] = step_times(models, data, training)
        models.clear()
    result["tasks"] = {
        name: {arm: {key: costs[key] for key in COST_OF_TASK} for arm, costs in of.items()}
        for name, of in ({first: result["arms"]} | result["tasks"]).items()
    }
    for name, costs in result["arms"].items():
        asked = {"study": study.to_json(), "arm": name, "task": first, "points": points}
        costs |= in_own_process(asked, module="thrice.compare.cost", name=name)
        for key in COST_OF_TASK:
            del costs[key]
    write_json(path, result)
    return result


def model_costs(
    names: Sequence[str],
    *,
    max_length: int | None = None,
    timing: bool = True,
    training: TrainingConfig | None = None,
) -> Numbers:
    """Give the costs of models without data: random token ids, a head of two classes; torch's present thread count.

    names: of models, as `load_any` takes them. max_length: tokens of the long text; where None, 128 or the most that
    all models take. timing: whether times and memory are measured too; without, no encoder of thrice is built.
    training: batch size and whatever else a step depends on; the defaults of TrainingConfig where None.
    Returns method, threads, tokens (of the long text), arms (name -> the costs that cost.json has, and step_ms) and
    control (see `cost_card`; None without timing).
    Raises ConfigError for a name given twice or a length that a model does not take.
    """
    wanted = [name for name in names if name != TFIDF]
    repeated = sorted({name for name in wanted if wanted.count(name) > 1})
    if repeated or not wanted:
        raise ConfigError(
            f"models named twice: {', '.join(repeated)}" if repeated else "name a model; tfidf has no such costs"
        )
    result: Numbers = {"method": METHOD, "threads": torch.get_num_threads(), "control": None}
    if not timing:
        shapes = {name: config_of(name) or _with_two_classes(name) for name in wanted}
        tokens = _tokens(max_length, shapes.values())
        arms = {name: sizes(shape, tokens=tokens) for name, shape in shapes.items()}
        return result | {"tokens": tokens, "arms": arms}
    training = TrainingConfig(max_grad_norm=0.0) if training is None else training
    models = {name: _with_two_classes(name or wanted[0]) for name in (*wanted, _AGAIN)}
    tokens = _tokens(max_length, models.values())
    data = {name: random_texts(model.encoder.config.vocab_size, tokens=tokens) for name, model in models.items()}
    result |= {"tokens": tokens, **cost_card(models, data, dict.fromkeys(models, training), long=tokens)}
    models.clear()
    asked = {"tokens": tokens, "threads": torch.get_num_threads(), "training": vars(training)}
    for name, costs in result["arms"].items():
        costs |= in_own_process({"model": name, **asked}, module="thrice.compare.cost", name=name)
    return result


def _tokens(max_length: int | None, models: Iterable[TaskModel | EncoderConfig]) -> int:
    """Give the tokens of the long text; raises ConfigError where a model does not take as many."""
    configs = (model if isinstance(model, EncoderConfig) else model.encoder.config for model in models)
    most = min(config.max_length for config in configs)
    if max_length is not None and not 3 <= max_length <= most:
        raise ConfigError(f"--max-length is {max_length}, it must lie between 3 and {most}, which all models take")
    return min(LONG, most) if max_length is None else max_length


def cost_card(
    models: Mapping[str, TaskModel],
    data: Mapping[str, TaskData],
    training: Mapping[str, TrainingConfig],
    *,
    long: int = LONG,
) -> Numbers:
    """Give arms, name -> every cost but memory, and control, what the first arm's second building cost.

    models, data, training: of every arm, and under the name "" of the first arm once more. long: tokens of the long
    text and of the sequences that FLOPs are told for. The models' weights move.
    control: arm, its times, and ratios of the second time over the first: of latency_short_ms, latency_long_ms,
    step_ms, and of the time behind prediction_tokens_per_second.
    """
    first = next(iter(models))
    tokens = min(long, int(data[first].lengths.max()))
    found = {name: sizes(model, tokens=tokens) for name, model in models.items()}
    for times in (prediction_times(models, data, long=long), step_times(models, data, training)):
        for name, measured in times.items():
            found[name] |= measured
    again = found.pop(_AGAIN)
    ratios = {key: _middle(again[key]) / _middle(found[first][key]) for key in TIMES}
    ratios["prediction_tokens_per_second"] = (
        found[first]["prediction_tokens_per_second"] / again["prediction_tokens_per_second"]
    )
    speeds = ("prediction_tokens_per_second", "training_tokens_per_second")
    control = {"arm": first, **{key: again[key] for key in (*TIMES, *speeds)}, "ratios": ratios}
    return {"arms": found, "control": control}


def sizes(model: TaskModel | EncoderConfig, *, tokens: int) -> Numbers:
    """Give what follows from a model's shape: parameters, bytes of its file, FLOPs per token, and whether it packs.

    model: of a task; or a config alone, for an encoder with a classifier of two classes. tokens: of the sequences that
    FLOPs are told for; they are None for a model that is no encoder of thrice, whose config does not say what it
    multiplies. The file of such a one holds each parameter once.
    """
    if isinstance(model, EncoderConfig):
        held = wanted_shapes(model, {"sequence": 2}, untied=False)
        return _numbers(model, parameter_counts(model, classes=2), stock_shapes(model, held).values(), tokens)
    encoder = model.encoder
    beside = [tuple(p.shape) for p in ([] if model.head is None else model.head.parameters())]
    stored, called = (count + sum(map(math.prod, beside)) for count in encoder.parameter_counts())
    if not isinstance(encoder, Encoder):
        return _numbers(None, (stored, called), [tuple(p.shape) for p in model.parameters()], tokens)
    held = {name: tuple(tensor.shape) for name, tensor in apart(encoder.state_dict()).items()}
    files = [*stock_shapes(encoder.config, held).values(), *beside]
    return _numbers(encoder.config, (stored, called), files, tokens)


def _numbers(
    config: EncoderConfig | None, counts: tuple[int, int], files: Collection[Sequence[int]], tokens: int
) -> Numbers:
    return {
        "parameters_stored": counts[0],
        "parameters_called": counts[1],
        "file_bytes": tensor_bytes(files, "float32"),
        "file_bytes_float16": tensor_bytes(files, "float16"),
        "file_bytes_int8": tensor_bytes(files, "int8"),
        "flops_per_token": None if config is None else forward_flops(config, tokens=tokens),
        "flops_per_token_training": None if config is None else training_flops(config, tokens=tokens),
        "flops_tokens": tokens,
        "packed": config is not None,
    }


def _built(
    study: Study,
    arms: Mapping[str, Arm],
    name: str,
    task: Task,
    splits: Splits,
    points: Mapping[str, Any],
    *,
    twice: bool = False,
) -> tuple[dict[str, TaskModel], dict[str, TaskData], dict[str, TrainingConfig]]:
    """Give model, training examples and training config of every arm on one task; twice: the first arm once more."""
    models, data, training = {}, {}, {}
    wanted = dict(arms) | ({_AGAIN: next(iter(arms.values()))} if twice else {})
    for key, arm in wanted.items():
        point = tuple(points[name][arm.name].items())
        training[key] = study.training_of(Cell(arm.name, name, study.seeds[0], point))
        model, tokenizer = build(arm.model, task, seed=study.seeds[0], tokenizer=study.tokenizer)
        models[key], data[key] = model.to(training_device()), model.task.encode(splits.train, tokenizer)
    return models, data, training


def _with_two_classes(name: str) -> TaskModel:
    """Give a named model with a classifier of two classes, on the device that training uses."""
    # Its texts are made, not cut, so that max_length has no meaning beyond being one that every model takes.
    task = Classification(labels=("0", "1"), columns=Columns(text="text", label="label"), max_length=3)
    return TaskModel(load_any(name), task).to(training_device())


def random_texts(vocab_size: int, *, tokens: int, examples: int = 256) -> ClassificationData:
    """Give texts of random token ids, 16 to `tokens` tokens long, the same lengths for every vocabulary.

    The first two are as short and as long as that; classes are 0 and 1.
    """
    draw = np.random.default_rng(0)
    short = min(SHORT, tokens)
    lengths = np.array([short, tokens, *draw.integers(short, tokens + 1, examples - 2)])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    # The first ids are padding and the like.
    ids = draw.integers(min(10, vocab_size // 2), vocab_size, offsets[-1], dtype=np.int32)
    types = np.zeros(len(ids), dtype=np.uint8)
    encoded = Encoded(ids=ids, type_ids=types, offsets=offsets, owner=np.arange(examples), num_cut=0)
    return ClassificationData(encoded, np.arange(examples) % 2)


def _measured_before(path: Path) -> Numbers:
    """Give what cost.json says; a damaged or older one says nothing, for it can be measured again."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    parts = (value.get("arms"), value.get("tasks")) if isinstance(value, dict) else (None,)
    return value if all(isinstance(part, dict) for part in parts) and value.get("format") == FORMAT else {}


def _middle(times: Mapping[str, float]) -> float:
    return times["p50"] if "p50" in times else times["median"]


def training_device() -> torch.device:
    """Give the device that training uses."""
    from accelerate import Accelerator

    return Accelerator().device


def _answer(question: Mapping[str, Any]) -> Numbers:
    """Give the memory of one arm of a study, or of one model without data."""
    if "study" in question:
        study = Study.from_json(question["study"])
        torch.set_num_threads(study.threads)
        arm = study.arm(question["arm"])
        task, splits = read_task(study.task(question["task"]))
        models, data, training = _built(study, {arm.name: arm}, question["task"], task, splits, question["points"])
        model, texts, config = models[arm.name], data[arm.name], training[arm.name]
    else:
        torch.set_num_threads(question["threads"])
        model = _with_two_classes(question["model"])
        texts = random_texts(model.encoder.config.vocab_size, tokens=question["tokens"])
        config = TrainingConfig(**question["training"])
    return training_memory(model, texts, config)


if __name__ == "__main__":
    print(json.dumps(_answer(json.load(sys.stdin))))
