"""Answers to questions as pieces of a passage, from a file in the shape of SQuAD, and "none" where there is none.

    python examples/spans.py

Takes under a minute on a CPU. Writes 360 small questions about people that it makes up, fine-tunes the bundled Chinese
checkpoint on them, and asks about a passage it has not seen. The threshold of "none" is chosen on the dev questions
when training is over. The saved folder loads in transformers' AutoModelForQuestionAnswering.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from pathlib import Path

import thrice
from thrice.finetune import DataSource, finetune

NAMES = ("小王", "老李", "张老师", "赵医生", "陈小姐", "刘师傅", "周先生", "吴同学")
FACTS = {
    "住在哪里": ("住在", ("北京", "上海市", "广州", "一个小村子", "河边", "西安")),
    "喜欢什么": ("喜欢", ("画画", "踢足球", "看电影", "红茶", "旧书", "唱歌")),
    "去年买了什么": ("去年买了", ("一辆自行车", "新房子", "一台电脑", "两只猫", "一把吉他", "手表")),
}


def write_questions(path: Path, *, people: int, seed: int) -> str:
    """Write three questions about each of so many people, one of them without an answer; gives the path."""
    drawn = random.Random(seed)
    paragraphs = []
    for _ in range(people):
        name, told = drawn.choice(NAMES), drawn.sample(sorted(FACTS), 2)
        said = {asked: drawn.choice(FACTS[asked][1]) for asked in told}
        context = name + "，".join(FACTS[asked][0] + answer for asked, answer in said.items()) + "。"
        questions = []
        for number, asked in enumerate(FACTS):
            begins = context.find(FACTS[asked][0]) + len(FACTS[asked][0])
            answers = [{"text": said[asked], "answer_start": begins}] if asked in said else []
            entry = {"id": str(number), "question": f"{name}{asked}？", "answers": answers}
            questions.append(entry | {"is_impossible": not answers})
        paragraphs.append({"context": context, "qas": questions})
    path.write_text(
        json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}, ensure_ascii=False), encoding="utf-8"
    )
    return str(path)


def main() -> None:
    """Write the questions, train, ask."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        result = finetune(
            "zoo:albert-nano-zh+none",
            home / "model",
            source=DataSource(
                train=write_questions(home / "train.json", people=100, seed=0),
                dev=write_questions(home / "dev.json", people=20, seed=1),
            ),
            task_name="spans",
            options={"max_length": 64, "max_question": 24, "stride": 16, "max_answer": 16},
            training={"epochs": 5, "learning_rate": 1e-3, "batch_size": 16},
            say=print,
        )
        print("dev:", {name: round(result["epochs"][-1]["dev"][name], 3) for name in ("exact_match", "f1")})
        model = thrice.load_model(home / "model")
        passage = "赵医生去年买了一把吉他，喜欢红茶。"
        questions = [f"赵医生{asked}？" for asked in FACTS]
        for question, answer in zip(questions, model.predict([(q, passage) for q in questions]), strict=True):
            others = [entry["text"] or "(none)" for entry in itertools.islice(answer["n_best"], 1, 3)]
            print(
                f"{question} {answer['prediction'] or '(none)'}  {answer['probability']:.2f}  then {', '.join(others)}"
            )


if __name__ == "__main__":
    main()
