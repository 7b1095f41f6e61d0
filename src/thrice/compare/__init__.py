"""Controlled comparisons: the same data, order, head and budget for every arm, every seed shown, every cost measured."""
