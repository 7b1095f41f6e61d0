"""Un-sharing and sharing: the one line, for thrice's own models and for transformers' ALBERT."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from thrice.errors import SharingError

if TYPE_CHECKING:
    from torch import nn

    from thrice.model.encoder import Encoder

__all__ = ["share", "unshare"]

ModelT = TypeVar("ModelT", bound="nn.Module")


def unshare(model: ModelT, pattern: str = "none") -> ModelT:
    """Give the same model, with layers that shared weights now having equal weights of their own.

    model: an encoder of thrice, a model that holds one as `.encoder`, or any torch module that holds a transformers
    ALBERT, with or without a head. It is changed in place and gives the same outputs bit for bit. pattern: what stays
    shared: "none", or "attention", "ffn", "groups=K", "cycle=K", an explicit map (`thrice.sharing.patterns`); stock
    models take what their config can say.

    Un-share BEFORE building the optimiser: one that was built before goes on training the first copy alone.

    A model that shares nothing is returned as it is, and a WARNING of the logger "thrice" says so.
    Raises SharingError where the pattern would change the outputs, does not fit, or the model is none of these.

    >>> from transformers import AlbertConfig, AlbertModel
    >>> tiny = dict(vocab_size=9, embedding_size=4, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    >>> model = unshare(AlbertModel(AlbertConfig(num_hidden_layers=3, **tiny)))
    >>> model.config.num_hidden_groups, len(model.encoder.albert_layer_groups)
    (3, 3)
    """
    from thrice.sharing import stock, transform

    encoder = _own_encoder(model)
    if encoder is None:
        return stock.unshare_stock(model, pattern)
    transform.unshare(encoder, pattern)
    return model


def share(model: ModelT, pattern: str, *, method: str = "mean") -> ModelT:
    """Give the same model, in which calls share blocks as the pattern says; this changes what it computes.

    model: an encoder of thrice, or a model that holds one as `.encoder`; changed in place. method: "mean" of the blocks
    that now become one, or the "first" of them. `thrice.sharing.transform.max_difference` measures the change. Share
    BEFORE building the optimiser.
    Raises SharingError for a pattern or method that does not fit, and for stock models.
    """
    from thrice.sharing import transform

    encoder = _own_encoder(model)
    if encoder is None:
        raise SharingError(
            f"share takes thrice's own models, got {type(model).__name__}. - load it with thrice.load(name), share and "
            "save it: stock code reads the saved folder"
        )
    transform.share(encoder, pattern, method=method)
    return model


def _own_encoder(model: nn.Module) -> Encoder | None:
    """Give thrice's encoder, the model itself or its `.encoder`; None for other torch modules."""
    from torch import nn

    from thrice.model.encoder import Encoder

    if not isinstance(model, nn.Module):
        raise SharingError(
            f"expected a model, got {type(model).__name__}. - a name or folder is loaded first: thrice.load(name), or "
            "AutoModel.from_pretrained(name) of transformers"
        )
    return next((part for part in (model, getattr(model, "encoder", None)) if isinstance(part, Encoder)), None)
