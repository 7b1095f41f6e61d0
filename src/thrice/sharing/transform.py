"""Sharing and un-sharing of thrice's own encoders, in place: replace a map, copy or average weights."""

from __future__ import annotations

import copy
import functools
import logging
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from thrice.errors import SharingError, nearest
from thrice.sharing.patterns import Map, describe, parse, refines

if TYPE_CHECKING:
    from thrice.model.encoder import Encoder
    from thrice.model.packing import PackedBatch

logger = logging.getLogger(__name__)

ModuleT = TypeVar("ModuleT", bound=nn.Module)

METHODS = ("first", "mean")

# What every module has: registered tensors, parts and hooks, in dicts and sets that belong to it alone.
OWN_TABLES = {name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set)}

# Bytes. Matrix kernels choose their path, and so the last digit of a sum, by where a tensor starts modulo this.
ALIGNMENT = 64


def unshare(encoder: Encoder, pattern: str = "none") -> Encoder:
    """Give the same encoder, in which calls that shared a block now have equal blocks of their own.

    pattern: how calls share afterwards (`thrice.sharing.patterns`); it must refine the present sharing. Outputs stay
    equal bit for bit. The first call of a block keeps the block's module; the others get copies in fresh memory with
    its dtype, device, `requires_grad`, hooks and train/eval mode. Gradients of a split block are set to None.

    Un-share BEFORE building the optimiser: an optimiser keeps the parameters it was given, and would go on to train
    the first copy alone.

    An encoder that already shares so is returned as it is, with a WARNING of the logger "thrice.sharing.transform".
    Raises SharingError where the pattern does not fit or would make calls share that differ now.
    """
    config = encoder.config
    attention_map, ffn_map = parse(pattern, config.num_calls)
    now = describe(config.attention_map, config.ffn_map)
    if (attention_map, ffn_map) == (config.attention_map, config.ffn_map):
        logger.warning("nothing to un-share: the sharing of this encoder is %r already", now)
        return encoder
    if not (refines(attention_map, config.attention_map) and refines(ffn_map, config.ffn_map)):
        raise SharingError(
            f"{pattern!r} would make calls share that differ now ({now!r}), and so change the outputs: un-sharing only "
            f"splits. - thrice.share(encoder, {pattern!r}) does that"
        )
    _replace_blocks(encoder, attention_map, ffn_map, method="first")
    return encoder


def share(encoder: Encoder, pattern: str, *, method: str = "mean") -> Encoder:
    """Give the same encoder, in which calls share blocks as the pattern says.

    method: "mean" gives a block the mean, taken in float64, of the blocks that its calls use now, one term per call;
    "first" gives it the block of its first call. Both give equal blocks back unchanged, so that share(unshare(x)) is x
    bit for bit. Where the blocks differ, outputs change: `max_difference` measures by how much. Share BEFORE building
    the optimiser. Gradients of replaced blocks are set to None.
    Raises SharingError for a pattern or method that nobody knows.
    """
    if method not in METHODS:
        raise SharingError(f"no method called {method!r} to share blocks; {nearest(method, METHODS)}")
    attention_map, ffn_map = parse(pattern, encoder.config.num_calls)
    _replace_blocks(encoder, attention_map, ffn_map, method=method)
    return encoder


def max_difference(encoder: Encoder, other: Encoder, batch: PackedBatch) -> float:
    """Give the largest absolute difference of the two encoders' hidden states (T, H) over a packed batch.

    Dropout is off meanwhile; neither encoder is changed. NaN where either gives NaN.
    """
    modes = {module: module.training for each in (encoder, other) for module in each.modules()}
    try:
        encoder.eval()
        other.eval()
        with torch.no_grad():
            return float((encoder(batch) - other(batch)).abs().max())
    finally:
        for module, training in modes.items():
            module.training = training


def copied(module: ModuleT) -> ModuleT:
    """Give a module like this one with parameters and buffers of its own and everything else by reference.

    Not `copy.deepcopy`, which copies what the modules point to as well: config objects (so that later changes to the
    model's config no longer reach the copy), the recorders that hooks are bound to, cached tensors with a history (it
    raises). What points back into the module - a bound method as hook, a patched `forward`, a list of its layers -
    points into the copy afterwards. Tensors tied inside the module stay tied; `.grad` starts as None.
    """
    twins: dict[int, Any] = {}
    # A module un-shared inside inference_mode would otherwise get parameters that nobody can train.
    with torch.inference_mode(False):
        for part in module.modules():
            twins[id(part)] = type(part).__new__(type(part))
            for tensor in (*part._parameters.values(), *part._buffers.values()):
                if tensor is not None and id(tensor) not in twins:
                    twins[id(tensor)] = _twin_tensor(tensor)
    for part in module.modules():
        # A compiled call belongs to the module it was compiled for.
        state = {name: value for name, value in vars(part).items() if name != "_compiled_call_impl"}
        for name in OWN_TABLES & state.keys():
            table = state[name]
            pairs = ((key, _rebound(held, twins)) for key, held in table.items()) if isinstance(table, dict) else table
            state[name] = type(table)(pairs)
        vars(twins[id(part)]).update({name: _rebound(value, twins) for name, value in state.items()})
        for tensor in part._parameters.values():
            if tensor is not None:
                _copy_tensor_hooks(tensor, twins)
    return twins[id(module)]


def _replace_blocks(encoder: Encoder, attention_map: Map, ffn_map: Map, *, method: str) -> None:
    config = encoder.config
    for blocks, old_map, new_map in (
        (encoder.attention, config.attention_map, attention_map),
        (encoder.ffn, config.ffn_map, ffn_map),
    ):
        new = _new_blocks(blocks, old_map, new_map, method=method)
        del blocks[:]
        blocks.extend(new)
    encoder.config = config.replace(attention_map=attention_map, ffn_map=ffn_map)


def _new_blocks(blocks: nn.ModuleList, old_map: Map, new_map: Map, *, method: str) -> list[nn.Module]:
    """Build the blocks of the new map; the first to come from an old block keeps its module."""
    sources = [[old for old, new in zip(old_map, new_map, strict=True) if new == j] for j in range(max(new_map) + 1)]
    # All means before the first write: an old block may go into several new ones.
    averaged = [method == "mean" and len(set(olds)) > 1 for olds in sources]
    means = [_mean([blocks[old] for old in olds]) if mean else {} for olds, mean in zip(sources, averaged, strict=True)]
    firsts = [olds[0] for olds in sources]
    new = [copied(blocks[old]) if old in firsts[:j] else blocks[old] for j, old in enumerate(firsts)]
    for j, block in enumerate(new):
        with torch.no_grad():
            for name, value in means[j].items():
                block.get_parameter(name).copy_(value)
        if len(set(sources[j])) > 1 or firsts.count(firsts[j]) > 1:
            block.zero_grad(set_to_none=True)
    return new


def _mean(blocks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Give name -> mean parameter of equally built blocks, in the first one's dtype."""
    named = [dict(block.named_parameters()) for block in blocks]
    return {name: _mean_tensor([each[name].detach() for each in named]) for name in named[0]}


def _mean_tensor(tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0].double()
    # As a correction to the first: a sum of n equal float64 numbers divided by n is not always that number.
    shift = torch.zeros_like(first)
    for tensor in tensors[1:]:
        shift += tensor.to(first.device).double() - first
    mean = first + shift / len(tensors)
    # Where the mean is the first, take the first itself: 0.0 added to -0.0 loses the sign.
    return torch.where(mean == first, tensors[0], mean.to(tensors[0].dtype))


def _twin_tensor(tensor: Tensor) -> Tensor:
    values = tensor.detach()
    place = values.data_ptr() % ALIGNMENT if values.device.type == "cpu" and values.is_contiguous() else 0
    if place and place % values.element_size() == 0:
        # Weights that transformers maps from a file start anywhere; measured: a layer called with one token gives other
        # last digits (1e-7) with a copy that starts elsewhere modulo 64 bytes.
        room = torch.empty(values.numel() + ALIGNMENT, dtype=values.dtype, device=values.device)
        start = (place - room.data_ptr()) % ALIGNMENT // values.element_size()
        twin = room[start : start + values.numel()].view(values.shape).copy_(values)
    else:
        twin = values.clone()
    if isinstance(tensor, nn.Parameter):
        twin = nn.Parameter(twin, requires_grad=tensor.requires_grad)
    twin.__dict__.update(tensor.__dict__)
    return twin


def _copy_tensor_hooks(tensor: Tensor, twins: Mapping[int, Any]) -> None:
    """Give the twin of a parameter the hooks on its gradient."""
    twin, wanted = twins[id(tensor)], tensor.requires_grad
    # torch refuses hooks on a frozen tensor, and keeps those of a tensor that is frozen later.
    twin.requires_grad_(wanted or bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks))
    if not twin._backward_hooks:
        for hook in (tensor._backward_hooks or {}).values():
            twin.register_hook(_rebound(hook, twins))
    if not twin._post_accumulate_grad_hooks:
        for hook in (tensor._post_accumulate_grad_hooks or {}).values():
            twin.register_post_accumulate_grad_hook(_rebound(hook, twins))
    twin.requires_grad_(wanted)


def _rebound(value: Any, twins: Mapping[int, Any]) -> Any:
    """Give the value itself or, where it points at something that has a twin, one that points at the twin."""
    if id(value) in twins:
        return twins[id(value)]
    if isinstance(value, types.MethodType):
        owner = _rebound(value.__self__, twins)
        return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
    if isinstance(value, functools.partial):
        args, keywords = _rebound(value.args, twins), _rebound(value.keywords, twins)
        if args is value.args and keywords is value.keywords:
            return value
        bound = functools.partial(value.func, *args, **keywords)
        vars(bound).update(vars(value))
        return bound
    if type(value) in (list, tuple):
        items = [_rebound(item, twins) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    if type(value) is dict:
        held = {key: _rebound(item, twins) for key, item in value.items()}
        return value if all(held[key] is value[key] for key in held) else held
    # torch wraps hooks on loading that want their module together with a weak reference to it.
    module = getattr(value, "module", None)
    if isinstance(module, weakref.ref) and id(module()) in twins:
        wrapped = copy.copy(value)
        wrapped.module = weakref.ref(twins[id(module())])
        return wrapped
    return value
