"""Stock folders in, stock folders out: read, write and look into checkpoints of transformers."""

from thrice.checkpoints.automodel import load_any, load_stock, save_stock
from thrice.checkpoints.inspect import inspect
from thrice.checkpoints.load import carried_config, load, load_folder, read_sidecar
from thrice.checkpoints.save import refuse_foreign_folder, refuse_unsavable, save
from thrice.checkpoints.source import ModelSource, require_folder, resolve, zoo_names

__all__ = [
    "ModelSource",
    "carried_config",
    "inspect",
    "load",
    "load_any",
    "load_folder",
    "load_stock",
    "read_sidecar",
    "refuse_foreign_folder",
    "refuse_unsavable",
    "require_folder",
    "resolve",
    "save",
    "save_stock",
    "zoo_names",
]
