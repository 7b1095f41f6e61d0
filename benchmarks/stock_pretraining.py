"""Pre-training losses on transformers' own classes with equal weights, padded or in filled rows.

*Padded*: each batch to its longest sequence, logits of every place, as the classes compute their own loss.
*Filled*: as an expert does it: sequences side by side in rows of one width, under a block-diagonal mask and with
positions that begin anew; the masked-language head sees the chosen rows and no others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from stock_tasks import Padded, Sequences, collate, sequences_of
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.utils import logging

from thrice.checkpoints import save
from thrice.model.packing import PackedBatch
from thrice.objectives.model import PretrainingBatch, PretrainingModel
from thrice.objectives.rtd import ReplacedTokenDetection

NOT_LEARNED = -100
CLASSES = {"albert": "AlbertForMaskedLM", "bert": "BertForMaskedLM"}
Layout = Callable[[PackedBatch], Padded]


def padded(packed: PackedBatch) -> Padded:
    """Lay a batch out with one row for each sequence, as wide as the longest."""
    return collate(sequences_of(packed), pad=0)


def filled(packed: PackedBatch, *, width: int) -> Padded:
    """Lay a batch out in rows of that width, longest sequences first, each in the first row with room for it."""
    sequences = sequences_of(packed)
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(sequences.ids)), key=lambda i: -len(sequences.ids[i])):
        size = len(sequences.ids[i])
        fitting = (row for row, left in enumerate(room) if left >= size)
        row = next(fitting, len(rows))
        if row == len(rows):
            rows.append([])
            room.append(width)
        rows[row].append(i)
        room[row] -= size
    return _side_by_side(sequences, rows, width)


def _side_by_side(sequences: Sequences, rows: list[list[int]], width: int) -> Padded:
    ids, types, positions = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    owner = torch.full((len(rows), width), -1)  # padding sees padding: a query that sees nothing gives no number
    first = torch.zeros(len(sequences.ids), dtype=torch.long)
    for row, inside in enumerate(rows):
        start = 0
        for i in inside:
            part = slice(start, start + len(sequences.ids[i]))
            ids[row, part], types[row, part] = sequences.ids[i], sequences.types[i]
            positions[row, part] = torch.arange(len(sequences.ids[i]))
            owner[row, part] = i
            first[i] = row * width + start
            start = part.stop
    inputs = {
        "input_ids": ids,
        "token_type_ids": types,
        "position_ids": positions,
        "attention_mask": (owner.unsqueeze(1) == owner.unsqueeze(2)).unsqueeze(1),
    }
    return Padded(inputs, first[sequences.row] + sequences.column)


@dataclass(frozen=True)
class StockMaskedLM:
    """A stock class with a masked-language head."""

    model: Any
    layout: Layout
    """Of its batches."""
    gathers: bool
    """Whether its head sees the chosen rows alone."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All weights, each once."""
        return list(self.model.parameters())

    def prepared(self, batch: PretrainingBatch) -> Any:
        """Give what the class is called with, made before the clock starts."""
        part = batch.parts["mlm"]
        return self._masked(part.packed, part.positions, part.targets)

    def places(self, prepared: Any) -> int:
        """Give the places of a batch, padding included."""
        ids: Tensor = prepared[0]["input_ids"]
        return ids.numel()

    def loss(self, prepared: Any) -> Tensor:
        """Give the mean cross entropy of the chosen tokens."""
        inputs, places, targets, labels = prepared
        if not self.gathers:
            whole: Tensor = self.model(**inputs, labels=labels).loss
            return whole
        states = getattr(self.model, self.model.base_model_prefix)(**inputs).last_hidden_state
        return F.cross_entropy(self._head(states.flatten(0, 1)[places]), targets)

    def _masked(self, packed: PackedBatch, positions: Tensor, targets: Tensor) -> Any:
        laid = self.layout(packed)
        places = laid.places[positions]
        labels = torch.full_like(laid.inputs["input_ids"], NOT_LEARNED)
        labels.view(-1)[places] = targets
        return laid.inputs, places, targets, labels

    def _head(self, rows: Tensor) -> Tensor:
        model = self.model
        if hasattr(model, "generator_lm_head"):
            logits: Tensor = model.generator_lm_head(model.generator_predictions(rows))
            return logits
        head = model.predictions if hasattr(model, "predictions") else model.cls
        chosen: Tensor = head(rows)
        return chosen


@dataclass(frozen=True)
class StockElectra:
    """Both stock towers with the embeddings tied. Its samples are given: it draws none, which thrice's step does."""

    generator: StockMaskedLM
    discriminator: Any
    source: PretrainingModel
    """Whose samples it takes."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All weights, each once."""
        return list(nn.ModuleList([self.generator.model, self.discriminator]).parameters())

    def prepared(self, batch: PretrainingBatch) -> Any:
        """Give what both classes are called with, made before the clock starts."""
        part = batch.parts["rtd"]
        with torch.no_grad():
            found = objective_of(self.source).replace(self.source, part, batch.clean)
        laid = self.generator.layout(found.packed)
        labels = torch.zeros_like(laid.inputs["input_ids"])
        labels.view(-1)[laid.places] = found.replaced.long()
        masked = self.generator._masked(part.masked.packed, part.masked.positions, part.masked.targets)
        return masked, laid, labels, found.replaced.float()

    def places(self, prepared: Any) -> int:
        """Give the places of a batch, padding included."""
        return self.generator.places(prepared[0])

    def loss(self, prepared: Any) -> Tensor:
        """Give the generator's loss + the weight * the mean binary cross entropy of all real tokens."""
        masked, laid, labels, replaced = prepared
        if self.generator.gathers:
            states = self.discriminator.electra(**laid.inputs).last_hidden_state
            logits = self.discriminator.discriminator_predictions(states).flatten()[laid.places]
            detection = F.binary_cross_entropy_with_logits(logits, replaced)
        else:
            detection = self.discriminator(**laid.inputs, labels=labels).loss
        return self.generator.loss(masked) + objective_of(self.source).discriminator_weight * detection


def objective_of(model: PretrainingModel) -> ReplacedTokenDetection:
    """Give the one objective of a model that detects replaced tokens."""
    (objective,) = model.objectives
    assert isinstance(objective, ReplacedTokenDetection)
    return objective


def same_masked_lm(model: PretrainingModel, layout: Layout, *, gathers: bool, **changes: Any) -> StockMaskedLM:
    """Give the stock class of the folder that a model is saved to; changes: entries of its config."""
    return StockMaskedLM(_stock(model.encoder, CLASSES[model.config.family], **changes), layout, gathers)


def same_electra(model: PretrainingModel, layout: Layout, *, gathers: bool) -> StockElectra:
    """Give both stock towers of the folders that a model is saved to."""
    encoders = model.stock_encoders()
    discriminator = _stock(encoders[""], "ElectraForPreTraining")
    generator = _stock(encoders["generator"], "ElectraForMaskedLM")
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    return StockElectra(StockMaskedLM(generator, layout, gathers), discriminator, model)


def _stock(encoder: Any, class_name: str, **changes: Any) -> Any:
    with tempfile.TemporaryDirectory() as place:
        folder = save(encoder, Path(place) / "model")
        logging.disable_progress_bar()
        kind = getattr(transformers, class_name)
        return kind.from_pretrained(folder, attn_implementation="sdpa", **changes).train()
