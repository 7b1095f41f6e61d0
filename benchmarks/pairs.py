"""The same model twice: thrice's encoder and transformers' own class, with equal weights, and proof that they are."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from thrice.checkpoints import load, save
from thrice.checkpoints.save import stock_config, stock_tensors
from thrice.model import attention
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.packing import pack
from thrice.registry import plugin

Sequences = list[list[int]]
Loss = Callable[[Sequences], torch.Tensor]


def same_weights(config: EncoderConfig, *, dropout: float = 0.0, **stock_changes: Any) -> tuple[Encoder, Any]:
    """Give a random encoder with a sequence head, and the stock model of the folder it is saved to; both train.

    dropout: of hidden states, attention weights and classifier. stock_changes: entries of the stock config that are
    changed, such as hidden_act or attn_implementation (sdpa unless given).
    transformers' AlbertLayer builds a dropout after its feed-forward block and never applies it. thrice applies it, as
    Google's code does; here it is taken out, so that both sides draw the same number of masks (see `dropout_sites`).
    """
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")
    encoder = Encoder(config.replace(**dict.fromkeys(rates, dropout)), heads=("sequence",))
    with tempfile.TemporaryDirectory() as place:
        folder = save(encoder, Path(place) / "model")
        logging.disable_progress_bar()
        changes = {"attn_implementation": "sdpa", **stock_changes}
        stock = AutoModelForSequenceClassification.from_pretrained(folder, **changes)
        encoder = load(str(folder))
    if config.family == "albert":
        for block in encoder.ffn:
            block.dropout = torch.nn.Identity()
    return encoder.train(), stock.train()


def packed_logits(encoder: Encoder, sequences: Sequences) -> torch.Tensor:
    """Give the logits of a batch through thrice, packing included."""
    batch = pack(sequences).to(encoder.embeddings.word_embeddings.weight.device)
    return encoder.heads["sequence"](encoder(batch)[batch.starts])


def padded(sequences: Sequences, *, pad: int = 0) -> dict[str, torch.Tensor]:
    """Give a batch as stock classes want it, padded to its longest sequence."""
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), pad)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def packed_loss(encoder: Encoder) -> Loss:
    """Give the loss of a batch through thrice, packing included."""

    def loss(sequences: Sequences) -> torch.Tensor:
        logits = packed_logits(encoder, sequences)
        return torch.nn.functional.cross_entropy(logits, targets(sequences).to(logits.device))

    return loss


def padded_loss(stock: Any) -> Loss:
    """Give the loss of a batch through transformers, padding included."""

    def loss(sequences: Sequences) -> torch.Tensor:
        batch = padded(sequences, pad=stock.config.pad_token_id or 0) | {"labels": targets(sequences)}
        return stock(**{name: value.to(stock.device) for name, value in batch.items()}).loss

    return loss


def targets(sequences: Sequences) -> torch.Tensor:
    """Give labels that depend on the texts alone."""
    return torch.tensor([sum(s) % 2 for s in sequences])


def check_equal(encoder: Encoder, stock: Any, sequences: Sequences) -> None:
    """Compare the loss and every gradient, matched by the checkpoint's name table; exit where they differ."""
    losses = []
    for loss in (packed_loss(encoder), padded_loss(stock)):
        value = loss(sequences)
        value.backward()
        losses.append(value.item())
    ours = stock_gradients(encoder)
    worst = 0.0
    for name, parameter in stock.named_parameters():
        theirs = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        worst = max(worst, float((ours.pop(name) - theirs).abs().max() / theirs.abs().max().clamp_min(1e-3)))
    if ours or abs(losses[0] - losses[1]) > 1e-5 or worst > 1e-4:
        raise SystemExit(
            f"the sides do not compute the same: losses {losses}, largest gradient difference {worst:.2e} of the "
            f"parameter's largest, without a partner: {sorted(ours)}"
        )
    for model in (encoder, stock):
        model.zero_grad(set_to_none=True)


def stock_gradients(encoder: Encoder) -> dict[str, torch.Tensor]:
    """Give the gradients of an encoder under the names that transformers gives its parameters."""
    twin = copy.deepcopy(encoder)
    for parameter, original in zip(twin.parameters(), encoder.parameters(), strict=True):
        parameter.data = torch.zeros_like(original) if original.grad is None else original.grad
    form = plugin("checkpoints.formats", encoder.config.family)
    return stock_tensors(twin, form, stock_config(twin, form, {}))


def dropout_sites(model: torch.nn.Module, run: Callable[[], Any]) -> dict[str, int]:
    """Count the masks that one training pass of one text draws: "hidden" by modules, "attention" by calls.

    transformers calls torch's kernel with a probability; thrice draws the words of each mask itself.
    """
    counted = {"hidden": 0, "attention": 0}
    kernel, words = torch.nn.functional.scaled_dot_product_attention, attention.random_words

    def count(module: torch.nn.Module, *_: Any) -> None:
        counted["hidden"] += module.p > 0  # type: ignore[operator]

    def counted_kernel(*arguments: Any, **options: Any) -> torch.Tensor:
        counted["attention"] += options.get("dropout_p", 0) > 0
        return kernel(*arguments, **options)

    def counted_words(shape: Any) -> torch.Tensor:
        counted["attention"] += 1
        return words(shape)

    hooks = [m.register_forward_hook(count) for m in model.modules() if type(m).__name__.endswith("Dropout")]
    torch.nn.functional.scaled_dot_product_attention = counted_kernel
    attention.random_words = counted_words
    try:
        run()
    finally:
        torch.nn.functional.scaled_dot_product_attention = kernel
        attention.random_words = words
        for hook in hooks:
            hook.remove()
    return counted
