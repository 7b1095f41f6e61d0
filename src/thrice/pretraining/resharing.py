"""Sharing that changes between two stages, with what the optimiser has to carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from thrice.objectives.model import PretrainingModel
from thrice.sharing import share, unshare
from thrice.sharing.patterns import describe, parse, refines


def reshare(
    model: PretrainingModel, pattern: str | None, tell: Callable[[str], None] = lambda line: None
) -> Mapping[str, Sequence[str]] | None:
    """Let the main encoder share as a pattern says, and give what its optimiser state becomes; None for no change.

    The value: new parameter -> the parameters of before whose state it takes over. Un-shared, each copy gets the
    weights and the moments of its block. Shared, a block gets the mean of both over its calls.
    """
    encoder = model.encoder
    before = {"attention": encoder.config.attention_map, "ffn": encoder.config.ffn_map}
    if pattern is None:
        return None
    attention_map, ffn_map = parse(pattern, encoder.config.num_calls)
    after = {"attention": attention_map, "ffn": ffn_map}
    if after == before:
        return None
    splits = all(refines(after[room], before[room]) for room in before)
    stored, _ = encoder.parameter_counts()
    if splits:
        unshare(encoder, pattern)
        done = "each copy begins with the weights and the moments of its block"
    else:
        share(encoder, pattern, method="mean")
        done = "a block begins with the mean of the weights and the moments of the blocks it stands for"
    now, _ = encoder.parameter_counts()
    tell(
        f"{'un-shared' if splits else 'shared'}: {describe(*before.values())} becomes {describe(*after.values())}, "
        f"{stored / 1e6:.2f} M parameters stored become {now / 1e6:.2f} M; {done}"
    )
    sources: dict[str, list[str]] = {}
    for room, blocks in (("attention", encoder.attention), ("ffn", encoder.ffn)):
        for number, block in enumerate(blocks):
            olds = [old for old, new in zip(before[room], after[room], strict=True) if new == number]
            olds = olds if len(set(olds)) > 1 else olds[:1]
            for name, _ in block.named_parameters():
                sources[f"encoder.{room}.{number}.{name}"] = [f"encoder.{room}.{old}.{name}" for old in olds]
    return sources
