"""Relation triples out of sentences: who wrote, founded or plays what, as (subject, predicate, object).

    python examples/triples.py

Takes under a minute on a CPU. The sentences are made here from a few templates, enough for the bundled checkpoint to
learn where subject and object stand; what it says of sentences it has not seen is printed. For real data name your
files instead: a text and a list of triples a row, as DuIE and LIC have them in `spo_list`.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path

from thrice.finetune import DataSource, finetune
from thrice.predict import load_model

BOOKS = ("步步惊心", "何以笙箫默", "花千骨", "琅琊榜", "裸婚时代", "甄嬛传", "最后一颗子弹", "邪少兵王")
WRITERS = ("桐华", "顾漫", "流潋紫", "海宴", "月影兰析", "冰火未央", "匪我思存", "安晴")
PLACES = ("北京", "上海", "杭州", "成都", "广州", "西安", "南京", "武汉")
TEMPLATES = (
    ("《{book}》是{writer}写的小说", (("book", "作者", "writer"),)),
    ("{writer}的代表作是《{book}》，他出生于{place}", (("book", "作者", "writer"), ("writer", "出生地", "place"))),
    ("作家{writer}生于{place}", (("writer", "出生地", "place"),)),
    ("《{book}》昨天在{place}售完", ()),  # a sentence without a triple
)


def write_rows(path: Path) -> None:
    """Write every template with many choices of names, one JSON object a line."""
    with path.open("w", encoding="utf-8") as file:
        for (i, book), (j, writer) in itertools.product(enumerate(BOOKS), enumerate(WRITERS)):
            names = {"book": book, "writer": writer, "place": PLACES[(3 * i + j) % len(PLACES)]}
            for template, relations in TEMPLATES:
                triples = [[names[subject], predicate, names[other]] for subject, predicate, other in relations]
                row = {"text": template.format(**names), "triples": triples}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def main() -> None:
    """Learn from four fifths of the sentences, choose on a tenth, and answer two new ones."""
    with tempfile.TemporaryDirectory() as place:
        write_rows(Path(place) / "rows.jsonl")
        result = finetune(
            "zoo:albert-nano-zh+none",
            Path(place) / "model",
            source=DataSource(data=str(Path(place) / "rows.jsonl")),
            task_name="triples",
            options={"max_length": 48},
            training={"epochs": 2, "learning_rate": 2e-3, "batch_size": 8},
            say=print,
        )
        print({metric: round(result["test"][metric], 3) for metric in ("f1", "precision", "recall")})
        for answer in load_model(Path(place) / "model").predict(["《花千骨》是海宴写的小说", "作家顾漫生于南京"]):
            for triple in answer["prediction"]:
                print(triple["subject"], triple["predicate"], triple["object"], triple["subject_span"])


if __name__ == "__main__":
    main()
