"""Pre-training from a recipe to a stock folder: the recipe, the run, its evaluation, its warnings and its card."""

from thrice.pretraining.materials import named_tokenizer
from thrice.pretraining.recipe import Recipe
from thrice.pretraining.recipe_file import find_recipe, read_recipe, recipe_names, recipe_of
from thrice.pretraining.run import pretrain

__all__ = ["Recipe", "find_recipe", "named_tokenizer", "pretrain", "read_recipe", "recipe_names", "recipe_of"]
