"""Measure what a learned mask proposal does to the variance of the gradient, on the model that it was trained with.

    python benchmarks/mask_variance.py work/mpn --corpus work/held_out

The model is a folder of `thrice pretrain` with the objective mpn, its proposal.safetensors beside it.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from thrice.data.segments import PretrainingExample
from thrice.objectives.mask_variance import measure_mask_variance
from thrice.pretraining import recipe_of
from thrice.pretraining.materials import prepare, stream_of
from thrice.pretraining.recipe_file import read_recipe


def measure(folder: Path, corpus: Path, *, rate: float, texts: int, draws: int, max_length: int, seed: int) -> str:
    """Give a row of the table for one rate of masks."""
    content = read_recipe(str(folder / "recipe.toml"))
    content |= {"model": {"from": str(folder)}, "corpus": {"train": str(corpus)}}
    content["stages"] = [{"objectives": ["mpn"], "max_length": max_length}]
    content["objectives"] = {"mpn": {**content.get("objectives", {}).get("mpn", {}), "rate": rate}}
    materials = prepare(recipe_of(content, name=str(folder)))
    if not materials.taken.get("proposal"):
        raise SystemExit(f"{folder} has no proposal.safetensors that fits its recipe")
    batches = stream_of(materials.train, materials.recipe, 0, seed=seed).batches()
    every = itertools.chain.from_iterable(examples for examples, _ in batches)
    whole: list[PretrainingExample] = list(
        itertools.islice((example for example in every if len(example.input_ids) == max_length), texts)
    )
    found = measure_mask_variance(materials.model, whole, draws=draws, seed=seed)
    masked = max(1, round(rate * max_length))
    uniform, proposal = found.uniform, found.proposal
    return (
        f"| {max_length} | {masked} | {uniform.batch:.4g} | {uniform.masks:.4g} | {proposal.masks:.4g} "
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
