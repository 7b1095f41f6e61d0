"""What a run's curve warns of, each warning with the likely cause and what to change; and the verdict at its end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]

PLATEAU_SHARE = 0.2
"""Of the budget, before which nobody expects a model to have left the plateau."""
NEAR_UNIGRAM = 0.85
"""Of the unigram entropy: above it a masked-language model has learned little more than frequencies. Measured: the
plateau of small Chinese models lies near 5.9 nats, and a model that has begun to use context falls through 5.5."""
STANDS = 0.03
"""Relative fall over the last quarter of what is spent so far, below which a loss is said to stand."""
RISE = 0.3
"""Nats by which a loss above its best of the same stage says that the run broke."""
PAIR_CHANCE = 0.55
"""Accuracy on pairs up to which a model counts as guessing; between it and 1/2 lies what word order alone betrays."""

LOSSES = {"mlm": "mlm", "mpn": "mpn", "all_token_mlm": "all_token_mlm", "generator_mlm": "rtd"}
"""Loss of guessed tokens -> the objective that it belongs to."""
RTD_CHANCE = 0.55
"""Area under the ROC curve up to which a discriminator counts as guessing."""
MASKED_ACCURACIES = ("mlm_accuracy", "mpn_accuracy", "all_token_mlm_accuracy", "generator_accuracy")
"""Terms that guess tokens; chance in them is the most frequent token."""


def warnings_of(records: Sequence[Record], facts: Mapping[str, float]) -> dict[str, str]:
    """Give kind of warning -> sentence, from the evaluations so far; a pure function, so that a resumed run repeats it.

    facts: `evaluation.frequencies` of the training text.
    """
    if not records:
        return {}
    return dict(_warnings(records, facts))


def _warnings(records: Sequence[Record], facts: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    last = records[-1]
    held = last["held_out"]
    stage = [record for record in records if record["stage"] == last["stage"]]
    for name in [name for name in LOSSES if name in held]:
        if on_plateau(records, facts, name):
            yield (
                f"plateau of {name}",
                f"plateau: the {name} loss stands at {held[name]:.2f} nats, near the unigram entropy of the text "
                f"({facts['unigram_entropy']:.2f}): attention has not learned anything yet. Likely too few steps, "
                "sequences too long, weights drawn too small or a rate too low for this size. Try max_length 40 in the "
                "first stage, model.initializer_range 0.04, a higher learning_rate, "
                f"objectives.{LOSSES[name]}.rate 0.2, no other objective beside it",
            )
        if last["share"] >= PLATEAU_SHARE and held[name] >= (2 - NEAR_UNIGRAM) * facts["unigram_entropy"]:
            yield (
                f"slow start of {name}",
                f"slow start: the {name} loss is {held[name]:.2f} nats, more than the unigram entropy of the text "
                f"({facts['unigram_entropy']:.2f}): not even the frequencies of tokens are learned. Likely a budget of "
                "too few steps, a rate too low or a warm-up too long",
            )
        best = min((r["held_out"][name] for r in stage if name in r["held_out"]), default=math.nan)
        if not held[name] <= best + RISE:
            yield (
                f"collapse of {name}",
                f"collapse: the {name} loss is {held[name]:.2f}, after {best:.2f} at its best in this stage. Likely a "
                "learning rate too high: try a third of it, a longer warm-up, and leave max_grad_norm at 1",
            )
    for name in [name for name in ("sop", "nsp") if name in held]:
        begun = stage[0]["share"]
        if len(stage) > 1 and last["share"] >= begun + (1 - begun) / 3 and at_chance(last, name):
            yield (
                f"chance in {name}",
                f"{name} at chance: {held[f'{name}_accuracy']:.1%} of the pairs right, half by guessing. Likely it "
                "came before the masked-language loss had left its plateau, or its share of the budget is too small. "
                f"Give mlm alone more of the budget first, {name} longer sequences, or more weight (objectives.{name})",
            )
    begun = stage[0]["share"]
    if "rtd_auc" in held and last["share"] >= max(PLATEAU_SHARE, begun + (1 - begun) / 3) and rtd_at_chance(last):
        yield (
            "chance in rtd",
            f"rtd at chance: the area under the curve is {held['rtd_auc']:.3f}, a half by guessing. Likely the "
            "discriminator broke under a rate too high (a curve that was above and fell), has not left its plateau, or "
            "its budget is too small. Try a third of the learning_rate, max_length 40 in the first stage, mlm alone in "
            "it, or more budget",
        )
    yield from _generator(held, facts)


def _generator(held: Mapping[str, float], facts: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Judge the generator of replaced-token detection by how often its token is the true one, and how it is caught."""
    if "rtd" not in held:
        return
    right, auc = held.get("generator_accuracy", math.nan), held.get("rtd_auc", math.nan)
    if right > 0.6:
        yield (
            "generator too strong",
            f"generator too strong: {right:.0%} of its tokens are the true ones, so that few are left to detect. Make "
            "it smaller (objectives.rtd: a quarter of the discriminator's width is usual) or hide more tokens",
        )
    if auc > 0.97 and right < 2 * facts["most_frequent"]:
        yield (
            "generator too weak",
            f"generator too weak: its tokens are betrayed at once (AUC {auc:.3f}) and {right:.1%} of them are the true "
            "ones. Make it wider, or give mlm alone the first stage",
        )


def on_plateau(records: Sequence[Record], facts: Mapping[str, float], name: str) -> bool:
    """Whether a loss stands near what frequencies alone would give.

    It must lie between NEAR_UNIGRAM and 2 - NEAR_UNIGRAM times the unigram entropy and have fallen by less than STANDS
    over the last quarter of what is spent so far, within one stage; before PLATEAU_SHARE of the budget it is too
    early to tell.
    """
    last = records[-1]
    if name not in last["held_out"] or last["share"] < PLATEAU_SHARE:
        return False
    now = last["held_out"][name]
    earlier = [
        r
        for r in records
        if name in r["held_out"] and r["stage"] == last["stage"] and r["share"] <= 0.75 * last["share"]
    ]
    stands = bool(earlier) and now > earlier[-1]["held_out"][name] * (1 - STANDS)
    entropy = facts["unigram_entropy"]
    return bool(NEAR_UNIGRAM * entropy < now < (2 - NEAR_UNIGRAM) * entropy and stands)


def at_chance(record: Record, name: str) -> bool:
    """Whether the accuracy on pairs is no better than guessing: at most PAIR_CHANCE, or within two standard errors."""
    accuracy = record["held_out"][f"{name}_accuracy"]
    pairs = max(record["counts"][f"{name}_accuracy"], 1)
    return bool(not accuracy > max(PAIR_CHANCE, 0.5 + 2 * math.sqrt(0.25 / pairs)))


def rtd_at_chance(record: Record) -> bool:
    """Whether the discriminator finds replaced tokens no better than guessing."""
    return bool(not record["held_out"]["rtd_auc"] > RTD_CHANCE)


def verdict(records: Sequence[Record], facts: Mapping[str, float]) -> dict[str, Any]:
    """Give {"verdict", "reasons", "above_chance"} from the last evaluation: learned, or why that cannot be said.

    The other verdicts: "cannot tell at this scale", "not judged" where chance is known of none of the terms, as with an
    objective of another package, and "not evaluated". Masked accuracy counts as chance up to twice that of always
    saying the most frequent token. above_chance: what was learned, in words. A run with reasons is not to be ranked
    against others.
    """
    if not records:
        return {"verdict": "not evaluated", "reasons": ["the recipe asks for no evaluation"], "above_chance": []}
    last, reasons = records[-1], []
    held = last["held_out"]
    chance = 2 * facts["most_frequent"]
    if not {*MASKED_ACCURACIES, "rtd_auc", "sop", "nsp"} & held.keys():
        unknown = [f"nobody knows what chance gives in {', '.join(held)}"]
        return {"verdict": "not judged", "reasons": unknown, "above_chance": []}
    passed = []
    for name in MASKED_ACCURACIES:
        if name in held and held[name] > chance:
            passed.append(f"{name} {held[name]:.1%}")
        elif name in held:
            reasons.append(
                f"{name} is {held[name]:.1%} on the evaluated text; up to twice the {facts['most_frequent']:.1%} of "
                "always saying the most frequent token it counts as chance"
            )
    for name in [name for name in ("sop", "nsp") if name in held]:
        accuracy = held[f"{name}_accuracy"]
        if at_chance(last, name):
            reasons.append(f"{name}_accuracy is {accuracy:.1%}, near the half of guessing")
        else:
            passed.append(f"{name}_accuracy {accuracy:.1%}")
    if "rtd_auc" in held and rtd_at_chance(last):
        reasons.append(f"rtd_auc is {held['rtd_auc']:.3f}, near the half of guessing")
    elif "rtd_auc" in held:
        passed.append(f"rtd_auc {held['rtd_auc']:.3f}")
    found = "cannot tell at this scale" if reasons else "learned"
    return {"verdict": found, "reasons": reasons, "above_chance": passed}
