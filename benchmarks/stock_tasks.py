"""The losses of thrice's tasks on transformers' own classes: dynamic padding, equal weights, the same head.

Where a stock class has the head (sequence, token, span, masked-language), it is the class's own; the two heads of
triples, which none has, are copies on `AutoModel`. A stock class with a masked-language head gives logits of every
token; the *careful* variant lets the head see only the rows that the loss reads, as thrice does.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers.utils import logging

from thrice.data.tokenizer import Tokenizer
from thrice.finetune import save_model
from thrice.model.conditional import draw_subjects
from thrice.model.packing import PackedBatch
from thrice.model.pointer import pointer_loss
from thrice.tasks.base import TaskModel
from thrice.tasks.classification import ClassificationBatch
from thrice.tasks.fewshot import FewShotBatch
from thrice.tasks.reading import ReadingBatch
from thrice.tasks.regression import Regression, RegressionBatch
from thrice.tasks.spans import NOT_LEARNED, SpanBatch
from thrice.tasks.tagging import TaggingBatch
from thrice.tasks.triples import TriplesBatch

CLASSES = {
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "spans": "AutoModelForQuestionAnswering",
    "reading": "AutoModelForMaskedLM",
    "fewshot": "AutoModelForMaskedLM",
    "triples": "AutoModel",
}


@dataclass(frozen=True)
class Sequences:
    """The token sequences of a batch as a stock collator has them, before padding."""

    ids: list[Tensor]
    """One tensor per sequence, in the caller's order."""
    types: list[Tensor]
    """Segments of their tokens."""
    prefixes: Tensor | None
    """(B,) tokens that see one another under UniLM's mask; None where every token sees all."""
    row: Tensor
    """(T,) the sequence of each packed token."""
    column: Tensor
    """(T,) its place there."""


def sequences_of(packed: PackedBatch) -> Sequences:
    """Give the sequences of a packed batch in the caller's order."""
    order = torch.argsort(packed.starts)
    lengths = torch.tensor(packed.lengths)
    own = lengths[torch.argsort(order)].tolist()
    slices = [slice(start, start + length) for start, length in zip(packed.starts.tolist(), own, strict=True)]
    prefixes = None if packed.prefix_lengths is None else torch.tensor(packed.prefix_lengths)[torch.argsort(order)]
    return Sequences(
        [packed.input_ids[part] for part in slices],
        [packed.token_type_ids[part] for part in slices],
        prefixes,
        torch.repeat_interleave(order, lengths),
        packed.position_ids,
    )


@dataclass(frozen=True)
class Padded:
    """A batch as a stock class takes it."""

    inputs: dict[str, Tensor]
    """(B, S) ids, segments and mask; the mask of prefixes is (B, 1, S, S), true where a token sees another."""
    places: Tensor
    """(T,) flat place b * S + s of each packed token."""


def collate(sequences: Sequences, *, pad: int) -> Padded:
    """Pad to the longest sequence of the batch."""
    ids = pad_sequence(sequences.ids, batch_first=True, padding_value=pad)
    types = pad_sequence(sequences.types, batch_first=True)
    lengths = torch.tensor([len(own) for own in sequences.ids])
    column = torch.arange(ids.shape[1])
    mask = column < lengths.unsqueeze(1)
    if sequences.prefixes is not None:
        before = column <= column.unsqueeze(1)
        inside = column < sequences.prefixes.view(-1, 1, 1)
        mask = (mask.unsqueeze(1) & (inside | before)).unsqueeze(1)
    inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    return Padded(inputs, sequences.row * ids.shape[1] + sequences.column)


@dataclass(frozen=True)
class Stock:
    """A stock model with equal weights, what it has beside, and the task whose loss it computes."""

    model: Any
    """Of transformers, in eval mode: dropout is off on both sides."""
    head: nn.Module | None
    """A copy of the head that no stock class has."""
    task: Any
    """Of thrice: its settings, and the formulas behind the head."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All weights."""
        return [*self.model.parameters(), *(self.head.parameters() if self.head else ())]

    def states(self, padded: Padded) -> Tensor:
        """Give (B * S, H), hidden states of every place."""
        base = getattr(self.model, self.model.base_model_prefix, self.model)
        states: Tensor = base(**padded.inputs).last_hidden_state
        return states.flatten(0, 1)

    def token_logits(self, padded: Padded, rows: Tensor, *, careful: bool) -> Tensor:
        """Give masked-language logits of packed rows; careful: of no others."""
        places = padded.places[rows]
        if not careful:
            logits: Tensor = self.model(**padded.inputs).logits
            return logits.flatten(0, 1)[places]
        head = self.model.predictions if hasattr(self.model, "predictions") else self.model.cls
        chosen: Tensor = head(self.states(padded)[places])
        return chosen


def same_model(model: TaskModel, tokenizer: Tokenizer) -> Stock:
    """Give the stock model of the folder that a task's model is saved to."""
    with tempfile.TemporaryDirectory() as place:
        folder = save_model(model, Path(place) / "model", tokenizer)
        logging.disable_progress_bar()
        kind = getattr(transformers, CLASSES[model.task.name])
        more = {"add_pooling_layer": False} if model.task.name == "triples" else {}
        stock = kind.from_pretrained(folder, attn_implementation="sdpa", **more).eval()
    return Stock(stock, copy.deepcopy(model.head), model.task)


def loss_of(stock: Stock, padded: Padded, batch: Any, *, careful: bool = False) -> Tensor:
    """Give the loss that thrice's task gives of the same examples."""
    rows_matter = stock.task.name in ("reading", "fewshot")
    more = {"careful": careful} if rows_matter else {}
    return LOSSES[stock.task.name](stock, padded, batch, **more)


def _classification(stock: Stock, padded: Padded, batch: ClassificationBatch) -> Tensor:
    logits = stock.model(**padded.inputs).logits
    if len(logits) > batch.num_examples:  # the chunks of a document
        sums = logits.new_zeros(batch.num_examples, logits.shape[1]).index_add(0, batch.owner, logits)
        logits = sums / torch.bincount(batch.owner).unsqueeze(1)
    return F.cross_entropy(logits, batch.targets)


def _regression(stock: Stock, padded: Padded, batch: RegressionBatch) -> Tensor:
    task: Regression = stock.task
    # Mean and spread are folded into the saved layer.
    outputs = (stock.model(**padded.inputs).logits.squeeze(-1) - task.mean) / task.spread
    return F.mse_loss(outputs, batch.targets)


def _tagging(stock: Stock, padded: Padded, batch: TaggingBatch) -> Tensor:
    labels = torch.full_like(padded.inputs["input_ids"], -100).flatten()
    labels[padded.places[batch.rows]] = batch.targets
    loss: Tensor = stock.model(**padded.inputs, labels=labels.view_as(padded.inputs["input_ids"])).loss
    return loss


def _spans(stock: Stock, padded: Padded, batch: SpanBatch) -> Tensor:
    outputs = stock.model(**padded.inputs)
    logits = torch.stack([outputs.start_logits, outputs.end_logits])
    # The class itself lets padding take part in its softmax: the loss would hang on the longest text of the batch.
    logits = logits.masked_fill(~padded.inputs["attention_mask"], -torch.inf)
    losses = [F.cross_entropy(own, batch.targets[:, i], ignore_index=NOT_LEARNED) for i, own in enumerate(logits)]
    return torch.stack(losses).mean()


def _reading(stock: Stock, padded: Padded, batch: ReadingBatch, *, careful: bool) -> Tensor:
    return F.cross_entropy(stock.token_logits(padded, batch.rows, careful=careful), batch.targets)


def _fewshot(stock: Stock, padded: Padded, batch: FewShotBatch, *, careful: bool) -> Tensor:
    words = batch.words
    logits = stock.token_logits(padded, batch.gaps.flatten(), careful=careful).log_softmax(-1)
    chances = logits.view(*batch.gaps.shape, -1)[:, words.places, words.tokens].masked_fill(~words.real, 0).sum(-1)
    return F.cross_entropy((chances @ words.share).mean(1), batch.targets)


def _triples(stock: Stock, padded: Padded, batch: TriplesBatch) -> Tensor:
    rows = dataclasses.replace(batch.rows, index=padded.places[batch.rows.index])
    head: Any = stock.head
    if stock.task.head == "pointer":
        return pointer_loss(head(stock.states(padded), rows), batch.pairs)
    seen: list[Tensor] = []
    norm = last_norm(stock.model)
    hook = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    states = stock.states(padded)
    hook.remove()
    subjects = draw_subjects(batch.gold, [[0.0, 0.0]] * batch.num_examples)  # as thrice draws them in eval mode
    loss: Tensor = head.loss(states, seen[-1].flatten(0, 1), rows, batch.gold, subjects)
    return loss


def last_norm(model: Any) -> nn.Module:
    """Give the LayerNorm of an ALBERT's feed-forward block; the one that all its calls share is called last too."""
    norm: nn.Module = model.encoder.albert_layer_groups[-1].albert_layers[-1].full_layer_layer_norm
    return norm


LOSSES: Mapping[str, Callable[..., Tensor]] = {
    "classification": _classification,
    "regression": _regression,
    "tagging": _tagging,
    "spans": _spans,
    "reading": _reading,
    "fewshot": _fewshot,
    "triples": _triples,
}
