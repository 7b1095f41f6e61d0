"""Span extraction: the answer to a question as a piece of a passage, or the answer that there is none.

[CLS] question [SEP] passage [SEP], one linear layer with a start and an end logit per token (Devlin et al. 2019,
section 4.2); long passages are read in windows that overlap, and the windows of a question are compared by score. The
head is that of transformers' question answering classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from thrice.data.answers import (
    METRICS,
    answer_counts,
    answer_scores,
    best_threshold,
    exact_match,
    f1,
    score_of_counts,
)
from thrice.data.questions import Question, QuestionColumns, question_columns, questions_from, read_questions, told
from thrice.data.readers import Table
from thrice.data.tokenizer import Tokenizer
from thrice.data.windows import Pieces, best_spans, pieces_of, windows_of
from thrice.errors import ConfigError
from thrice.model.packing import PackedBatch, pack
from thrice.model.stock import AnyEncoder
from thrice.tasks.base import Prediction, Task, TaskModel, keep_heads

SPECIAL_TOKENS = 5
"""Most special tokens around a pair in the families at hand, with a token of the passage to spare."""
CLS = 0
"""Place of [CLS] in a window: where start and end point when the answer is not in it."""
NOT_LEARNED = -100
NO_ANSWER = (-1, -1)


@dataclass(frozen=True)
class Window:
    """One stretch of a passage, as it stands in a batch."""

    example: int
    """Number of its question in the batch."""
    prefix: int
    """Tokens before the passage."""
    first: int
    """Its first token among those of the passage."""
    stop: int
    """The token behind its last."""


@dataclass(frozen=True)
class SpanBatch:
    """Packed windows of some questions."""

    packed: PackedBatch
    """W sequences."""
    targets: Tensor
    """(W, 2) int64: start and end of the answer, counted from the window's first token; -100 where unknown."""
    windows: tuple[Window, ...]
    """W of them, in the order of `packed.starts`."""
    passages: tuple[tuple[str, Pieces], ...]
    """The passage of each question."""
    num_examples: int
    """Questions."""

    def to(self, device: torch.device) -> SpanBatch:
        """Give the same batch on a device."""
        packed, targets = self.packed.to(device), self.targets.to(device)
        return SpanBatch(packed, targets, self.windows, self.passages, self.num_examples)


class SpanData:
    """Tokenised questions and passages with their windows; a passage of many questions is held once."""

    def __init__(
        self, examples: Sequence[Question], tokenizer: Tokenizer, *, max_length: int, stride: int, max_question: int
    ) -> None:
        number = {text: i for i, text in enumerate(dict.fromkeys(example.context for example in examples))}
        pieces = pieces_of(tokenizer, list(number))
        asked = [np.array(ids, dtype=np.int32) for ids in tokenizer.content_ids([e.question for e in examples])]
        frame = tokenizer.pair
        self.frame = [np.array(part, dtype=np.int32) for part in (frame.before, frame.between, frame.after)]
        self.second_type = tokenizer.second_type
        self.passages = [(example.context, pieces[number[example.context]]) for example in examples]
        self.questions = [ids[:max_question] for ids in asked]
        special = len(frame)
        self.windows = [
            windows_of(len(passage), room=max_length - special - len(question), stride=stride)
            for (_, passage), question in zip(self.passages, self.questions, strict=True)
        ]
        self.answers = [
            _tokens_of(example, passage) for example, (_, passage) in zip(examples, self.passages, strict=True)
        ]
        around = np.array([len(question) + special for question in self.questions], dtype=np.int64)
        inside = [sum(stop - first for first, stop in windows) for windows in self.windows]
        counts = np.array([len(windows) for windows in self.windows], dtype=np.int64)
        self.lengths = around * counts + np.array(inside, dtype=np.int64)
        self.num_cut = sum(
            len(ids) > max_question
            or (answer not in (None, NO_ANSWER) and all(_inside(answer, window) is None for window in windows))
            for ids, answer, windows in zip(asked, self.answers, self.windows, strict=True)
        )

    def __len__(self) -> int:
        return len(self.questions)

    def batch(self, indices: Sequence[int] | np.ndarray) -> SpanBatch:
        """Give all windows of these questions as one packed batch, in this order."""
        before, between, after = self.frame
        sequences, types, targets, windows = [], [], [], []
        for example, i in enumerate(indices):
            question, (_, passage), answer = self.questions[i], self.passages[i], self.answers[i]
            head = np.concatenate((before, question, between))
            for first, stop in self.windows[i]:
                sequences.append(np.concatenate((head, passage.ids[first:stop], after)))
                types.append(np.full(len(sequences[-1]), self.second_type, dtype=np.uint8))
                types[-1][: len(head)] = 0
                inside = None if answer is None else _inside(answer, (first, stop))
                unknown = NOT_LEARNED if answer is None else CLS
                targets.append([unknown] * 2 if inside is None else [len(head) + place for place in inside])
                windows.append(Window(example, len(head), first, stop))
        passages = tuple(self.passages[i] for i in indices)
        return SpanBatch(pack(sequences, types), torch.tensor(targets), tuple(windows), passages, len(passages))


def _tokens_of(example: Question, passage: Pieces) -> tuple[int, int] | None:
    """Give first and last token of the answer; (-1, -1) where there is none, None where nothing can be learned."""
    if not example.answers:
        return NO_ANSWER if example.known else None
    place = example.place()
    return None if place is None else passage.tokens_of(*place)


def _inside(answer: tuple[int, int], window: tuple[int, int]) -> tuple[int, int] | None:
    """Give an answer's tokens counted from the window's first one; None where it is not wholly inside."""
    inside = window[0] <= answer[0] and answer[1] < window[1]
    return (answer[0] - window[0], answer[1] - window[0]) if inside else None


@dataclass(frozen=True, kw_only=True)
class Spans(Task):
    """A piece of a passage; see `learn` for the options."""

    name = "spans"
    summary = "the piece of a passage that answers a question, or that none does (SQuAD, CMRC)"
    answers = ("prediction", "start", "end", "probability", "n_best")

    columns: QuestionColumns
    """Columns of passage, question and answers."""
    unanswerable: bool
    """Whether "none" is an answer: some training question has none."""
    null_threshold: float = 0.0
    """Nats by which the score of no answer must exceed that of the best span to be given."""
    tune_threshold: bool = False
    """Whether the threshold is chosen on the dev questions when training is over."""
    max_length: int = 384
    """Tokens of one window, question and special tokens included."""
    stride: int = 128
    """Tokens that neighbouring windows share."""
    max_question: int = 64
    """Tokens of the question that are read."""
    max_answer: int = 64
    """Most tokens of a predicted span."""
    n_best: int = 5
    """Answers listed for each question, the best first."""
    seen: str = ""
    """What was seen in the training rows, for a reader."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return METRICS

    @classmethod
    def learn(  # type: ignore[override]  # every task has options of its own
        cls,
        table: Table,
        *,
        context_column: str | None = None,
        question_column: str | None = None,
        answers_column: str | None = None,
        max_length: int = 384,
        stride: int = 128,
        max_question: int = 64,
        max_answer: int = 64,
        n_best: int = 5,
        null_threshold: float | str = "dev",
    ) -> Spans:
        """Give the task of the training rows.

        context_column, question_column, answers_column: names, guessed where well known. Lengths are tokens, see the
        fields. null_threshold: a number of nats, or "dev": the one that serves the dev questions best when training is
        over, until then 0; it matters where some training question has no answer.
        Raises ConfigError for an impossible option, DataError for columns that cannot be found and rows that are no
        questions.
        """
        problems = [
            f"{name} is {value!r}, it must be a whole number of at least {least}"
            for name, value, least in (
                ("max_length", max_length, 1),
                ("stride", stride, 0),
                ("max_question", max_question, 1),
                ("max_answer", max_answer, 1),
                ("n_best", n_best, 1),
            )
            if type(value) is not int or value < least
        ]
        tuned = null_threshold == "dev"
        if not tuned and (isinstance(null_threshold, bool | str) or not np.isfinite(null_threshold)):
            problems.append(f"null_threshold is {null_threshold!r}; expected dev or a number")
        if not problems and max_question + stride + SPECIAL_TOKENS > max_length:
            problems.append(
                f"max_length {max_length} leaves no room for the passage beside {max_question} tokens of the question "
                f"(max_question), {stride} of the window before (stride) and {SPECIAL_TOKENS} special ones; raise "
                "it, or lower those"
            )
        if problems:
            raise ConfigError("; ".join(problems))
        columns = question_columns(table, context=context_column, question=question_column, answers=answers_column)
        questions = read_questions(table, columns, gold=True)
        unanswerable = any(not question.answers for question in questions)
        return cls(
            columns=columns,
            unanswerable=unanswerable,
            null_threshold=0.0 if isinstance(null_threshold, str) else float(null_threshold),
            tune_threshold=tuned and unanswerable,
            max_length=max_length,
            stride=stride,
            max_question=max_question,
            max_answer=max_answer,
            n_best=n_best,
            seen=told(questions),
        )

    def describe(self) -> str:
        names = self.columns
        return f"question in {names.question!r}, passage in {names.context!r}, answer in {names.answers!r}; {self.seen}"

    def read(self, table: Table, *, gold: bool = True) -> list[Question]:
        return read_questions(table, self.columns, gold=gold)

    def from_texts(self, texts: Sequence[Any]) -> list[Question]:
        """Give examples from pairs (question, passage)."""
        return questions_from(texts)

    def split_key(self, row: dict[str, Any]) -> tuple[str, str]:
        """Give the passage, so that all questions about it stay in one part."""
        return row[self.columns.context], ""

    def encode(self, examples: Sequence[Question], tokenizer: Tokenizer) -> SpanData:
        return SpanData(
            examples, tokenizer, max_length=self.max_length, stride=self.stride, max_question=self.max_question
        )

    def validate(self, encoder: AnyEncoder) -> None:
        positions = encoder.config.max_length
        if self.max_length > positions:
            raise ConfigError(
                f"--max-length {self.max_length} is more than the {positions} positions of this checkpoint"
            )

    def build_head(self, encoder: AnyEncoder, generator: torch.Generator) -> None:
        keep_heads(encoder, ())
        encoder.add_head("span", generator=generator)

    def loss(self, model: TaskModel, batch: SpanBatch) -> Tensor:
        """Give the mean over windows of the cross-entropies of start and end, halved, as stock classes have it.

        Each is a softmax over all tokens of the window; where the answer is not in it, both point to [CLS].
        """
        logits, starts = self._logits(model, batch), batch.packed.starts
        padded = pad_sequence(list(logits.split(batch.packed.lengths)), batch_first=True, padding_value=-torch.inf)
        totals = padded.logsumexp(dim=1)[torch.argsort(torch.argsort(starts))]
        learned = batch.targets[:, 0] != NOT_LEARNED
        places = starts.unsqueeze(1) + batch.targets.clamp(min=0)
        losses = (totals - logits.gather(0, places)).mean(dim=1)
        return torch.where(learned, losses, 0.0).sum() / learned.sum().clamp(min=1)

    def loss_weight(self, batch: SpanBatch) -> float:
        """Give the number of windows that are learned from."""
        return float((batch.targets[:, 0] != NOT_LEARNED).sum())

    def predict(self, model: TaskModel, batch: SpanBatch) -> list[Prediction]:
        """Give the best answer of each question, compared over its windows by the sum of start and end logit.

        `n_best` lists answers with their characters in the passage, scores, and probabilities among those listed; where
        "none" is an answer it is always one of them: the empty text with the score of [CLS] in the window where that is
        lowest, as the script of SQuAD 2.0's BERT has it.
        """
        logits = self._logits(model, batch).cpu().numpy()
        found: list[dict[tuple[int, int], float]] = [{} for _ in batch.passages]
        nulls = [np.inf] * len(batch.passages)
        for window, start in zip(batch.windows, batch.packed.starts.tolist(), strict=True):
            _, passage = batch.passages[window.example]
            nulls[window.example] = min(nulls[window.example], float(logits[start].sum()))
            rows = logits[start + window.prefix :][: window.stop - window.first]
            for score, first, last in best_spans(rows, passage, window.first, most=self.max_answer, count=self.n_best):
                characters = passage.characters_of(first, last)
                spans = found[window.example]
                spans[characters] = max(score, spans.get(characters, score))
        return [
            self._answer(text, spans, null) for (text, _), spans, null in zip(batch.passages, found, nulls, strict=True)
        ]

    def _answer(self, text: str, spans: dict[tuple[int, int], float], null: float) -> Prediction:
        ordered = sorted(spans.items(), key=lambda item: (-item[1], item[0]))[: self.n_best]
        listed: list[dict[str, Any]] = [
            {"text": text[start:stop], "start": start, "end": stop, "score": score} for (start, stop), score in ordered
        ]
        if self.unanswerable or not listed:
            before = sum(entry["score"] >= null - self.null_threshold for entry in listed)
            listed.insert(before, {"text": "", "start": None, "end": None, "score": null})
        chances = np.exp([entry["score"] - max(e["score"] for e in listed) for entry in listed])
        for entry, chance in zip(listed, chances / chances.sum(), strict=True):
            entry["probability"] = float(chance)
        best = listed[0]
        return {
            "prediction": best["text"],
            "start": best["start"],
            "end": best["end"],
            "probability": best["probability"],
            "n_best": listed,
        }

    def tuned(self, predict: Callable[[], list[Prediction]], examples: Sequence[Question]) -> Spans:
        """Give the task with the threshold of no answer at which the score of these questions is highest."""
        if not self.tune_threshold:
            return self
        differences, gains = [], []
        for prediction, example in zip(predict(), examples, strict=True):
            spans, (none,) = (
                [entry for entry in prediction["n_best"] if (entry["start"] is None) == empty]
                for empty in (False, True)
            )
            if spans:
                span, nothing = (exact_match(t, example.golds) + f1(t, example.golds) for t in (spans[0]["text"], ""))
                differences.append(none["score"] - spans[0]["score"])
                gains.append(span - nothing)
        return replace(self, null_threshold=best_threshold(differences, gains))

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Question]) -> dict[str, Any]:
        """Give exact match, F1, their mean and "collapsed", see `answer_scores`."""
        return answer_scores([p["prediction"] for p in predictions], [example.golds for example in examples])

    def counts(self, predictions: Sequence[Prediction], examples: Sequence[Question]) -> np.ndarray:
        """Give (n, 3): exact match, F1, and 1."""
        return answer_counts([p["prediction"] for p in predictions], [example.golds for example in examples])

    def from_counts(self, metric: str, sums: np.ndarray) -> np.ndarray:
        return score_of_counts(metric, sums)

    def shown(self, example: Question) -> dict[str, str]:
        return {"text": f"{example.question} / {example.context}", "gold": " | ".join(dict.fromkeys(example.golds))}

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restore(cls, settings: dict[str, Any]) -> Spans:
        return cls(**{**settings, "columns": QuestionColumns(**settings["columns"])})

    def stock_config(self) -> dict[str, Any]:
        return {}

    def _logits(self, model: TaskModel, batch: SpanBatch) -> Tensor:
        """Give (T, 2), start and end logits in packed order."""
        return model.encoder.heads["span"](model.encoder(batch.packed)).float()


PLUGIN = Spans
