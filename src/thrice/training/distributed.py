"""Several processes that train one model, each on its share of every batch; alone, all of this does nothing.

A launcher (torchrun, accelerate launch, mpirun) starts the processes; `join` connects them. Every process builds the
same model and walks through the same batches. Of each batch it computes a share, and the gradients are averaged such
that the step is that of one process. The first process is the one that writes and speaks.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, parse_flag_from_env
from torch import Tensor, distributed

from thrice.errors import TrainingError
from thrice.launcher import WORLD_SIZE, is_main, launched

PATIENCE = datetime.timedelta(days=7)
"""How long a process waits for the others, who may be evaluating; the launcher ends all when one of them has died."""

UNSUPPORTED = {
    DistributedType.FSDP: "FSDP, which gives every process a part of the weights",
    DistributedType.DEEPSPEED: "DeepSpeed, which takes over the optimiser",
    DistributedType.MEGATRON_LM: "Megatron-LM, which parts the layers themselves",
    DistributedType.XLA: "XLA, whose steps are not carried out when they are called",
}
"""What Accelerate can do with a model that a run here cannot save, resume or average."""


def join() -> Ranks:
    """Connect this process with those that a launcher started beside it, once, and say which one it is.

    Without a launcher nothing is connected. Raises TrainingError where the launcher did not start what it was asked
    for: `accelerate launch --cpu` starts one process, whatever its --num-processes says.
    """
    half = parse_flag_from_env("ACCELERATE_USE_CPU") and "MASTER_ADDR" in os.environ
    if half and not any(name in os.environ for name in WORLD_SIZE):
        raise TrainingError(
            "accelerate launch --cpu was asked for several processes and started one; start them with "
            "torchrun --nproc-per-node 2 -m thrice ..., or with accelerate launch --multi-gpu --num-processes 2 -m "
            "thrice ..., which on a machine without a GPU uses its CPU"
        )
    if launched() > 1:
        PartialState(cpu=_on_cpu(), timeout=PATIENCE)
    return Ranks.connected()


def leave() -> None:
    """Part from the other processes at the end of a program."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def join_accelerator() -> Accelerator:
    """Give an accelerator over this machine's GPU, else its CPU, and over all processes that were started together."""
    join()
    return Accelerator(cpu=_on_cpu()) if launched() > 1 else Accelerator()


def problems_of(accelerator: Accelerator) -> Iterator[str]:
    """Say what an accelerator does with its processes that a run here cannot follow."""
    if accelerator.distributed_type in UNSUPPORTED:
        kind = UNSUPPORTED[accelerator.distributed_type]
        yield f"{kind}: each process holds the whole model here, or use thrice.model.fsdp in a loop of your own"
    if accelerator.num_processes != launched():
        yield (
            f"{launched()} processes were started and it is one of {accelerator.num_processes}: on a CPU it wants "
            "Accelerator(cpu=True)"
        )


def first_to_fail() -> bool:
    """Report that this process fails, and say whether it is the first one to: that one tells the reader why.

    Others fail by the same error at the same moment, or because they lost the first one.
    """
    if launched() == 1:
        return True
    if not (distributed.is_available() and distributed.is_initialized()):
        return is_main()  # nothing is shared yet, so all read the same words and stumble over the same one
    try:
        store = distributed.distributed_c10d._get_default_store()
        return int(store.add("thrice/failed", 1)) == 1
    except RuntimeError:  # whoever kept the store is gone
        return False


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which of the processes that train together this one is, and what they do together."""

    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1
    """Processes."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where tensors must be for the processes to exchange them."""

    @classmethod
    def connected(cls) -> Ranks:
        """Give what `join` connected; one process where it did not."""
        if launched() == 1:
            return cls()
        state = PartialState()
        return cls(rank=state.process_index, size=state.num_processes, device=state.device)

    @property
    def main(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    @property
    def identity(self) -> dict[str, int]:
        """What a run of several processes adds to its identity: other numbers of them draw and add up otherwise."""
        return {} if self.size == 1 else {"processes": self.size}

    def share(self, indices: Sequence[int], lengths: Sequence[int] | np.ndarray | None) -> Sequence[int]:
        """Give this process's part of a batch, in the batch's order; empty where there are fewer examples than ranks.

        lengths: tokens of every example, by index; None deals the examples out one by one. With them, the longest are
        dealt first and every second round backwards (0 1 1 0 0 1 ...): as many examples for each rank as without, to
        within one, and about as many tokens.
        """
        if self.size == 1:
            return indices
        order = np.arange(len(indices))
        if lengths is not None:
            order = np.argsort(-np.asarray(lengths)[np.asarray(indices)], kind="stable")
        rounds, place = np.divmod(np.arange(len(indices)), self.size)
        owner = np.where(rounds % 2 == 1, self.size - 1 - place, place)
        return [indices[i] for i in sorted(order[owner == self.rank].tolist())]

    def weight(self, own: Sequence[int], batch: Any, model: Any) -> float:
        """Give what the loss of a share was divided by: `model.loss_weight(batch)`, else its examples; 0 of none.

        own: the examples of the share. Of one process nobody asks, and the number means nothing.
        """
        weigh = getattr(model, "loss_weight", None) if self.size > 1 and len(own) else None
        return float(len(own) if weigh is None else weigh(batch))

    def mean(self, loss: Tensor, weight: float) -> tuple[Tensor, float]:
        """Give the loss to call backward on, and the mean loss over all ranks.

        loss: mean over this rank's share. weight: what that mean was divided by, 0 for a rank without examples. The
        gradients are averaged over the ranks afterwards, so a rank's loss is scaled by weight * ranks / sum of the
        weights: the average is then the gradient of the mean over the whole batch.
        """
        value = loss.item()
        if self.size == 1:
            return loss, value
        sums = torch.tensor([value * weight, weight], dtype=torch.float64, device=self.device)
        distributed.all_reduce(sums)
        total, whole = sums.tolist()
        return loss * (weight * self.size / whole), total / whole

    def sum(self, values: Sequence[float]) -> list[float]:
        """Give the sums of all processes' numbers, added up in float64."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(sums)
        added: list[float] = sums.tolist()
        return added

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in one of the processes."""
        if self.size == 1:
            return flag
        raised = torch.tensor([int(flag)], device=self.device)
        distributed.all_reduce(raised, op=distributed.ReduceOp.MAX)
        return bool(raised.item())

    def gather(self, value: Any) -> list[Any]:
        """Give the value of every process, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def from_main(self, value: Any) -> Any:
        """Give the first process's value."""
        if self.size == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values, src=0)
        return values[0]

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.gather(None)

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the first process through before the others: what it leaves in a cache they need not compute."""
        if not self.main:
            self.wait()
        yield
        if self.main:
            self.wait()


def own_seed(seed: int, rank: int) -> int:
    """Give the seed of a rank's generators: the run's own for the first, for the others one of a stream of their own.

    seed + rank would give rank 1 of one run the dropout of rank 0 in the run of the next seed.
    """
    return seed if rank == 0 else int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


def _on_cpu() -> bool:
    """Whether processes exchange tensors in main memory: without it Accelerate, on a machine without a GPU, lets each
    process believe that it is alone."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device is None or device.type == "mps" or bool(parse_flag_from_env("ACCELERATE_USE_CPU"))
