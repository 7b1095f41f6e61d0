"""Reading comprehension by writing: the answer to a question, token by token, behind the passage and the question.

[CLS] passage [SEP] question [SEP] answer [SEP] with segment 1 on the answer. Passage and question see each other, each
token of the answer sees them and what is before it (UniLM's mask, Dong et al. 2019, section 2.3), and the checkpoint's
masked-language head says the next one. Source: Su's reading comprehension example in bert4keras.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from thrice.data.answers import METRICS, answer_counts, answer_scores, score_of_counts
from thrice.data.passages import (
    Example,
    Window,
    chosen,
    examples_from,
    passages_in,
    read_examples,
    read_joined,
    target_in,
    windows_in,
)
from thrice.data.questions import QuestionColumns, question_columns, told
from thrice.data.readers import Table
from thrice.data.tokenizer import Tokenizer
from thrice.data.windows import pieces_of
from thrice.errors import ConfigError, nearest
from thrice.model.encoder import Encoder
from thrice.model.generation import Continuation
from thrice.model.packing import PackedBatch, pack
from thrice.model.search import Written, write
from thrice.model.stock import AnyEncoder
from thrice.tasks.base import Prediction, Task, TaskModel, keep_heads

LONG_PASSAGES = ("windows", "head")
# Scripts without spaces between words: those that a decoder of word pieces puts there are not the writer's.
_UNSPACED = "\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_SPACE = re.compile(f"(?<=[{_UNSPACED}])\\s+|\\s+(?=[{_UNSPACED}])")


@dataclass(frozen=True)
class ReadingBatch:
    """Some questions: what is learned of them, packed, and what is read when they are answered."""

    learned: PackedBatch | None
    """Windows with their targets, the window and its question being the prefix; None where no answer is known."""
    rows: Tensor
    """(N,) int64: packed index of the token before each target."""
    targets: Tensor
    """(N,) int64: ids of the answers' tokens and their end symbols."""
    sources: tuple[tuple[np.ndarray, ...], ...]
    """For each question the ids of its windows, each with the question."""
    windows: tuple[tuple[Window, ...], ...]
    """The same windows."""
    examples: tuple[Example, ...]
    """The questions."""
    tokenizer: Tokenizer
    """Which writes what is no piece of a passage."""
    num_examples: int
    """B."""

    def to(self, device: torch.device) -> ReadingBatch:
        """Give the same batch on a device."""
        learned = None if self.learned is None else self.learned.to(device)
        return replace(self, learned=learned, rows=self.rows.to(device), targets=self.targets.to(device))


class ReadingData:
    """Tokenised questions with the windows of their passages; a passage of many questions is held once."""

    def __init__(self, examples: Sequence[Example], tokenizer: Tokenizer, task: Reading) -> None:
        number = {text: i for i, text in enumerate(dict.fromkeys(t for e in examples for t in e.passages))}
        pieces = pieces_of(tokenizer, list(number))
        frame = tokenizer.pair
        self.examples, self.tokenizer = list(examples), tokenizer
        self.frame = [np.array(part, dtype=np.int32) for part in (frame.before, frame.between, frame.after)]
        self.room = task.max_answer - 1
        room, asked_room = (
            task.max_passage - len(frame.before) - len(frame.between),
            task.max_question - len(frame.after),
        )
        asked = tokenizer.content_ids([e.question for e in examples])
        self.questions = [np.array(ids[:asked_room], dtype=np.int32) for ids in asked]
        self.windows: list[tuple[Window, ...]] = []
        self.learned: list[list[tuple[int, np.ndarray]]] = []
        self.num_cut = 0
        for i, example in enumerate(examples):
            own = [pieces[number[text]] for text in example.passages]
            windows = windows_in(own, room=room, stride=task.stride, most=task.windows_of_passage)
            targets = [target_in(example, window) for window in windows]
            self.windows.append(windows)
            self.learned.append(chosen(example, targets, negatives=task.negatives, turn=i))
            cut = task.windows_of_passage is not None and any(len(piece) > room for piece in own)
            long = any(target is not None and len(target) > self.room for target in targets)
            self.num_cut += cut or long or len(asked[i]) > asked_room
        around = sum(map(len, self.frame))
        self.lengths = np.array(
            [
                sum(w.stop - w.first + around + len(question) for w in windows) + task.max_answer
                for windows, question in zip(self.windows, self.questions, strict=True)
            ],
            dtype=np.int64,
        )

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, indices: Sequence[int] | np.ndarray) -> ReadingBatch:
        """Give these questions as one batch, in this order."""
        before, between, after = self.frame
        sources = tuple(
            tuple(np.concatenate((before, w.ids, between, self.questions[i], after)) for w in self.windows[i])
            for i in indices
        )
        texts, prefixes, targets = [], [], []
        for own, i in zip(sources, indices, strict=True):
            for window, target in self.learned[i]:
                ended = np.append(target[: self.room], np.int32(self.tokenizer.sep_token_id))
                texts.append(np.concatenate((own[window], ended)))
                prefixes.append(len(own[window]))
                targets.append(ended)
        learned, rows = None, np.zeros(0, dtype=np.int64)
        if texts:
            answer = self.tokenizer.second_type
            types = [np.repeat([0, answer], [p, len(t) - p]) for t, p in zip(texts, prefixes, strict=True)]
            learned = pack(texts, types, prefix_lengths=prefixes)
            places = zip(learned.starts.tolist(), prefixes, targets, strict=True)
            rows = np.concatenate([np.arange(start + p - 1, start + p - 1 + len(t)) for start, p, t in places])
        return ReadingBatch(
            learned,
            torch.from_numpy(rows),
            torch.from_numpy(np.concatenate(targets or [rows]).astype(np.int64)),
            sources,
            tuple(self.windows[i] for i in indices),
            tuple(self.examples[i] for i in indices),
            self.tokenizer,
            len(indices),
        )


@dataclass(frozen=True, kw_only=True)
class Reading(Task):
    """The answer to a question, written; see `learn` for the options."""

    name = "reading"
    summary = "the answer to a question about passages, written token by token (UniLM's mask)"
    answers = ("prediction", "score", "start", "passage_index")

    columns: QuestionColumns
    """Columns of passage, question and answers."""
    max_passage: int = 256
    """Tokens of a passage, or of a window of it, special tokens included."""
    max_question: int = 64
    """Tokens of the question, the separator behind it included."""
    max_answer: int = 32
    """Tokens of the answer, the end symbol included."""
    long_passages: str = "windows"
    """What becomes of longer ones: windows (as several passages) or head (the beginning, as in the essay)."""
    stride: int = 32
    """Tokens that neighbouring windows share."""
    negatives: int = 1
    """Windows without the answer that are learned from beside the one that has it, for each question."""
    extractive: bool = True
    """Whether an answer must be a piece of a passage."""
    beam: int = 1
    """Hypotheses kept while an answer is written; 1 is greedy."""
    unanswerable: bool = True
    """Whether "none" is an answer: some training question has none."""
    seen: str = ""
    """What was seen in the training rows, for a reader."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return METRICS

    @property
    def windows_of_passage(self) -> int | None:
        """Windows of each passage that are read; None for all."""
        return 1 if self.long_passages == "head" else None

    @classmethod
    def learn(  # type: ignore[override]  # every task has options of its own
        cls,
        table: Table,
        *,
        context_column: str | None = None,
        question_column: str | None = None,
        answers_column: str | None = None,
        max_passage: int = 256,
        max_question: int = 64,
        max_answer: int = 32,
        long_passages: str = "windows",
        stride: int = 32,
        negatives: int = 1,
        extractive: bool = True,
        beam: int = 1,
    ) -> Reading:
        """Give the task of the training rows.

        context_column, question_column, answers_column: names, guessed where well known; a passage may be a list of
        passages. The others are the fields of the task. Without `extractive` an answer may be any text that the
        vocabulary has, and no special token, [UNK] included; with it [UNK] stands for what the passage has there.
        Raises ConfigError for an impossible option, DataError for columns that cannot be found and rows that are no
        questions.
        """
        numbers = {"max_passage": (max_passage, 4), "max_question": (max_question, 2), "max_answer": (max_answer, 2)}
        numbers |= {"stride": (stride, 0), "negatives": (negatives, 0), "beam": (beam, 1)}
        problems = [
            f"{name} is {value!r}, it must be a whole number of at least {least}"
            for name, (value, least) in numbers.items()
            if type(value) is not int or value < least
        ]
        if long_passages not in LONG_PASSAGES:
            problems.append(f"long_passages is {long_passages!r}; {nearest(str(long_passages), LONG_PASSAGES)}")
        if not isinstance(extractive, bool):
            problems.append(f"extractive is {extractive!r}, it must be true or false")
        if not problems and stride > max_passage // 2:
            problems.append(f"stride is {stride}, more than half of the {max_passage} tokens of a window (max_passage)")
        if problems:
            raise ConfigError("; ".join(problems))
        columns = question_columns(table, context=context_column, question=question_column, answers=answers_column)
        questions = read_joined(table, columns, gold=True)
        return cls(
            columns=columns,
            long_passages=long_passages,
            extractive=extractive,
            unanswerable=any(not question.answers for question in questions),
            seen=told(questions),
            **{name: value for name, (value, _) in numbers.items()},
        )

    def describe(self) -> str:
        names = self.columns
        return f"question in {names.question!r}, passage in {names.context!r}, answer in {names.answers!r}; {self.seen}"

    def read(self, table: Table, *, gold: bool = True) -> list[Example]:
        return read_examples(table, self.columns, gold=gold)

    def from_texts(self, texts: Sequence[Any]) -> list[Example]:
        """Give examples from pairs (question, passage) or (question, list of passages)."""
        return examples_from(texts)

    def split_key(self, row: dict[str, Any]) -> tuple[str, str]:
        """Give the passages, so that all questions about them stay in one part."""
        return "\n".join(passages_in(row[self.columns.context])), ""

    def encode(self, examples: Sequence[Example], tokenizer: Tokenizer) -> ReadingData:
        return ReadingData(examples, tokenizer, self)

    def validate(self, encoder: AnyEncoder) -> None:
        problems = []
        if not isinstance(encoder, Encoder):
            problems.append(
                f"{encoder.config.family} runs through its own transformers class, in which every token sees all; "
                "expected one of the families that run packed: bert, roberta, albert, electra"
            )
        elif "mlm" not in encoder.heads:
            problems.append(
                f"this checkpoint has no masked-language head and cannot write (it carries: "
                f"{', '.join(encoder.heads) or 'none'}); what works: BERT, RoBERTa or ALBERT with their "
                "masked-language head (zoo:albert-nano-zh), an ELECTRA generator; mask filling or generation from an "
                "ELECTRA discriminator does not, let it choose a piece of the passage: --task spans"
            )
        needed, positions = self.max_passage + self.max_question + self.max_answer, encoder.config.max_length
        if needed > positions:
            problems.append(
                f"max_passage {self.max_passage} + max_question {self.max_question} + max_answer {self.max_answer} are "
                f"{needed} tokens, more than the {positions} positions of this checkpoint"
            )
        if problems:
            raise ConfigError("; ".join(problems))

    def build_head(self, encoder: AnyEncoder, generator: torch.Generator) -> None:
        keep_heads(encoder, ("mlm",))

    def loss(self, model: TaskModel, batch: ReadingBatch) -> Tensor:
        """Give the mean cross-entropy over the tokens of the answers, end symbols included."""
        if batch.learned is None:
            return sum(parameter.sum() * 0 for parameter in model.parameters())  # type: ignore[return-value]
        logits = model.encoder.predict_tokens(model.encoder(batch.learned)[batch.rows])  # type: ignore[operator]
        return F.cross_entropy(logits, batch.targets)

    def loss_weight(self, batch: ReadingBatch) -> float:
        """Give the number of target tokens."""
        return float(len(batch.targets))

    def predict(self, model: TaskModel, batch: ReadingBatch) -> list[Prediction]:
        """Give the written answers: "score" is the geometric mean of the probabilities (or votes) of their tokens.

        Passages, and windows of them, vote as `model.search.write` says. Where every training question had an answer
        none is left empty, which is a departure from the source: after a short training each window alone says that
        the answer is elsewhere.
        Where the answer is a piece of a passage its text is that of the passage, "start" its first character there and
        "passage_index" the number of the passage.
        """
        sources = [ids for own in batch.sources for ids in own]
        owner = np.repeat(np.arange(batch.num_examples), [len(own) for own in batch.sources])
        windows = [window for own in batch.windows for window in own]
        words = batch.tokenizer
        encoder: Any = model.encoder
        packed = pack(sources).to(model.device)
        writer = Continuation(encoder, packed, token_type=words.second_type, longest=self.max_answer)
        written = write(
            writer,
            owner,
            width=self.beam,
            end=words.sep_token_id,
            longest=self.max_answer,
            pieces=[window.ids for window in windows] if self.extractive else None,
            answer_all=not self.unanswerable,
            never=[i for i in words.hf.all_special_ids if i != words.sep_token_id],
        )
        return [_answer(w, windows, example, words) for w, example in zip(written, batch.examples, strict=True)]

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Any]:
        """Give exact match, F1, their mean and "collapsed", see `answer_scores`, and the number of empty answers."""
        scores = answer_scores([p["prediction"] for p in predictions], [example.golds for example in examples])
        return scores | {"empty": sum(not prediction["prediction"] for prediction in predictions)}

    def counts(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> np.ndarray:
        """Give (n, 3): exact match, F1, and 1."""
        return answer_counts([p["prediction"] for p in predictions], [example.golds for example in examples])

    def from_counts(self, metric: str, sums: np.ndarray) -> np.ndarray:
        return score_of_counts(metric, sums)

    def shown(self, example: Example) -> dict[str, str]:
        gold = " | ".join(dict.fromkeys(example.golds))
        return {"text": " / ".join((example.question, *example.passages)), "gold": gold}

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restore(cls, settings: dict[str, Any]) -> Reading:
        return cls(**{**settings, "columns": QuestionColumns(**settings["columns"])})

    def stock_config(self) -> dict[str, Any]:
        return {}


PLUGIN = Reading


def _answer(written: Written, windows: Sequence[Window], example: Example, words: Tokenizer) -> Prediction:
    if written.place is None:
        text = str(words.hf.decode(list(written.tokens), skip_special_tokens=True))
        text = _SPACE.sub("", text).strip()
        return {"prediction": text, "score": written.score, "start": None, "passage_index": None}
    window, first = windows[written.place[0]], written.place[1]
    begin = window.first + first
    start, stop = window.pieces.characters_of(begin, begin + len(written.tokens) - 1)
    text = example.passages[window.passage][start:stop]
    return {"prediction": text, "score": written.score, "start": start, "passage_index": window.passage}
