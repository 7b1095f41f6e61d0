"""thrice trains, un-shares and compares small text encoders, so that people choose by measurement, not by reputation.

import thrice
model = thrice.unshare(AutoModelForSequenceClassification.from_pretrained("albert/albert-base-v2"))  # stock in and out
encoder = thrice.load("albert/albert-base-v2", sharing="none")                                       # the fast encoder
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thrice.checkpoints import inspect, load, save
    from thrice.compare.study_view import StudyResult, read_study
    from thrice.errors import ThriceError
    from thrice.model.config import EncoderConfig
    from thrice.model.encoder import Encoder
    from thrice.model.packing import PackedBatch, pack
    from thrice.predict import load_model
    from thrice.sharing import share, unshare

__version__ = "0.1.0"

# Public name -> the module it lives in; loaded at first use, so that `thrice --help` does not wait for torch.
_HOMES = {
    "Encoder": "thrice.model.encoder",
    "EncoderConfig": "thrice.model.config",
    "PackedBatch": "thrice.model.packing",
    "StudyResult": "thrice.compare.study_view",
    "ThriceError": "thrice.errors",
    "inspect": "thrice.checkpoints",
    "load": "thrice.checkpoints",
    "load_model": "thrice.predict",
    "pack": "thrice.model.packing",
    "read_study": "thrice.compare.study_view",
    "save": "thrice.checkpoints",
    "share": "thrice.sharing",
    "unshare": "thrice.sharing",
}

__all__ = [
    "Encoder",
    "EncoderConfig",
    "PackedBatch",
    "StudyResult",
    "ThriceError",
    "inspect",
    "load",
    "load_model",
    "pack",
    "read_study",
    "save",
    "share",
    "unshare",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'thrice' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
