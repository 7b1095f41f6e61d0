"""Towers beside the encoder - a generator, a proposal network - written with a model and taken over from one."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from thrice.checkpoints import load
from thrice.errors import CheckpointError
from thrice.model.encoder import Encoder
from thrice.objectives.model import PretrainingModel


def tower_files(model: PretrainingModel) -> dict[str, dict[str, Tensor]]:
    """Give file name -> tensors of each tower that no stock class holds; the others are folders of their own."""
    stock = model.stock_encoders()
    return {_file(name): dict(tower.state_dict()) for name, tower in model.towers.items() if name not in stock}


def take_over(model: PretrainingModel, folder: Path) -> dict[str, bool]:
    """Give each tower the weights that a folder has for it; gives tower -> whether it had any that fit.

    A tower that the folder lacks, has in another shape, or with other tables where it is to share the encoder's, keeps
    its fresh weights.
    Raises CheckpointError where its file is damaged.
    """
    return {name: _taken(name, tower, folder, main=model.encoder) for name, tower in model.towers.items()}


def _taken(name: str, tower: nn.Module, folder: Path, *, main: Encoder) -> bool:
    file = folder / _file(name)
    if isinstance(tower, Encoder) and (folder / name / "config.json").is_file():
        held = load(str(folder / name)).state_dict()
    elif file.is_file():
        try:
            held = load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}. - download or copy it again?") from error
    else:
        return False
    wanted = tower.state_dict()
    if {key: tensor.shape for key, tensor in held.items()} != {key: tensor.shape for key, tensor in wanted.items()}:
        return False
    tied = {id(parameter) for parameter in main.parameters()}
    of_both = [key for key, parameter in tower.named_parameters() if id(parameter) in tied]
    if not all(torch.equal(held[key], wanted[key]) for key in of_both):  # they would change the main encoder
        return False
    tower.load_state_dict(held)  # copies into memory of the tower's own
    return True


def _file(name: str) -> str:
    return f"{name}.safetensors"
