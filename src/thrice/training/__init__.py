"""Training: a config, an optimiser, schedules and a loop that resumes; of a model it knows parameters and a loss."""

from thrice.training.config import TrainingConfig
from thrice.training.loop import fit
from thrice.training.progress import training_progress
from thrice.training.result import FitResult
from thrice.training.schedule import SCHEDULES, parse_schedule

__all__ = ["SCHEDULES", "FitResult", "TrainingConfig", "fit", "parse_schedule", "training_progress"]
