"""Make the zoo's models of equal cost: one tokenizer, one text, one budget of operations, six ways to learn.

    python benchmarks/zoo.py text --data ../shared/data --work work     # the corpora, a minute
    python benchmarks/zoo.py pretrain --work work --arms bert mpn  # an hour each at most, on a core; goes on if killed
    python benchmarks/zoo.py package --work work --out src/thrice/zoo   # float16, with the run's card

No text of an evaluation set is read: of CMRC 2018 only passages of training questions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thrice.checkpoints import load, resolve, save
from thrice.data.corpus import prepare_corpus
from thrice.data.tokenizer import Tokenizer
from thrice.files import read_json, write_atomically
from thrice.pretraining.card import card

TOKENIZER = "zoo:albert-nano-zh"
BUDGET = "budget.flops=8e13"
NOVELS = 300
"""Chapters of the novels that are read, from the beginning."""

ARMS = {
    "albert": ("albert-nano", []),
    "albert-unshared": ("albert-nano", ['model.sharing="none"']),
    "albert-ffn": ("albert-nano", ['model.sharing="attention"']),
    "bert": ("bert-nano", []),
    "mpn": ("mpn-nano", []),
    "electra": ("electra-nano", []),
}
"""Arm -> recipe of the package and what is set beside the budget; the zoo calls it ARM-8e13-zh."""


def zoo_name(arm: str) -> str:
    """Give what the zoo calls an arm."""
    return f"{arm}-8e13-zh"


def passages(data: Path) -> Iterator[str]:
    """Give every passage of CMRC's training questions once, in their order."""
    content = zipfile.ZipFile(data / "cmrc2018/train-pseudo-cmrc2018.zip").read("train-pseudo-cmrc2018.json")
    articles = json.loads(content)["data"]
    yield from dict.fromkeys(paragraph["context"] for article in articles for paragraph in article["paragraphs"])


def text(data: Path, work: Path) -> None:
    """Prepare the training and the held-out corpus in a folder."""
    work.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps({"text": passage}, ensure_ascii=False) + "\n" for passage in passages(data))
    (work / "cmrc_passages.jsonl").write_text(rows, encoding="utf-8")
    with gzip.open(data / "zh_novels/train-0.txt.gz", "rt", encoding="utf-8") as opened:
        novels = opened.read().split("\n\n")
    (work / "novels.txt").write_text("\n\n".join(novels[:NOVELS]), encoding="utf-8")
    tokenizer = Tokenizer.from_folder(resolve(TOKENIZER).folder, vocab_size=21128, type_vocab_size=2)
    articles = data / "zh_tech_articles"
    sources = [articles / "train.txt.gz", work / "cmrc_passages.jsonl", work / "novels.txt"]
    for name, files in (("corpus", sources), ("held_out", [articles / "dev.txt.gz"])):
        corpus = prepare_corpus([str(file) for file in files], tokenizer, work / name)
        print(f"{name}: {corpus.num_documents:,} documents, {corpus.num_tokens:,} tokens, {corpus.fingerprint}")


def pretrain(work: Path, arms: list[str]) -> None:
    """Pre-train arms one after the other, each on one thread; an arm that is finished is left alone."""
    for arm in arms:
        if (work / arm / "README.md").exists():  # it is written last
            continue
        recipe, settings = ARMS[arm]
        command = [sys.executable, "-m", "thrice", "pretrain", recipe, "--train", "corpus", "--held-out", "held_out"]
        command += ["--out", arm, "--threads", "1", "--seed", "0"]
        for setting in (BUDGET, f'name="{zoo_name(arm)}"', *settings):
            command += ["--set", setting]
        subprocess.run(command, cwd=work, check=True)


def package(work: Path, out: Path, arms: list[str]) -> None:
    """Write arms in float16 with the run's card and recipe; a generator or a proposal network is left out."""
    for arm in arms:
        folder = out / zoo_name(arm)
        encoder = load(str(work / arm)).half()
        shape = {"vocab_size": encoder.config.vocab_size, "type_vocab_size": encoder.config.type_vocab_size}
        tokenizer = Tokenizer.from_folder(work / arm, **shape)
        said = read_json(work / arm / "thrice.json")["pretraining"]
        save(encoder, folder, tokenizer=tokenizer, sidecar={"pretraining": said})
        shutil.copyfile(work / arm / "recipe.toml", folder / "recipe.toml")
        write_atomically(folder / "README.md", zoo_card(folder.name, said))
        print(f"{folder.name}: {(folder / 'model.safetensors').stat().st_size / 1e6:.1f} MB")


def zoo_card(name: str, said: dict[str, Any]) -> str:
    """Give the run's card, for a model that is packed in half precision without its towers."""
    whole = card(said).replace("FOLDER", f"zoo:{name}", 1).replace('"FOLDER"', f'resolve("zoo:{name}").folder')
    whole = whole.replace(
        "from transformers import", "from thrice.checkpoints import resolve\nfrom transformers import", 1
    )
    kept = [line for line in whole.split("\n") if "lies in `" not in line]
    place = kept.index("") + 5
    return "\n".join([*kept[:place], "Weights in float16; positions from 128 on were never trained.", *kept[place:]])


def main() -> None:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("text", "pretrain", "package"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("work"))
    parser.add_argument("--out", type=Path, default=Path("src/thrice/zoo"))
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    chosen = parser.parse_args()
    if chosen.what == "text":
        text(chosen.data, chosen.work)
    elif chosen.what == "pretrain":
        pretrain(chosen.work, chosen.arms)
    else:
        package(chosen.work, chosen.out, chosen.arms)


if __name__ == "__main__":
    main()
