"""Controlled comparisons: one set of data, order, head and budget for all arms, every seed and every cost shown."""
