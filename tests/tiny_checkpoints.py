"""Tiny encoders with random weights, and ways to spoil the folders they are saved in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from thrice.checkpoints.name_map import bits_equal
from thrice.model.config import EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.packing import pack
from thrice.sharing.patterns import parse

HEADS = {
    "bert": ["pooler", "mlm", "sentence_pair", "token", "span", "sequence"],
    "roberta": ["pooler", "mlm", "token", "span", "sequence"],
    "albert": ["pooler", "mlm", "sentence_pair", "token", "span", "sequence"],
    "electra": ["mlm", "rtd", "token", "span", "sequence"],
}


def tiny_config(family: str, pattern: str = "none", **changes: Any) -> EncoderConfig:
    attention_map, ffn_map = parse(pattern, 4)
    narrow = family in ("albert", "electra")
    values: dict[str, Any] = {
        "family": family,
        "vocab_size": 20,
        "embedding_size": 4 if narrow else 8,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "attention_map": attention_map,
        "ffn_map": ffn_map,
        "max_position_embeddings": 16,
        "embedding_projection": narrow,
        "position_offset": 2 if family == "roberta" else 0,
        "pad_token_id": 1 if family == "roberta" else 0,
    }
    return EncoderConfig(**{**values, **changes})


def tiny_encoder(family: str, pattern: str = "none", *, heads: list[str] | None = None, **changes: Any) -> Encoder:
    """Give an encoder with every parameter random."""
    encoder = Encoder(tiny_config(family, pattern, **changes), heads=heads or [])
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return encoder.eval()


def same_bits(one: Encoder, other: Encoder) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return set(ours) == set(theirs) and all(bits_equal(ours[name], theirs[name]) for name in ours)


def change_tensors(folder: Path, change: Any) -> None:
    """Rewrite model.safetensors after `change` had the dict of tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def outputs(encoder: Encoder) -> Tensor:
    with torch.no_grad():
        return encoder(pack([[2, 5, 9, 3], [2, 7, 3], [2, 11, 12, 13, 14, 3]]))


def shard(folder: Path, *, ending: str) -> Path:
    """Split model.safetensors into two shards with an index; gives the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem = "model" if ending == "safetensors" else "pytorch_model"
    files = {name: f"{stem}-{1 + i % 2:05d}-of-00002.{ending}" for i, name in enumerate(tensors)}
    for file in set(files.values()):
        part = {name: tensor for name, tensor in tensors.items() if files[name] == file}
        save_file(part, folder / file) if ending == "safetensors" else torch.save(part, folder / file)
    index = folder / f"{stem}.{ending}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return index
