"""Measure what a learned mask proposal does to the variance of the gradient, on the model that it was trained with.

    python benchmarks/mask_variance.py work/mpn --corpus work/held_out

The model is a folder of `thrice pretrain` with the objective mpn, its proposal.safetensors beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from thrice.data.segments import PretrainingExample
from thrice.objectives.mask_variance import measure_mask_variance
from thrice.objectives.masking import number_to_choose
from thrice.pretraining import recipe_of
from thrice.pretraining.materials import prepare, stream_of
from thrice.pretraining.recipe_file import read_recipe

FULL = 0.75
"""Of the length asked for, below which a text is not looked at: the number of masks goes with it."""


def measure(folder: Path, corpus: Path, *, rate: float, texts: int, draws: int, max_length: int, seed: int) -> str:
    """Give a row of the table for one rate of masks."""
    content = read_recipe(str(folder / "recipe.toml"))
    content |= {"model": {"from": str(folder)}, "corpus": {"train": str(corpus)}}
    content["stages"] = [{"objectives": ["mpn"], "max_length": max_length}]
    content["objectives"] = {"mpn": {**content.get("objectives", {}).get("mpn", {}), "rate": rate}}
    materials = prepare(recipe_of(content, name=str(folder)))
    if not materials.taken.get("proposal"):
        raise SystemExit(f"{folder} has no proposal.safetensors that fits its recipe")
    whole: list[PretrainingExample] = []
    for examples, position in stream_of(materials.train, materials.recipe, 0, seed=seed).batches():
        whole += [example for example in examples if len(example.input_ids) >= FULL * max_length]
        if len(whole) >= texts or position.pass_number:
            break
    if len(whole) < texts:
        raise SystemExit(f"{corpus} has {len(whole)} texts of about {max_length} tokens, {texts} were asked for")
    whole = whole[:texts]
    found = measure_mask_variance(materials.model, whole, draws=draws, seed=seed)
    masked = np.mean([number_to_choose(example, rate) for example in whole])
    tokens = np.mean([len(example.input_ids) for example in whole])
    uniform, proposal = found.uniform, found.proposal
    return (
        f"| {tokens:.1f} | {masked:.1f} | {uniform.batch:.4g} | {uniform.masks:.4g} | {proposal.masks:.4g} "
        f"| {1 - found.ratio:+.2%} ± {found.ratio_error:.2%} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.2, 0.02])
    parser.add_argument("--max-length", type=int, default=40)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--draws", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    print("| tokens | masked | var. of texts | var. of masks, uniform | with the proposal | reduction |")
    print("|--:|--:|--:|--:|--:|--:|")
    for rate in chosen.rates:
        rest = {key: getattr(chosen, key) for key in ("texts", "draws", "max_length", "seed")}
        print(measure(chosen.model, chosen.corpus, rate=rate, **rest), flush=True)


if __name__ == "__main__":
    main()
