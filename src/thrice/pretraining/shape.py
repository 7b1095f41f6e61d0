"""The [model] section of a recipe: a shape in numbers, a published one by name, or a checkpoint to begin from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thrice.checkpoints import load
from thrice.checkpoints.formats import MOST_LAYERS
from thrice.data.tokenizer import Tokenizer
from thrice.errors import ConfigError, SharingError, nearest
from thrice.model.config import FAMILIES, EncoderConfig
from thrice.model.encoder import Encoder
from thrice.model.presets import PRESETS
from thrice.sharing.patterns import parse

SHAPE = (
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "embedding_size",
    "max_position_embeddings",
    "vocab_size",
    "hidden_act",
    "initializer_range",
    "classifier_dropout_prob",
)


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """Shape of the model; `from` brings one along, `preset` stands for what is absent."""

    start: str | None = None
    """`from` in the file: a folder, a hub id or zoo:NAME whose weights and heads the run begins with."""
    preset: str | None = None
    """A published shape; see thrice list presets."""
    family: str | None = None
    """albert, bert, electra or roberta: whose stock classes it is saved as."""
    num_hidden_layers: int | None = None
    """Layers called."""
    hidden_size: int | None = None
    """H: width of every hidden state."""
    num_attention_heads: int | None = None
    """A: heads of each attention block; they divide H."""
    intermediate_size: int | None = None
    """Width of the feed-forward block; 4H where absent."""
    embedding_size: int | None = None
    """E: width of the embedding tables; BERT and RoBERTa: H. Where absent 128, or H for those two."""
    max_position_embeddings: int | None = None
    """Rows of the position table; 512 where absent, and RoBERTa's two more."""
    vocab_size: int | None = None
    """Rows of the word table; as many as the tokenizer has ids where absent."""
    hidden_act: str | None = None
    """Activation of the feed-forward block; the family's own where absent."""
    initializer_range: float | None = None
    """Standard deviation of freshly drawn matrices; 0.02 where absent."""
    dropout: float | None = None
    """Of hidden states and attention weights; 0 for ALBERT and 0.1 for the others where absent."""
    classifier_dropout_prob: float | None = None
    """Before the classifier of sentence pairs; 0.1 where absent."""
    sharing: str | None = None
    """Pattern by which layers share; all for ALBERT and none for the others where absent."""

    @property
    def known_family(self) -> str | None:
        """Family, where it is known without looking into a checkpoint."""
        if self.preset in PRESETS:
            return PRESETS[self.preset].family
        return self.family

    @property
    def known_config(self) -> EncoderConfig | None:
        """The encoder's config where it is known without a tokenizer or a checkpoint, and makes sense."""
        try:
            return self.config()
        except (ConfigError, SharingError):
            return None

    def problems(self) -> Iterator[str]:
        """Give what is wrong, each problem on its own."""
        given = [name for name in ("family", "num_hidden_layers", "dropout", *SHAPE) if getattr(self, name) is not None]
        if self.start is not None and self.preset is not None:
            yield "model.from and model.preset name two shapes; expected one of them"
        if self.start is not None and given:
            yield f"model.from brings its own shape; leave out {', '.join(given)}"
        if self.preset is not None and self.preset not in PRESETS:
            yield f"model.preset: no preset called {self.preset!r}; {nearest(self.preset, PRESETS)}"
        if self.preset is not None and self.family is not None:
            yield "model.preset has a family already; leave out model.family"
        if self.family is not None and self.family not in FAMILIES:
            yield f"model.family is {self.family!r}; {nearest(self.family, FAMILIES)}"
        if self.start is None and self.preset is None:
            needed = ("family", "num_hidden_layers", "hidden_size", "num_attention_heads")
            missing = [f"model.{name}" for name in needed if getattr(self, name) is None]
            if missing:
                yield f"{', '.join(missing)} missing: a model needs them, or model.preset, or model.from"
        try:
            config = self.config()
        except (ConfigError, SharingError) as error:
            yield f"model: {error}"
            return
        if config is not None and config.family in ("bert", "roberta") and config.embedding_projection:
            yield (
                f"model.embedding_size is {config.embedding_size} and model.hidden_size {config.hidden_size}: "
                f"{config.family} has no projection between them; give both the same value"
            )

    def sharing_problems(self, pattern: str | None, place: str) -> Iterator[str]:
        """Say what is wrong with a pattern for this model, as far as its number of calls is known."""
        config = self.known_config
        if pattern is None or config is None:
            return
        try:
            parse(pattern, config.num_calls)
        except SharingError as error:
            yield f"{place}: {error}"

    def config(self, tokenizer: Tokenizer | None = None) -> EncoderConfig | None:
        """Give the encoder's config; None where the recipe alone does not tell, or not everything that it needs.

        tokenizer: whose ids the word table is for; without it the table is as if for a preset.
        Raises ConfigError or SharingError for values that do not go together.
        """
        if self.start is not None or self.preset not in (None, *PRESETS) or self.family not in (None, *FAMILIES):
            return None
        if self.preset is None and None in (
            self.family,
            self.num_hidden_layers,
            self.hidden_size,
            self.num_attention_heads,
        ):
            return None
        base = PRESETS[self.preset or f"{self.family}-base"]
        changes: dict[str, Any] = {name: value for name in SHAPE if (value := getattr(self, name)) is not None}
        hidden = changes.get("hidden_size", base.hidden_size)
        if self.preset is None or "hidden_size" in changes:
            changes.setdefault("intermediate_size", 4 * hidden)
            wide = base.family in ("bert", "roberta")
            changes.setdefault("embedding_size", hidden if wide else min(128, hidden))
        calls = base.num_calls if self.num_hidden_layers is None else self.num_hidden_layers
        if not 1 <= calls <= MOST_LAYERS:
            raise ConfigError(f"num_hidden_layers is {calls}, it must be at least 1 and at most {MOST_LAYERS}")
        pattern = self.sharing or ("all" if base.family == "albert" else "none")
        changes["attention_map"], changes["ffn_map"] = parse(pattern, calls)
        embedding = changes.get("embedding_size", base.embedding_size)
        changes["embedding_projection"] = base.family == "albert" or embedding != hidden
        if self.dropout is not None:
            changes |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), self.dropout)
        if tokenizer is not None:
            if self.preset is None:
                changes.setdefault("vocab_size", tokenizer.vocab_size)
            if tokenizer.pad_token_id is not None:
                changes["pad_token_id"] = tokenizer.pad_token_id
                if base.family == "roberta":
                    changes["position_offset"] = tokenizer.pad_token_id + 1
        return base.replace(**changes)

    def encoder(self) -> Encoder | None:
        """Give the encoder of the checkpoint to begin from, its sharing as asked; None where there is none."""
        return None if self.start is None else load(self.start, sharing=self.sharing)
