"""Reading comprehension by writing: a SQuAD-shaped file, a fine-tuned folder, answers out of one and of two passages.

    python examples/reading.py

Takes under a minute on a CPU. The passages are made here from a dozen names and places, so the small checkpoint learns
where to look, and no more. Give `DataSource` your own file for real questions; CMRC 2018, SQuAD and XQuAD are read as
they are.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from pathlib import Path

from thrice.finetune import DataSource, finetune
from thrice.predict import load_model

NAMES = ("小王", "小李", "小张", "小陈", "小刘", "小赵")
FACTS = {
    "住在哪里？": ("住在", ("北京", "上海", "广州", "成都", "南京", "西安")),
    "喜欢什么？": ("喜欢", ("足球", "音乐", "电影", "游泳", "书法", "下棋")),
}


def questions(number: int) -> dict[str, object]:
    """Give a SQuAD-shaped object: passages of two sentences, one question about each, some without an answer."""
    draw = random.Random(0)
    paragraphs = []
    for i in range(number):
        people = draw.sample(NAMES, 3)
        known = {(n, q): draw.choice(values) for n, (q, (_, values)) in itertools.product(people[:2], FACTS.items())}
        said = [f"{name}{FACTS[question][0]}{value}" for (name, question), value in known.items()]
        context = "，".join(said) + "。"
        asked = (people[2 if i % 6 == 5 else i % 2], list(FACTS)[i // 2 % 2])
        answers = []
        if asked in known:
            start = context.index(said[list(known).index(asked)]) + len(asked[0]) + len(FACTS[asked[1]][0])
            answers.append({"text": known[asked], "answer_start": start})
        question = {"id": str(i), "question": "".join(asked), "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": context, "qas": [question]})
    return {"data": [{"title": "people", "paragraphs": paragraphs}]}


def main() -> None:
    """Write the file, fine-tune, answer."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "people.json"
        data.write_text(json.dumps(questions(360), ensure_ascii=False), encoding="utf-8")
        result = finetune(
            "zoo:albert-nano-zh+none",
            Path(place) / "model",
            source=DataSource(data=str(data)),
            task_name="reading",
            options={"max_passage": 48, "max_question": 12, "max_answer": 6, "stride": 6},
            training={"epochs": 4, "learning_rate": 1e-3, "batch_size": 16},
            say=print,
        )
        print("test:", {metric: round(result["test"][metric], 3) for metric in ("score", "exact_match", "f1")})
        model = load_model(Path(place) / "model")
        passages = ["小王住在成都，小王喜欢音乐。", "小李住在南京，小李喜欢下棋。"]
        for question in ("小李住在哪里？", "小王喜欢什么？", "小刘住在哪里？"):
            (alone,) = model.predict([(question, passages[0])])
            (both,) = model.predict([(question, passages)])
            print(question, "| one passage:", alone["prediction"] or "-", "| both:", both["prediction"] or "-")


if __name__ == "__main__":
    main()
