"""Pre-training objectives: one file each, found by the registry, and the model that they train together."""
