"""Tiny folders of families that are not ours: every parameter random, a tokenizer.json of each kind they come with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from conftest import NEGATIVE, POSITIVE

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHARACTERS = sorted(set("".join(POSITIVE + NEGATIVE) + "0123456789"))
FAMILIES = ("deberta-v2", "distilbert", "modernbert", "xlm-roberta")


def stock_config(family: str, **changes: Any) -> Any:
    import transformers

    shape: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 12,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 48,
        "initializer_range": 0.2,
        "pad_token_id": 0,
    }
    if family == "distilbert":
        names = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
        shape = {names.get(key, key): value for key, value in shape.items()}
        shape["hidden_dim"] = shape.pop("intermediate_size")
        return transformers.DistilBertConfig(**shape | changes)
    if family == "deberta-v2":  # what DeBERTa-v3 has, and the convolution of v2
        shape |= {
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "type_vocab_size": 0,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
        }
        return transformers.DebertaV2Config(**shape | changes)
    if family == "modernbert":
        shape |= {"local_attention": 6, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
        return transformers.ModernBertConfig(**shape | changes)
    if family == "xlm-roberta":
        return transformers.XLMRobertaConfig(**shape | {"type_vocab_size": 1} | changes)
    return getattr(transformers, family)(**shape | changes)


def fill(model: Any) -> Any:
    """Draw every parameter at random, norms and biases too; gives the model in eval mode."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms near 1, so that what differs between texts is not scaled away from layer to layer.
            norm = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(1.0 if norm else 0.0, 0.3, generator=generator)
    return model.eval()


def stock_folder(family: str, folder: Path, *, head: str = "AutoModel", **changes: Any) -> Path:
    """Write a folder of random weights, with a head that it was trained with or without one."""
    import transformers

    fill(getattr(transformers, head).from_config(stock_config(family, **changes))).save_pretrained(folder)
    write_tokenizer(family, folder)
    return folder


def write_tokenizer(family: str, folder: Path) -> None:
    """Write the tokenizer.json and the settings that folders of this family hold."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    ids = {token: place for place, token in enumerate([*SPECIAL, *CHARACTERS])}
    if family == "modernbert":
        words = Tokenizer(models.BPE(unk_token="[UNK]"))
        words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        words.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
        trainer.show_progress = False
        words.train_from_iterator(POSITIVE + NEGATIVE, trainer)
    elif family == "distilbert":
        words = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
        words.normalizer = normalizers.BertNormalizer()
        words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        pieces = [(token, 0.0) for token in SPECIAL] + [(c, -2.0 - 0.1 * i) for i, c in enumerate(["▁", *CHARACTERS])]
        words = Tokenizer(models.Unigram(pieces, unk_id=1))
        words.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
        words.pre_tokenizer = pre_tokenizers.Metaspace()
    # Its file states a second type, whether or not the model takes any.
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    named = dict(zip(roles, SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(folder)
