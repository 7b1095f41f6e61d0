"""Pre-training objectives: one file each, found by the registry; none so far."""
