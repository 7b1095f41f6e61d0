"""What a run needs to go on after a stop, on disk without pickles.

    folder/resume/step-00000120.safetensors    every parameter and buffer of the model, every tensor of the optimiser,
                                               and the average of the weights where there is one
    folder/resume/state.json                   everything else, and the name of the tensor file it belongs to
    folder/best.safetensors                    parameters and buffers after the best epoch so far

The tensor file is written first, under a name of its own; renaming state.json into place is the one moment at which a
save counts, and only then is the older tensor file removed. A kill at any moment leaves the last save or the new one.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar
from zlib import crc32

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from thrice.errors import TrainingError
from thrice.files import plain_os_errors, read_json, write_atomically, written_beside
from thrice.schema import misfits, newer_format
from thrice.training.averaging import Average
from thrice.training.config import UNSETTLED, TrainingConfig
from thrice.training.distributed import Ranks

FORMAT = 1
RUN_FILES = ("best.safetensors", "train.jsonl", "pretrain.jsonl", "budget.json", "trackers.json")
"""What a run leaves in its folder beside fit.json and its saves."""
UNSAID = {"ema_decay": None, "micro_tokens": None, "processes": 1, "mixed_precision": "no"}
"""What an identity means that does not say it."""
IDENTITY = {"config": dict[str, Any], "run": dict[str, Any], "tensors": dict[str, Any]}
WAY_OUT = "choose a new folder, or restart (--restart), which discards the run in this one"


class SavedState(Protocol):
    """Where a run stands, whatever loop it is of: a dataclass of JSON values."""

    step: int

    @classmethod
    def from_json(cls, numbers: Mapping[str, Any]) -> Self:
        """Give the state that state.json holds."""


StateT = TypeVar("StateT", bound=SavedState)

DAMAGE = (OSError, LookupError, ArithmeticError, ValueError, TypeError, RuntimeError, safetensors.SafetensorError)
"""What reading a damaged save may end in."""


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """Give the state of the global generators, and of the device's own, as JSON values."""
    version, words, gauss = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": _base64(torch.get_rng_state()),
        "device": None if own is None else _base64(own),
    }


def set_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put the global generators, and the device's own, back into a state that `random_state` gave."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(_unbase64(state["torch"]))
    if state["device"] is not None and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(_unbase64(state["device"]), device)


def run_identity(
    model: nn.Module, config: TrainingConfig, *, num_examples: int, metric: str, facts: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Give all that must be the same for a run to go on, as JSON values.

    facts: what only the caller knows, such as the fingerprint of the data or the name of the checkpoint.
    """
    settings = {k: v for k, v in dataclasses.asdict(config).items() if k not in UNSETTLED}
    if config.ema_decay is None:  # unsaid, as in runs that began before there was an average
        del settings["ema_decay"]
    return identity_of(model, settings, {"num_examples": num_examples, "metric": metric, **(facts or {})})


def identity_of(model: nn.Module, config: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give an identity: the settings that move weights, whatever else must be the same, and the model's tensors."""
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    tensors = {
        name: f"{t.dtype} {list(t.shape)}{' frozen' if name in frozen else ''}"
        for name, t in named_tensors(model).items()
    }
    plain: dict[str, dict[str, Any]] = json.loads(
        json.dumps({"config": dict(config), "run": dict(run), "tensors": tensors})
    )
    return plain


def check_saved(path: Path, content: Any, wanted: Mapping[str, Any]) -> None:
    """Raise TrainingError that lists what is wrong in a file of a run; wanted: see `schema.misfits`."""
    if problems := newer_format(content, FORMAT):
        raise TrainingError(f"{path}: {problems[0]}, or {WAY_OUT}")
    problems = misfits(content, dict(wanted), finite=False)  # a metric may be nan
    if problems:
        raise TrainingError(f"{path} is damaged: {'; '.join(problems[:8])} - {WAY_OUT}")


def check_identity(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise TrainingError that names what changed if a folder's run is not the one asked for."""
    changes = []
    for section in now:
        old, new = then[section], now[section]
        before, after = ({k: part.get(k, UNSAID.get(k, "absent")) for k in {**old, **new}} for part in (old, new))
        changed = [k for k in before if before[k] != after[k]]
        shown = changed[:3] if section == "tensors" else changed
        changes += [f"{k} was {before[k]}, is {after[k]}" for k in shown]
        if len(changed) > len(shown):
            changes.append(f"{len(changed) - len(shown)} more tensors differ")
    if changes:
        raise TrainingError(f"{folder} holds another run: {'; '.join(changes)} - {WAY_OUT}")


def order_checksum(batches: Sequence[Sequence[int]]) -> int:
    """Give a checksum of the batches of one epoch: their examples, order and borders."""
    checksum = 0
    for indices in batches:
        checksum = crc32(np.asarray([len(indices), *indices], dtype=np.int64).tobytes(), checksum)
    return checksum


def save_run(
    folder: Path,
    state: SavedState,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, Any],
    device: torch.device,
    ranks: Ranks,
    average: Average | None = None,
) -> None:
    """Save a run so that `load_run` finds this state or, after a kill in between, the one saved before.

    Of several processes all must call this: the first one writes, with the generators of every one.
    """
    generators = ranks.gather(random_state(device))
    if not ranks.main:
        return
    room = folder / "resume"
    tensors = {f"model.{name}": tensor for name, tensor in named_tensors(model).items()}
    for name, parameter in trained_by(optimizer).items():
        tensors |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.tensors.items()}
    tensor_file = room / f"step-{state.step:08d}.safetensors"
    again = tensor_file.exists()  # of a state that stands at the same step, whose tensors are the same
    _write_tensors(tensor_file, tensors)
    content = {
        "format": FORMAT,
        "tensors": tensor_file.name,
        "state": dataclasses.asdict(state),  # type: ignore[call-overload]
        "random": generators if ranks.size > 1 else generators[0],
        "identity": identity,
    }
    try:
        # Not indented: the generators hold thousands of numbers.
        state_file = write_atomically(room / "state.json", json.dumps(content, ensure_ascii=False) + "\n")
    except OSError:
        if not again:
            tensor_file.unlink()  # nothing names it, and the disk may be full
        raise
    for path in room.iterdir():
        if path not in (tensor_file, state_file):
            path.unlink()


def read_state(folder: Path, kind: type[StateT], *, identity: Mapping[str, Any]) -> StateT | None:
    """Give where the folder's run stands, its tensors left alone; None where nothing is saved.

    Raises TrainingError where the saved run is another one, or damaged.
    """
    state_file = folder / "resume" / "state.json"
    if not state_file.exists():
        return None
    with _damage(state_file):
        return kind.from_json(_content(folder, state_file, kind, identity)["state"])


def load_run(
    folder: Path,
    *,
    kind: type[StateT],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, Any],
    device: torch.device,
    ranks: Ranks,
    average: Average | None = None,
) -> StateT | None:
    """Put model, optimiser, average and generators into the folder's saved state and give it; None without one.

    kind: of state. Values are copied into the model's own memory, since memory-mapped tensors are aligned differently
    and give other last digits. Raises TrainingError where the saved run is another one, or damaged.
    """
    state_file = folder / "resume" / "state.json"
    if not state_file.exists():
        return None
    with _damage(state_file):
        content = _content(folder, state_file, kind, identity)
        tensors = safetensors.torch.load_file(state_file.with_name(content["tensors"]))
        _copy_into(named_tensors(model), {k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
        for name, parameter in trained_by(optimizer).items():
            prefix = f"optimizer.{name}."
            saved = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            if saved:
                optimizer.state[parameter] = {k: fresh(v, like=parameter) for k, v in saved.items()}
        if average is not None:
            _copy_into(average.tensors, {k[8:]: v for k, v in tensors.items() if k.startswith("average.")})
        state = kind.from_json(content["state"])
        set_random_state(content["random"] if ranks.size == 1 else content["random"][ranks.rank], device)
    return state


def _content(folder: Path, state_file: Path, kind: type[StateT], identity: Mapping[str, Any]) -> dict[str, Any]:
    """Give what state.json holds, checked; of several processes, `random` has the generators of each."""
    content: dict[str, Any] = read_json(state_file)
    wanted = {"identity": IDENTITY, "tensors": str, "state": kind, "random": dict[str, Any] | list[dict[str, Any]]}
    check_saved(state_file, content, wanted)
    check_identity(folder, content["identity"], identity)
    return content


@contextlib.contextmanager
def _damage(state_file: Path) -> Iterator[None]:
    """Turn what reading a damaged save ends in into a TrainingError."""
    try:
        yield
    except DAMAGE as error:
        raise TrainingError(f"{state_file.parent} cannot be resumed, it is damaged: {error} - {WAY_OUT}") from error


def save_best(folder: Path, model: nn.Module, *, epoch: int) -> None:
    """Write the model's parameters and buffers to best.safetensors, with the epoch in its metadata."""
    _write_tensors(folder / "best.safetensors", named_tensors(model), metadata={"epoch": str(epoch)})


def best_saved_epoch(folder: Path) -> int | None:
    """Give the epoch whose weights best.safetensors holds; None where it is absent or unreadable."""
    try:
        with safetensors.safe_open(folder / "best.safetensors", framework="pt") as file:
            return int((file.metadata() or {})["epoch"])
    except (OSError, KeyError, ValueError, safetensors.SafetensorError):
        return None


def load_best(folder: Path, model: nn.Module, *, epoch: int) -> None:
    """Copy best.safetensors into the model; raises TrainingError unless it holds the weights of that epoch."""
    found = best_saved_epoch(folder)
    if found != epoch:
        held = "is missing or damaged" if found is None else f"holds epoch {found}"
        raise TrainingError(f"{folder / 'best.safetensors'} should hold epoch {epoch}, but {held} - {WAY_OUT}")
    _copy_into(named_tensors(model), safetensors.torch.load_file(folder / "best.safetensors"))


def discard_saves(folder: Path) -> None:
    """Remove what a run could be resumed from."""
    room = folder / "resume"
    if room.exists():
        # First the file that makes the rest count: a kill in between leaves no half of a state.
        (room / "state.json").unlink(missing_ok=True)
        shutil.rmtree(room)


def forget_run(folder: Path) -> None:
    """Remove what a run has left in a folder, and nothing else."""
    # First what makes the rest count: after a kill in between, it is the rubbish that the next one removes.
    (folder / "fit.json").unlink(missing_ok=True)
    discard_saves(folder)
    for name in RUN_FILES:
        (folder / name).unlink(missing_ok=True)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Give name -> tensor of all parameters and buffers, each once however often it is shared."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def trained_by(optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """Give name -> parameter of all that an optimiser moves."""
    groups = optimizer.param_groups
    return {name: p for group in groups for name, p in zip(group["param_names"], group["params"], strict=True)}


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None) -> Path:
    """Write tensors beside the path and rename, straight from their memory: a big model is not held twice."""
    with written_beside(path) as beside, plain_os_errors(path):
        safetensors.torch.save_file({name: _whole(tensor) for name, tensor in tensors.items()}, beside, metadata)
    return path


def _whole(tensor: Tensor) -> Tensor:
    plain = tensor.detach().cpu().contiguous()
    # safetensors refuses views that share a storage.
    return plain if plain.untyped_storage().nbytes() == plain.nbytes else plain.clone()


@torch.no_grad()
def _copy_into(targets: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    if targets.keys() != saved.keys():
        raise ValueError(f"the saved tensors differ in {', '.join(sorted(targets.keys() ^ saved.keys()))}")
    for name, target in targets.items():
        target.copy_(saved[name])


def fresh(value: Tensor, *, like: Tensor) -> Tensor:
    """Give a copy of a value of the optimiser in memory of its own, laid out like the parameter it belongs to."""
    if value.shape == like.shape:
        return torch.empty_like(like, dtype=value.dtype, requires_grad=False).copy_(value)
    return value.to(like.device, copy=True)


def _base64(state: Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def _unbase64(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
