"""Recipes of pre-training, found by name: a TOML file each."""
