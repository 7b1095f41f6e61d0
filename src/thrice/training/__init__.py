"""Training: a config, an optimiser, schedules and two loops that resume; of a model it knows parameters and a loss."""

from thrice.training.budget import BudgetConfig, BudgetOptimizer, BudgetResult, Stage
from thrice.training.budget_loop import fit_budget
from thrice.training.config import TrainingConfig
from thrice.training.loop import fit
from thrice.training.progress import training_progress
from thrice.training.result import FitResult
from thrice.training.schedule import SCHEDULES, parse_schedule

__all__ = [
    "SCHEDULES",
    "BudgetConfig",
    "BudgetOptimizer",
    "BudgetResult",
    "FitResult",
    "Stage",
    "TrainingConfig",
    "fit",
    "fit_budget",
    "parse_schedule",
    "training_progress",
]
