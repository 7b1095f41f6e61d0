"""Any text encoder of transformers with the surface of `Encoder`: it pads at its own edge and runs its stock class.

It lies in this room because tasks work on it, and they see no other: how its folder is found, read and written is told
in `checkpoints.automodel`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from thrice.errors import ConfigError, nearest
from thrice.model.encoder import Encoder, init_weights
from thrice.model.heads import TokenClassificationHead
from thrice.model.packing import PackedBatch

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

AUTO_CLASSES = {"sequence": "AutoModelForSequenceClassification", "token": "AutoModelForTokenClassification"}
"""Head -> the class of transformers whose head it is."""

UNLIMITED = 1 << 20
"""Tokens of one sequence where neither a position table nor the config says how many a model takes."""

# The first name that a stock config has is the one that counts; without any, no dropout is known of.
_DROPOUTS = {
    "hidden_dropout_prob": ("hidden_dropout_prob", "dropout", "mlp_dropout", "hidden_dropout"),
    "attention_probs_dropout_prob": ("attention_probs_dropout_prob", "attention_dropout"),
    "classifier_dropout_prob": ("classifier_dropout", "seq_classif_dropout", "cls_dropout", "classifier_dropout_prob"),
}


@dataclass(frozen=True, kw_only=True)
class StockConfig:
    """What the rest of thrice asks of a config, read from that of a stock class."""

    family: str
    """model_type, such as distilbert."""
    vocab_size: int
    """V: rows of the word table."""
    hidden_size: int
    """H: width of a hidden state."""
    num_calls: int
    """Layers that a token passes."""
    max_length: int
    """Longest sequence, in tokens."""
    type_vocab_size: int
    """Types of tokens that the class tells apart; 1 where it takes none."""
    pad_token_id: int
    """Token id of padding."""
    hidden_dropout_prob: float
    """Probability of dropping an entry of a layer's output, 0 <= p < 1."""
    attention_probs_dropout_prob: float
    """Probability of dropping an attention weight, 0 <= p < 1."""
    classifier_dropout_prob: float
    """Probability of dropping an entry before the classifier, 0 <= p < 1."""
    initializer_range: float
    """Standard deviation of freshly drawn matrices."""

    def replace(self, **changes: Any) -> StockConfig:
        """Give the same config with some values changed."""
        return dataclasses.replace(self, **changes)


class StockEncoder(nn.Module):
    """A text encoder of transformers, over packed batches like `Encoder`, padded inside.

    model: a stock model with a head. given: names of its tensors that came from a checkpoint; a new head is drawn for
    the others. carries: name of the head whose tensors came whole, "sequence" or "token"; None where none did.
    `base` is the stock model without its head, `heads` holds what the stock class has beside it.
    """

    packed = False
    """Whether no padding is computed on."""

    def __init__(self, model: Any, *, given: Collection[str] = (), carries: str | None = None) -> None:
        super().__init__()
        self.base: Any
        self._whole: tuple[Any]
        self.heads = nn.ModuleDict()
        self.given = frozenset(given)
        self._checkpointing = False
        self._hold(model)
        self.config = _read_config(model)
        if carries is not None:
            self._show_head(carries)

    @property
    def model(self) -> Any:
        """The stock model with its head; it shares every module with `base` and `heads`."""
        return self._whole[0]

    def forward(self, batch: PackedBatch) -> Tensor:
        """Give hidden states (T, H) of a packed batch after the last layer."""
        inputs = self._padded(batch)
        hidden: Tensor = self.base(**inputs)[0]
        # Rows are sequences in packed order, so their real tokens are in packed order too.
        return hidden[inputs["attention_mask"].bool()]

    def classify(self, batch: PackedBatch) -> Tensor:
        """Give (B, labels), logits of the stock sequence classifier in the caller's order."""
        if "sequence" not in self.heads:
            raise ConfigError(f"this encoder has no sequence head; it carries: {', '.join(self.heads) or 'none'}")
        logits: Tensor = self.model(**self._padded(batch)).logits
        borders = batch.cumulative_lengths[:-1].to(batch.starts)
        return logits[torch.searchsorted(borders, batch.starts)]

    def add_head(
        self, name: str, *, num_labels: int = 2, tied: bool = True, generator: torch.Generator | None = None
    ) -> nn.Module:
        """Carry the head of the family's own class, sequence or token, in place of the one before, and give it.

        What the checkpoint says of the head is kept, as stock code keeps it, unless it is a head of that kind already
        trained; the rest is drawn by the stock class from the generator's seed (0 where none is given). tied: for
        likeness with `Encoder`.
        Raises ConfigError for other heads, and for a token head that is more than one linear layer.
        """
        config = copy.deepcopy(self.model.config)
        config.num_labels = num_labels
        if name not in AUTO_CLASSES:
            raise ConfigError(
                f"no head called {name!r} for a model that runs through its own transformers class; "
                f"{nearest(name, AUTO_CLASSES)}"
            )
        stock_class = stock_class_of(config, name)
        seed = 0 if generator is None else generator.initial_seed()
        tensors = {key: tensor for key, tensor in self.model.state_dict().items() if key in self.given}
        model, _ = build_stock(stock_class, config, tensors, seed=seed)
        if name == "token" and (more := _beside_classifier(model)):
            raise ConfigError(
                f"{stock_class.__name__} is more than one linear layer ({', '.join(more)}): {self.config.family} has "
                "no first-token or token head here - its own sequence classifier works (--head stock)"
            )
        self._hold(model.train(self.training))
        self.gradient_checkpointing = self._checkpointing
        self._show_head(name)
        if name == "token":
            init_weights(
                self.heads[name],
                std=self.config.initializer_range,
                generator=generator or torch.Generator().manual_seed(0),
            )
        return self.heads[name]

    def parameter_counts(self) -> tuple[int, int]:
        """Give (stored, called) parameters, heads included.

        Called counts what lies in a list of layers once for every time its layer runs, seen on a sequence of two
        tokens: stock ALBERT calls one layer many times.
        """
        calls: dict[str, int] = {}
        layers = {
            f"{name}.{i}": layer
            for name, module in self.base.named_modules()
            if isinstance(module, nn.ModuleList)
            for i, layer in enumerate(module)
        }
        hooks = [
            layer.register_forward_hook(lambda *_, name=name: calls.update({name: calls.get(name, 0) + 1}))
            for name, layer in layers.items()
        ]
        ids = torch.ones(1, 2, dtype=torch.long, device=next(self.parameters()).device)
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad():
                self.base(input_ids=ids, attention_mask=torch.ones_like(ids))
        finally:
            self.train(was_training)
            for hook in hooks:
                hook.remove()
        stored = called = 0
        for name, parameter in self.named_parameters():
            above = [layer for layer in layers if name.startswith(f"base.{layer}.")]
            stored += parameter.numel()
            called += parameter.numel() * max(1, calls.get(max(above, key=len, default=""), 1))
        return stored, called

    def layer_depths(self) -> dict[str, int]:
        """Give parameter name -> depth for layer-wise decay: 0 embeddings, 1..N layers, N + 1 what comes after.

        Raises ConfigError where the class does not hold one list of all its layers.
        """
        total = self.config.num_calls
        stacks = [n for n, m in self.base.named_modules() if isinstance(m, nn.ModuleList) and len(m) == total]
        if not stacks:
            raise ConfigError(
                f"layerwise_decay below 1 needs a class that stores its {total} layers one by one; "
                f"{type(self.base).__name__} does not - set layerwise_decay to 1"
            )
        start = f"base.{min(stacks, key=lambda name: name.count('.'))}."
        depths = {}
        for name, _ in self.named_parameters():
            if name.startswith(start):
                depths[name] = int(name.removeprefix(start).partition(".")[0]) + 1
            else:
                depths[name] = 0 if name.startswith("base.") and "embed" in name else total + 1
        return depths

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether training computes the layers twice instead of keeping what is inside them."""
        return self._checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, wanted: bool) -> None:
        if wanted and not self.model.supports_gradient_checkpointing:
            raise ConfigError(
                f"{type(self.base).__name__} cannot compute its layers twice; leave --gradient-checkpointing out"
            )
        if wanted:
            self.base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        elif self._checkpointing:
            self.base.activation_checkpointing_disable()
        self._checkpointing = wanted

    def train(self, mode: bool = True) -> StockEncoder:
        """Set the training mode, that of the stock model too."""
        super().train(mode)
        self.model.training = mode
        return self

    def _hold(self, model: Any) -> None:
        """Take in a stock model: its base as `base`, the whole of it without registering its parameters twice."""
        self.heads.clear()
        self.base = model.base_model
        self._whole = (model,)

    def _show_head(self, name: str) -> None:
        model = self.model
        if name == "token":
            head = TokenClassificationHead(self.config, num_labels=model.config.num_labels)
            head.classifier = model.classifier
            self.heads[name] = head
            return
        parts = {key: child for key, child in model.named_children() if child is not self.base}
        self.heads[name] = nn.ModuleDict(parts)

    def _padded(self, batch: PackedBatch) -> dict[str, Tensor]:
        """Give input_ids, attention_mask and, where the class tells types apart, token_type_ids, each (B, S)."""
        ids = batch.input_ids
        lengths = torch.tensor(batch.lengths, device=ids.device)
        real = torch.arange(batch.lengths[0], device=ids.device) < lengths.unsqueeze(1)
        inputs = {
            "input_ids": ids.new_full(real.shape, self.config.pad_token_id).masked_scatter(real, ids),
            "attention_mask": real.long(),
        }
        if self.config.type_vocab_size > 1:
            inputs["token_type_ids"] = ids.new_zeros(real.shape).masked_scatter(real, batch.token_type_ids)
        return inputs


AnyEncoder = Encoder | StockEncoder
"""What a task works on."""


def stock_class_of(config: PreTrainedConfig, head: str) -> type[PreTrainedModel]:
    """Give the class of transformers with that head for a config; raises ConfigError where its family has none."""
    import transformers

    mapping = getattr(transformers, AUTO_CLASSES[head])._model_mapping
    if type(config) not in mapping:
        raise ConfigError(f"transformers has no {AUTO_CLASSES[head].removeprefix('Auto')} of {config.model_type}")
    stock_class: type[PreTrainedModel] = mapping[type(config)]
    return stock_class


def build_stock(
    stock_class: type[PreTrainedModel], config: PreTrainedConfig, tensors: Mapping[str, Tensor], *, seed: int
) -> tuple[Any, dict[str, Any]]:
    """Give a float32 stock model that holds these tensors, in eval mode, and transformers' account of the loading.

    What no tensor fits is drawn by the class itself from the seed; the global generator is left as it was.
    """
    with torch.random.fork_rng(devices=[]), silence():
        torch.manual_seed(seed)
        loaded: Any = stock_class.from_pretrained(
            None,
            config=config,
            state_dict=dict(tensors),
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    model, account = loaded
    own = [name for name, _ in model.named_parameters(recurse=False)]
    if model.base_model is model or own:
        raise ConfigError(f"{stock_class.__name__} does not keep its encoder apart from its head; it cannot be used")
    return model.eval(), account


def _read_config(model: Any) -> StockConfig:
    stock = model.config
    names = {n: m for n, m in model.base_model.named_modules() if isinstance(m, nn.Embedding)}
    table = next((m for n, m in names.items() if n.endswith("position_embeddings")), None)
    if table is not None:  # where it has a row for padding, as RoBERTa's has, positions begin behind it
        positions = table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    else:
        positions = getattr(stock, "max_position_embeddings", None) or UNLIMITED
    types = getattr(stock, "type_vocab_size", None) or 1
    takes = "token_type_ids" in inspect.signature(model.base_model.forward).parameters
    dropouts = {
        field: next((float(v) for name in names if (v := getattr(stock, name, None)) is not None), None)
        for field, names in _DROPOUTS.items()
    }
    hidden = dropouts["hidden_dropout_prob"] or 0.0
    classifier = dropouts["classifier_dropout_prob"]
    return StockConfig(
        family=stock.model_type,
        vocab_size=stock.vocab_size,
        hidden_size=stock.hidden_size,
        num_calls=stock.num_hidden_layers,
        max_length=positions,
        type_vocab_size=types if takes else 1,
        pad_token_id=stock.pad_token_id or 0,
        hidden_dropout_prob=hidden,
        attention_probs_dropout_prob=dropouts["attention_probs_dropout_prob"] or 0.0,
        classifier_dropout_prob=hidden if classifier is None else classifier,
        initializer_range=getattr(stock, "initializer_range", 0.02),
    )


def _beside_classifier(model: Any) -> list[str]:
    """Give the parameters of a head that are not those of one linear layer called classifier."""
    names = [name for name in model.state_dict() if not name.startswith(f"{model.base_model_prefix}.")]
    return [name for name in names if not name.startswith("classifier.") or name.count(".") > 1]


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep transformers' bars and its report of new heads off the screen; what matters of it is raised as an error."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
