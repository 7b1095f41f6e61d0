"""Fine-tuning tasks: one file each, found by the registry."""
