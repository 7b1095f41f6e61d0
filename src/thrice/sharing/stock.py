"""Un-sharing of transformers' own ALBERT objects, in place: the one line for people who train with stock code."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from thrice.errors import SharingError
from thrice.model.config import canonical
from thrice.sharing.patterns import Map, describe, parse, refines, stock_albert_map
from thrice.sharing.transform import copied

if TYPE_CHECKING:
    from transformers.models.albert.modeling_albert import AlbertTransformer

logger = logging.getLogger(__name__)

ModelT = TypeVar("ModelT", bound=nn.Module)

# Stock families whose every layer has its own weights.
UNSHARED_FAMILIES = ("bert", "electra", "roberta")

# Wrappers that hold lists or shards of the present parameters and would never hear of new ones.
WRAPPERS = ("DeepSpeedEngine", "DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel")

# Packages that replace layers by modules of their own, whose weights are not plain parameters or are keyed by name.
LAYER_PACKAGES = ("auto_gptq", "awq", "bitsandbytes", "gptqmodel", "hqq", "optimum", "peft", "torchao")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """What happens to one AlbertTransformer."""

    transformer: AlbertTransformer
    """The module that calls the groups."""
    sources: tuple[nn.Module, ...]
    """For every new group, the present group that the first step using it calls now."""


def unshare_stock(model: ModelT, pattern: str = "none") -> ModelT:
    """Give the same object, with layers that shared weights now having equal weights of their own.

    model: any transformers ALBERT class, or any torch module that holds one or several. It is changed in place: the
    outputs stay equal bit for bit, `config.num_hidden_groups` is updated, `num_hidden_layers` and `inner_group_num`
    stay, everything outside the layer groups stays (MLM ties too). pattern: "none" for one group per step, or any other
    name of a map that a stock config with these two numbers can say (`groups=K`, for one).

    The first step of a group keeps the group's module and parameters; the copies share its config object and its hooks
    (by reference; one that is bound to the layer is bound to the copy) and have its dtype, device, `requires_grad` and
    train/eval mode. A hook's handle from before removes it from the first copy only. Gradients of a shared
    layer are sums over its calls, which no single copy owns: they are set to None.

    Un-share BEFORE building the optimiser, wrapping the model for several processes, quantising it or attaching
    adapters: those keep the parameters they saw first. For `Trainer`, pass the un-shared model or un-share inside
    `model_init`. Two models built from one config object share that object: give each its own before un-sharing one.

    A model that shares nothing is returned as it is, with a WARNING of the logger "thrice.sharing.stock".
    Raises SharingError where the pattern would change outputs (it is no refinement of the present sharing), where no
    stock config can say it, and where the model holds no ALBERT or has been wrapped, quantised or given adapters.
    Source: `ALBERT_Unshared` of bojone/bert4keras; the group formula is that of `AlbertTransformer.forward`.
    """
    from transformers.models.albert.modeling_albert import AlbertTransformer

    transformers = [module for module in model.modules() if isinstance(module, AlbertTransformer)]
    if not transformers:
        _has_own_layers(model, pattern)
        return model
    _refuse_prepared(model)
    plans = [plan for transformer in transformers if (plan := _plan(transformer, pattern)) is not None]
    if not plans:
        # The trap that this package closes: stock loading fills groups that the file lacks with random numbers.
        hint = "if num_hidden_groups was raised by hand while loading, the added groups are random: load without it"
        logger.warning(
            "nothing to un-share: the sharing of this %s is %r already (%s)", type(model).__name__, pattern, hint
        )
    # Configs come last: two transformers may hold the same one.
    for plan in plans:
        _rebuild(plan)
    for plan in plans:
        for config in _configs_of(plan.transformer, model):
            config.num_hidden_groups = len(plan.sources)
    return model


def _plan(transformer: AlbertTransformer, pattern: str) -> _Plan | None:
    """Work out the new groups; None where they are the present ones."""
    config, groups = transformer.config, transformer.albert_layer_groups
    steps, inner = config.num_hidden_layers, config.inner_group_num
    if len(groups) != config.num_hidden_groups:
        raise SharingError(
            f"the config says num_hidden_groups={config.num_hidden_groups}, the model has {len(groups)} groups: do two "
            "models hold one config object, one of them un-shared? - give each its own, copy.deepcopy(config)"
        )
    called = [groups[group] for group in stock_albert_map(steps, config.num_hidden_groups, 1)]
    # By identity, not by number: a list that holds one module several times is shared too.
    numbers = canonical(tuple(id(group) for group in called))
    present = tuple(number * inner + n for number in numbers for n in range(inner))
    attention, ffn = parse(pattern, steps * inner)
    if attention == ffn == present:
        return None
    now = describe(present, present)
    if not (refines(attention, present) and refines(ffn, present)):
        raise SharingError(
            f"{pattern!r} would make layers share that differ now ({now!r}), and so change the outputs: un-sharing "
            f"only splits. - thrice.share(thrice.load(...), {pattern!r}) does that to thrice's own models"
        )
    if attention != ffn or not _stock_can_say(attention, steps, inner):
        raise SharingError(
            f"no stock ALBERT config with num_hidden_layers={steps} and inner_group_num={inner} can say {pattern!r}: "
            "whole layers share, and the group of step i is int(i / (layers / groups)); stock saving refuses tied "
            f"groups. - thrice.load(..., sharing={pattern!r}) has it, pattern 'none' works here"
        )
    firsts = [attention.index(block) // inner for block in range(0, max(attention) + 1, inner)]
    return _Plan(transformer=transformer, sources=tuple(called[step] for step in firsts))


def _stock_can_say(wanted: Map, steps: int, inner: int) -> bool:
    stored = max(wanted) + 1
    return stored % inner == 0 and stock_albert_map(steps, stored // inner, inner) == wanted


def _rebuild(plan: _Plan) -> None:
    """Put the new groups in place; the first use of every present group keeps its module."""
    taken: set[int] = set()
    new: list[nn.Module] = []
    for source in plan.sources:
        parameters = list(source.parameters())
        split = any(id(parameter) in taken for parameter in parameters)
        new.append(copied(source) if split else source)
        taken.update(id(parameter) for parameter in parameters)
        if split:
            for parameter in parameters:
                parameter.grad = None
    groups = plan.transformer.albert_layer_groups
    del groups[:]
    groups.extend(new)


def _configs_of(transformer: AlbertTransformer, model: nn.Module) -> list[Any]:
    """Give every ALBERT config object that speaks of this transformer, from the modules inside and around it."""
    from transformers import AlbertConfig

    inside = set(transformer.modules())
    speaks = [module for module in model.modules() if module in inside or transformer in set(module.modules())]
    configs = {id(module.__dict__.get("config")): module.__dict__.get("config") for module in speaks}
    return [config for config in configs.values() if isinstance(config, AlbertConfig)]


def _has_own_layers(model: nn.Module, pattern: str) -> None:
    """Say that the model has nothing to un-share; raise where that is not known or not what was asked for."""
    from transformers import PreTrainedModel

    stock = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    families = {module.config.model_type for module in stock}
    name = type(model).__name__
    if not families & set(UNSHARED_FAMILIES):
        raise SharingError(
            f"{name} holds no transformers ALBERT{f' but {sorted(families)}' if families else ''}: unshare takes "
            "AlbertModel, every AlbertFor... class, a torch module that holds one, or an encoder of thrice.load"
        )
    depths = [module.config.num_hidden_layers for module in stock if module.config.model_type in UNSHARED_FAMILIES]
    if any(parse(pattern, depth) != parse("none", depth) for depth in depths):
        raise SharingError(
            f"{name} shares nothing, so {pattern!r} would change its outputs. - thrice.share(thrice.load(...), "
            f"{pattern!r}) does that to thrice's own models"
        )
    logger.warning("nothing to un-share: every layer of this %s has its own weights already", name)


def _refuse_prepared(model: nn.Module) -> None:
    """Raise SharingError, with every reason, where something already holds on to the shared parameters."""
    problems: set[str] = set()
    for module in model.modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        package, _, rest = type(module).__module__.partition(".")
        if wrapped := kinds & set(WRAPPERS):
            problems.add(f"it is wrapped by {min(wrapped)}")
        if package in LAYER_PACKAGES or (package == "torch" and rest.startswith("ao.")):
            problems.add(f"{type(module).__module__}.{type(module).__name__} is part of it")
        if getattr(module, "hf_quantizer", None) is not None:
            problems.add(f"{type(module).__name__} is quantised")
        for name, parameter in module.named_parameters(recurse=False):
            if type(parameter) is not nn.Parameter or hasattr(parameter, "ds_id"):
                problems.add(f"{name} of {type(module).__name__} is no plain parameter but {type(parameter).__name__}")
            elif parameter.is_meta and hasattr(module, "_hf_hook"):
                problems.add(f"{name} of {type(module).__name__} is offloaded")
    if problems:
        raise SharingError(
            f"cannot un-share this {type(model).__name__}: {'; '.join(sorted(problems))}. - un-share the plain model "
            "first, then wrap, quantise or adapt it"
        )
