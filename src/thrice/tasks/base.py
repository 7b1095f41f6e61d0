"""What every fine-tuning task gives: examples from records, batches, a head, a loss, predictions and a score.

Data flow: record (a row of a file) -> example -> `encode` -> TaskData -> `batch` -> the model's loss or predictions ->
`score`. A task is one file in this folder with a module-level `PLUGIN`; its object holds what was learned from the
training rows (label names and the like) and nothing of any model, so one object serves every arm of a comparison.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from thrice.data.batching import prediction_batches
from thrice.data.readers import Table
from thrice.data.tokenizer import Tokenizer
from thrice.model.stock import AnyEncoder

TASK_HEAD = "task_head.safetensors"
"""The file, beside the stock one, of a head that no stock class has."""
Prediction = dict[str, Any]
"""What a task says about one example, ready for JSON: "prediction", the answer, and whatever explains it."""


class TaskBatch(Protocol):
    """Whatever a task wants to see of some examples at once; the packed batch and the gold answers, mostly."""

    num_examples: int
    """Examples in the batch; several sequences may belong to one."""

    def to(self, device: torch.device) -> TaskBatch:
        """Give the same batch on a device."""
        ...


class TaskData(Protocol):
    """Encoded examples of one file."""

    lengths: np.ndarray
    """(n,) tokens of each example, over all its sequences."""
    num_cut: int
    """Examples that lost tokens to the maximum length."""

    def __len__(self) -> int:
        """Give the number of examples."""
        ...

    def batch(self, indices: Sequence[int] | np.ndarray) -> Any:
        """Give the examples of these indices as one batch, in this order."""
        ...


class Task(ABC):
    """One kind of fine-tuning. Options of a task are the keyword arguments of its `learn`."""

    name: ClassVar[str]
    """What people type after --task."""
    summary: ClassVar[str]
    """One sentence for `thrice list tasks`."""
    answers: ClassVar[tuple[str, ...]] = ("prediction",)
    """Keys of a prediction: columns that `thrice predict` adds."""
    zero_shot: ClassVar[bool] = False
    """Whether an un-tuned checkpoint can answer: no weight of the task is new, and its options say all there is."""

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Names that `score` gives and --metric may pick, higher is better; the first is the default."""

    @classmethod
    @abstractmethod
    def learn(cls, table: Table, **options: Any) -> Task:
        """Give a task from the training rows: which columns, which labels. Raises DataError, ConfigError."""

    @abstractmethod
    def describe(self) -> str:
        """Give one line on what was learned from the training rows, for a reader to see a mistake early."""

    @abstractmethod
    def read(self, table: Table, *, gold: bool = True) -> list[Any]:
        """Give one example per row; with gold, rows without a valid answer raise DataError, all named at once."""

    @abstractmethod
    def from_texts(self, texts: Sequence[Any]) -> list[Any]:
        """Give examples without answers from what a caller in Python has: strings, or pairs of them."""

    @abstractmethod
    def split_key(self, row: dict[str, Any]) -> tuple[str, str | list[str]]:
        """Give the text by which duplicates of a row are found, and the label or labels a split keeps in proportion."""

    @abstractmethod
    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer) -> TaskData:
        """Give the examples as token sequences."""

    @abstractmethod
    def build_head(self, encoder: AnyEncoder, generator: torch.Generator) -> nn.Module | None:
        """Equip an encoder that still carries the checkpoint's heads.

        Heads that a stock class has go into `encoder.heads`, so that saving writes them under their stock names; heads
        that the task has no use for are taken out. A module that no stock class has is returned: it becomes
        `model.head` and is saved beside the stock file.
        """

    @abstractmethod
    def loss(self, model: TaskModel, batch: Any) -> Tensor:
        """Give the mean loss over the batch's examples, in nats."""

    def loss_weight(self, batch: Any) -> float:
        """Give what the mean of `loss` was divided by: the examples, unless a task says otherwise.

        Parts of a batch then make up the whole, loss(whole) * weight(whole) = sum of loss(part) * weight(part), and
        several processes may share it. A mean over tokens is divided by tokens, a weighted one by the sum of weights.
        """
        return float(batch.num_examples)

    @abstractmethod
    def predict(self, model: TaskModel, batch: Any) -> list[Prediction]:
        """Give one prediction per example, in the batch's order."""

    @abstractmethod
    def score(self, predictions: Sequence[Prediction], examples: Sequence[Any]) -> dict[str, Any]:
        """Give all `metrics`, details for a report, and "collapsed": whether all answers are in effect one answer."""

    def tuned(self, predict: Callable[[], list[Prediction]], examples: Sequence[Any]) -> Task:
        """Give the task with what it chooses on the dev examples once training is over, such as a threshold.

        predict: gives the finished model's predictions for them; most tasks choose nothing and do not ask.
        """
        return self

    def counts(self, predictions: Sequence[Prediction], examples: Sequence[Any]) -> np.ndarray | None:
        """Give what each example adds to the metrics, (n, k) float64, or None: no interval over test items then.

        A metric is a function of their sum (`from_counts`), which lets a comparison draw other test items.
        """
        return None

    def from_counts(self, metric: str, sums: np.ndarray) -> np.ndarray:
        """Give a metric, (...), from summed counts (..., k): what `score` gives, and 0 where nothing was counted."""
        raise NotImplementedError(f"{self.name} gives counts and does not say how {metric} follows from them")

    def shown(self, example: Any) -> dict[str, str]:
        """Give "text", the example as a reader should see it, and "gold", its answer, both whole."""
        return {"text": str(example), "gold": ""}

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Give what `restore` needs, as JSON values: it travels in the saved folder."""

    @classmethod
    @abstractmethod
    def restore(cls, settings: dict[str, Any]) -> Task:
        """Give the task that gave these settings."""

    def as_saved(self, model: TaskModel) -> AbstractContextManager[None]:
        """Hold a model in the form in which it is saved, for as long as the context lasts: it is so already, mostly.

        `restore` gives a task that takes the saved form for what it is.
        """
        return nullcontext()

    @abstractmethod
    def stock_config(self) -> dict[str, Any]:
        """Give the entries of a stock config.json that the task decides, such as id2label."""

    def settled(self, encoder: AnyEncoder) -> Task:
        """Give the task as this checkpoint does it: itself, unless something was left open that its heads decide."""
        return self

    def validate(self, encoder: AnyEncoder) -> None:  # noqa: B027 - most tasks ask nothing of a checkpoint
        """Raise ConfigError, naming what works, where the task cannot be done with this checkpoint."""


class TaskModel(nn.Module):
    """An encoder equipped for a task: what training, prediction and saving work on.

    The encoder is the caller's own and is changed: the task takes out heads it has no use for and puts in its own.
    `task` is the caller's, settled for this encoder; `head` is what it brings beside those, a module that no stock
    class has, or None.
    seed: draws the head's weights, the same for every encoder of the same width.
    """

    def __init__(self, encoder: AnyEncoder, task: Task, *, seed: int = 0) -> None:
        super().__init__()
        task = task.settled(encoder)
        task.validate(encoder)
        self.task = task
        self.encoder = encoder
        self.head = task.build_head(encoder, torch.Generator().manual_seed(seed))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.encoder.parameters()).device

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether training computes the encoder's calls twice instead of keeping what is inside them."""
        return self.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, wanted: bool) -> None:
        self.encoder.gradient_checkpointing = wanted

    def loss(self, batch: TaskBatch) -> Tensor:
        """Give the mean loss over the batch's examples."""
        return self.task.loss(self, batch)

    def loss_weight(self, batch: TaskBatch) -> float:
        """Give what the mean of `loss` was divided by."""
        return self.task.loss_weight(batch)

    def layer_depths(self) -> dict[str, int]:
        """Give parameter name -> depth for layer-wise decay: 0 embeddings, 1..N by the last call, N + 1 heads."""
        depths = {f"encoder.{name}": depth for name, depth in self.encoder.layer_depths().items()}
        top = self.encoder.config.num_calls + 1
        return {name: depths.get(name, top) for name, _ in self.named_parameters()}

    @torch.no_grad()
    def predict(
        self,
        data: TaskData,
        *,
        max_tokens: int = 4096,
        on_batch: Callable[[int], None] | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> list[Prediction]:
        """Give one prediction per example, in the data's order, without touching the training mode.

        max_tokens: tokens of one batch; examples are sorted by length over the whole data. on_batch: told how many
        examples each batch finished, for a progress bar. share: (i, n) answers batches i, i + n, i + 2n, ... and leaves
        the predictions of the others empty, for n processes that do this together.
        """
        was_training = self.training
        if was_training:  # walking over all modules takes longer than a short text
            self.eval()
        predictions: list[Prediction] = [{}] * len(data)
        for indices in prediction_batches(data.lengths, max_tokens=max_tokens)[share[0] :: share[1]]:
            answers = self.task.predict(self, data.batch(indices).to(self.device))
            for i, answer in zip(indices, answers, strict=True):
                predictions[int(i)] = answer
            if on_batch is not None:
                on_batch(len(indices))
        if was_training:
            self.train()
        return predictions


def keep_heads(encoder: AnyEncoder, names: Sequence[str]) -> None:
    """Take all heads but these out of the encoder: a head no loss uses would be saved and optimised for nothing."""
    for name in [n for n in encoder.heads if n not in names]:
        del encoder.heads[name]


@functools.cache
def options_of(task: type[Task]) -> tuple[str, ...]:
    """Give the names of a task's options, the keyword arguments of its `learn`."""
    import inspect

    return tuple(p for p in inspect.signature(task.learn).parameters if p not in ("cls", "table"))
