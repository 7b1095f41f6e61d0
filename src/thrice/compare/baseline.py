"""The control arm: TF-IDF of character n-grams and logistic regression, scored like any other arm."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from thrice.errors import ConfigError, DataError
from thrice.source import Splits
from thrice.tasks.base import Prediction, Task
from thrice.tasks.classification import Classification, Example


def run_tfidf(task: Task, splits: Splits, *, seed: int) -> tuple[dict[str, Any], list[Prediction] | None]:
    """Give the parts of a result row that depend on the arm, of one epoch, and the answers to the test examples.

    Characters 1 to 3 long serve every language without a word list; sublinear counts, features seen twice or more.
    The solver is deterministic, so every seed gives the same scores. It reads whole texts, whatever --max-length says;
    class weights count, except with several labels per text. Raises ConfigError for tasks it cannot do.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline

    if not isinstance(task, Classification):
        raise ConfigError(f"the tfidf arm can only classify, not {task.name}; leave it out")
    weights = None if task.class_weights is None or task.multi_label else dict(enumerate(task.class_weights))
    classifier: Any = LogisticRegression(C=10.0, max_iter=1000, random_state=seed, class_weight=weights)
    if task.multi_label:
        classifier = OneVsRestClassifier(classifier)
    features = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), min_df=2, max_features=200_000, sublinear_tf=True)
    model = make_pipeline(features, classifier)

    started = time.perf_counter()
    try:
        model.fit([_text(e) for e in splits.train], _targets(task, splits.train))
    except ValueError as error:
        raise DataError(f"the tfidf arm finds nothing to learn from in {len(splits.train)} texts: {error}") from error
    seconds = time.perf_counter() - started
    dev = task.score(_answers(task, model, splits.dev), splits.dev)
    collapsed = dev.pop("collapsed")
    answers = _answers(task, model, splits.test) if splits.test else None
    test = None if answers is None else task.score(answers, splits.test)
    if test is not None:
        test.pop("collapsed")
    epoch = {"epoch": 1, "dev": dev, "seconds": seconds}
    row = {"epochs": [epoch], "best_epoch": 1, "collapsed": collapsed, "test": test, "seconds": seconds}
    return row, answers


def _answers(task: Classification, model: Any, examples: list[Example]) -> list[Prediction]:
    answers = model.predict([_text(e) for e in examples])
    if task.multi_label:
        return [{"prediction": [n for n, flag in zip(task.labels, row, strict=True) if flag]} for row in answers]
    return [{"prediction": task.labels[i]} for i in answers]


def _text(example: Example) -> str:
    return example.text + (f"\n{example.text_pair}" if example.text_pair else "")


def _targets(task: Classification, examples: list[Example]) -> Any:
    if not task.multi_label:
        return [e.labels[0] for e in examples]
    return np.array([[int(i in e.labels) for i in range(len(task.labels))] for e in examples])
