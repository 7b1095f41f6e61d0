# ruff: noqa: E501 - a table
"""Bad input and the message it gets: one table, run by test_bad_input.py and printed in docs/bad-input.md.

`python tests/bad_input.py > docs/bad-input.md` writes the document again.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROWS = "text,label\n" + "".join(f"text {number},{('bad', 'good')[number % 2]}\n" for number in range(60))
JSON_ROWS = "".join(json.dumps({"text": f"text {n}", "labels": ["a", "b"][: n % 3]}) + "\n" for n in range(60))

Spoil = Callable[[Path], object]


class Case(NamedTuple):
    """One way to go wrong."""

    group: str
    """Heading in the document."""
    what: str
    """The case in a few words."""
    command: str
    """What is typed after thrice, in a folder that `spoil` had."""
    message: str
    """What comes back; ... stands for anything."""
    spoil: Spoil = lambda place: None
    """Puts the bad input into the folder."""


def file(name: str, content: str | bytes) -> Spoil:
    data = content.encode("utf-8") if isinstance(content, str) else content
    return lambda place: (place / name).write_bytes(data)


def cut(name: str, *, keep: float) -> Spoil:
    def spoil(place: Path) -> None:
        data = (place / name).read_bytes()
        (place / name).write_bytes(data[: int(keep * len(data))])

    return spoil


def json_file(name: str, *path: str, value: Any) -> Spoil:
    """Put a value at a place of a JSON file."""

    def spoil(place: Path) -> None:
        content = json.loads((place / name).read_text(encoding="utf-8"))
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (place / name).write_text(json.dumps(content), encoding="utf-8")

    return spoil


def parquet(place: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"]}), place / "d.parquet")
    cut("d.parquet", keep=0.5)(place)


def header(head: dict[str, Any], body: bytes = b"") -> Spoil:
    data = json.dumps(head).encode()
    return file("model/model.safetensors", struct.pack("<Q", len(data)) + data + body)


def tensors(change: Callable[[dict[str, Any]], object]) -> Spoil:
    from tiny_checkpoints import change_tensors

    return lambda place: change_tensors(place / "model", change)


def index(name: str) -> Spoil:
    def spoil(place: Path) -> None:
        (place / "model" / "model.safetensors").unlink()
        content = json.dumps({"weight_map": {"a": name}})
        (place / "model" / "model.safetensors.index.json").write_text(content, encoding="utf-8")

    return spoil


def pickled(place: Path) -> None:
    import pickle

    (place / "model" / "model.safetensors").unlink()
    (place / "model" / "pytorch_model.bin").write_bytes(pickle.dumps({"a": print}))


def not_a_number(held: dict[str, Any]) -> None:
    held["albert.embeddings.LayerNorm.bias"].fill_(float("nan"))


def whole_numbers(held: dict[str, Any]) -> None:
    held["albert.embeddings.LayerNorm.bias"] = held["albert.embeddings.LayerNorm.bias"].long()


def recipe(old: str = "", new: str = "", more: str = "") -> Spoil:
    """Write r.toml, a recipe over the corpus `corpus`, with a piece of it replaced."""
    assert old in RECIPE
    return file("r.toml", RECIPE.replace(old, new, 1) + more)


def of_corpus(name: str, change: Callable[[bytes], bytes]) -> Spoil:
    """Write r.toml, and change a file of the corpus."""

    def spoil(place: Path) -> None:
        recipe()(place)
        path = place / "corpus" / name
        path.write_bytes(change(path.read_bytes()))

    return spoil


def of_corpus_facts(*path: str, value: Any) -> Spoil:
    def spoil(place: Path) -> None:
        recipe()(place)
        json_file("corpus/corpus.json", *path, value=value)(place)

    return spoil


def maskless(place: Path) -> None:
    (place / "maskless").mkdir()
    (place / "maskless" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\n", encoding="utf-8")
    file("t.txt", STORY)(place)


def flipped(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 0xFF]) + data[-8:]


STORY = "A b c d e f g. A h i j k l m.\n\nA n o p q r s. A t u v w x y.\n"
RECIPE = """\
name = "r"
tokenizer = "words"
[model]
family = "albert"
num_hidden_layers = 2
hidden_size = 12
num_attention_heads = 2
max_position_embeddings = 64
[corpus]
train = "corpus"
[budget]
steps = 4
[batch]
tokens = 100
[[stages]]
share = 0.5
max_length = 16
objectives = ["mlm"]
[[stages]]
share = 0.5
max_length = 32
objectives = ["mlm", "sop"]
"""
TUNE = "finetune model --out out --epochs 1 --max-length 24"
DATA = f"{TUNE} --data d.csv"
PREDICT = "predict tuned good.csv"
UNSHARE = "unshare model new"
COMPARE = "compare model --data good.csv --out new --max-length 24"
TASK = "tasks.t.data=good.csv"
CORPUS = "corpus t.txt --tokenizer words --out new"
PRETRAIN = "pretrain r.toml --out new"
OFFSETS = {"dtype": "F32", "shape": [2]}

CASES = [
    Case("Data files", "a column that is not there", f"{TUNE} --data good.csv --text-column txt",
         "good.csv has no column 'txt'; did you mean text?"),
    Case("Data files", "no file", DATA, "d.csv: no such file"),
    Case("Data files", "a folder", f"{TUNE} --data model", "model is a folder; name one file in it"),
    Case("Data files", "an empty file", DATA, "d.csv is empty", file("d.csv", "")),
    Case("Data files", "a header and no rows", DATA, "d.csv has no rows", file("d.csv", "text,label\n")),
    Case("Data files", "a row too long, one too short", DATA,
         "d.csv: bad rows (2): line 62: 3 fields, not 2; line 63: 1 fields, not 2", file("d.csv", ROWS + "a,b,good\nx\n")),
    Case("Data files", "semicolons for commas", DATA,
         "d.csv: the header 'text;label' holds semicolons and no comma, expected fields between commas; save the file "
         "with commas or with tabs (--format tsv)", file("d.csv", ROWS.replace(",", ";"))),
    Case("Data files", "no header row", DATA,
         "d.csv: the first row is taken for a header and looks like data: 'bad' is the label of 29 other rows; give "
         "the names with --columns, such as text,label, or say that it is right: --label-column bad",
         file("d.csv", ROWS.split("\n", 1)[1])),
    Case("Data files", "a name twice in the header", DATA,
         "d.csv: the header names 'text' more than once (a file without a header row: give the names with --columns)",
         file("d.csv", "text,text\na,b\n")),
    Case("Data files", "--columns of another count", f"{TUNE} --data good.csv --columns text,label,id",
         "good.csv: --columns names 3 columns ('text', 'label', 'id'), the first row has 2 ('text', 'label')"),
    Case("Data files", "--columns with an empty name", f"{TUNE} --data good.csv --columns text,",
         "good.csv: --columns 'text,' has an empty name; expected such as text,label"),
    Case("Data files", "--columns for a file with a header", f"{TUNE} --data good.csv --columns text,mood",
         "good.csv: the first row, 'text', 'label', is a header, and --columns is for files without one; leave it out, "
         "or say what is what: --text-column, --label-column"),
    Case("Data files", "Latin-1", DATA,
         "d.csv: line 62 is not UTF-8 (byte 0xfc); if the file is WINDOWS-1252: iconv -f WINDOWS-1252 -t UTF-8",
         file("d.csv", (ROWS + "für,good\n").encode("latin-1"))),
    Case("Data files", "GB18030", DATA,
         "d.csv: line 62 is not UTF-8 (byte 0xba); if the file is GB18030: iconv -f GB18030 -t UTF-8",
         file("d.csv", (ROWS + "很好的书,good\n").encode("gb18030"))),
    Case("Data files", "Cyrillic in one byte", DATA,
         "d.csv: line 62 is not UTF-8 (byte 0xf5); find its encoding, such as with `file -i`, and convert it: iconv -f "
         "ENCODING -t UTF-8", file("d.csv", (ROWS + "хорошая книга,good\n").encode("cp1251"))),
    Case("Data files", "UTF-16", DATA, "d.csv is UTF-16, expected UTF-8; convert it: iconv -f UTF-16 -t UTF-8",
         file("d.csv", ROWS.encode("utf-16"))),
    Case("Data files", "UTF-16 without its mark", DATA,
         "d.csv is UTF-16LE, expected UTF-8; convert it: iconv -f UTF-16LE -t UTF-8",
         file("d.csv", ROWS.encode("utf-16-le"))),
    Case("Data files", "a gz file cut short", f"{TUNE} --data d.csv.gz",
         "d.csv.gz cannot be read: Compressed file ended before ... - is it a whole copy? test it: gzip -t",
         file("d.csv.gz", gzip.compress(ROWS.encode())[:-30])),
    Case("Data files", "a parquet file cut short", f"{TUNE} --data d.parquet",
         "d.parquet is no readable parquet file: ...", parquet),
    Case("Data files", "a JSON line that is a list", f"{TUNE} --data d.jsonl",
         "d.jsonl: bad rows (1): line 61: not an object but \"['a']\"", file("d.jsonl", JSON_ROWS + '["a"]\n')),
    Case("Data files", "NaN in JSON", f"{TUNE} --data d.jsonl",
         "d.jsonl: bad rows (1): line 61: no JSON object: NaN is not JSON", file("d.jsonl", JSON_ROWS + '{"text": NaN}\n')),
    Case("Data files", "JSON nested 900 times", f"{TUNE} --data d.jsonl",
         "d.jsonl: bad rows (1): line 61: a value is nested too deeply",
         file("d.jsonl", JSON_ROWS + '{"text": ' + "[" * 900 + "]" * 900 + "}\n")),
    Case("Labels", "one class", DATA,
         "d.csv: column 'label' holds 1 class (good), a classifier needs two - is it the right column? name it with "
         "--label-column", file("d.csv", ROWS.replace("bad", "good"))),
    Case("Labels", "a label that training never saw", f"{TUNE} --train good.csv --dev d.csv",
         "d.csv: 1 labels never occur in the training rows: 'best' (1 rows); training has 2: bad, good",
         file("d.csv", "text,label\na,good\nb,best\n")),
    Case("Labels", "empty labels", DATA,
         "d.csv: column 'label' has labels that are no names of classes (2): line 62: an empty label; every row needs "
         "one, or leave the row out; line 63: an empty label; ...", file("d.csv", ROWS + "x,\ny, \n")),
    Case("Labels", "every row a label of its own", DATA,
         "300 rows with 300 distinct texts are too few to split into (0.8, 0.1, 0.1): dev and test would be empty; give "
         "separate files (300 of 300 labels have one text each: is it the column of the label?)",
         file("d.csv", "text,label\n" + "".join(f"text {n},c{n}\n" for n in range(300)))),
    Case("Labels", "lists without --multi-label", f"{TUNE} --data d.jsonl",
         "d.jsonl: column 'labels' has labels that are no names of classes (60): line 1: the list []; texts with "
         "several labels want --multi-label; ...", file("d.jsonl", JSON_ROWS)),
    Case("Labels", "null in a list", f"{TUNE} --data d.jsonl --multi-label",
         "d.jsonl: column 'labels' has no label (1): line 61: null or missing",
         file("d.jsonl", JSON_ROWS + '{"text": "x", "labels": ["a", null]}\n')),
    Case("Labels", "a list in a list", f"{TUNE} --data d.jsonl --multi-label",
         "d.jsonl: column 'labels' has labels that are no names of classes (1): line 61: [\"a\"] in a list of labels; "
         "every item must be a name", file("d.jsonl", JSON_ROWS + '{"text": "x", "labels": [["a"]]}\n')),
    Case("Labels", "--class-weight of 0", f"{TUNE} --data good.csv --class-weight bad=0",
         "--class-weight 'bad=0': expected a number above 0; leave rows of a class out instead"),
    Case("Checkpoints", "weights cut short", UNSHARE,
         "model/model.safetensors (N bytes) cannot be read: ... - download or copy it again?",
         cut("model/model.safetensors", keep=0.5)),
    Case("Checkpoints", "config.json cut short", UNSHARE, "model/config.json cannot be read: ...",
         cut("model/config.json", keep=0.5)),
    Case("Checkpoints", "tokenizer.json cut short", PREDICT, "tuned: tokenizer.json cannot be read: ...",
         cut("tuned/tokenizer.json", keep=0.5)),
    Case("Checkpoints", "vocab.txt cut short, beside a whole tokenizer.json", PREDICT,
         "tuned: vocab.txt ends after 5 tokens, tokenizer.json has N; vocab.txt is cut short: copy it again, or remove "
         "it", file("tuned/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")),
    Case("Checkpoints", "more layers than any encoder", UNSHARE,
         "model/config.json: num_hidden_layers is 100000, expected a whole number of at least 1 and at most 1000",
         json_file("model/config.json", "num_hidden_layers", value=100_000)),
    Case("Checkpoints", "a size that is no number", UNSHARE,
         "model/config.json: hidden_size is 'wide', expected a whole number",
         json_file("model/config.json", "hidden_size", value="wide")),
    Case("Checkpoints", "heads that do not divide the width", UNSHARE,
         "model/config.json: encoder config: hidden_size N is no multiple of num_attention_heads 5",
         json_file("model/config.json", "num_attention_heads", value=5)),
    Case("Checkpoints", "a config of another size", UNSHARE,
         "albert checkpoint model: 2 problems with N tensors: ... is (N, N), the model wants (9, N); ... - is config.json "
         "the one these weights were saved with? `thrice inspect` lists every tensor",
         json_file("model/config.json", "vocab_size", value=9)),
    Case("Checkpoints", "weights that are NaN", UNSHARE,
         "model: 1 of N tensors hold NaN or infinity: albert.embeddings.LayerNorm.bias. - a run that diverged, or a "
         "damaged copy? use another checkpoint", tensors(not_a_number)),
    Case("Checkpoints", "weights that are whole numbers", UNSHARE,
         "albert checkpoint model: 1 problems with N tensors: albert.embeddings.LayerNorm.bias holds I64 numbers, the "
         "model wants floating point...", tensors(whole_numbers)),
    Case("Checkpoints", "a header longer than the file", UNSHARE,
         "model/model.safetensors (10 bytes) cannot be read: ... - download or copy it again?",
         file("model/model.safetensors", struct.pack("<Q", 2**62) + b"{}")),
    Case("Checkpoints", "tensors outside the file", UNSHARE, "model/model.safetensors (N bytes) cannot be read: ...",
         header({"a": {**OFFSETS, "data_offsets": [0, 10**12]}}, b"\0" * 8)),
    Case("Checkpoints", "tensors over one another", UNSHARE, "model/model.safetensors (N bytes) cannot be read: ...",
         header({"a": {**OFFSETS, "data_offsets": [0, 8]}, "b": {**OFFSETS, "data_offsets": [4, 12]}}, b"\0" * 12)),
    Case("Checkpoints", "an index that leaves its folder", UNSHARE,
         "model/model.safetensors.index.json: expected names of weight files beside it, got '../x.safetensors'",
         index("../x.safetensors")),
    Case("Checkpoints", "a pickle with code in it", UNSHARE,
         "model/pytorch_model.bin (N bytes) cannot be read: it is no plain dict of tensors, and other pickles are not "
         "opened. - download or copy it again?", pickled),
    Case("Studies", "a study file that is no TOML", "compare s.toml", "s.toml is no TOML: ... (at line 1, column N)",
         file("s.toml", "arms = model")),
    Case("Studies", "keys that a study does not have", "compare s.toml",
         "s.toml: sedes is no key; did you mean seeds or save_models?; tasks is missing",
         file("s.toml", 'sedes = 3\narms = ["model"]')),
    Case("Studies", "a field that training does not have", f"compare s.toml --set training.lr=1 --set {TASK}",
         "s.toml: training: no training field 'lr'; known: adam_beta1, ...", file("s.toml", 'arms = ["model"]')),
    Case("Studies", "an option beside the file that says it", "compare s.toml --epochs 5",
         "--epochs: say it in s.toml, or by --set, such as --set training.epochs=5", file("s.toml", "")),
    Case("Studies", "a setting without a value", f"{COMPARE} --set training.epochs",
         "--set 'training.epochs': expected KEY=VALUE, such as training.epochs=5"),
    Case("Studies", "no folder", "compare model --data good.csv", "name the folder of the study: --out study"),
    Case("Studies", "one arm twice", f"{COMPARE.replace('model', 'model model', 1)}", "arms named twice: model"),
    Case("Studies", "a grid without values", f"{COMPARE} --grid epochs",
         "study: arm model: grid epochs has no values"),
    Case("Studies", "a point of a grid that cannot be", f"{COMPARE} --grid batch_size=8,0",
         "study: model on classification batch_size=0 seed 0: training config: batch_size is 0, it must be a whole number "
         "of at least 1"),
    Case("Studies", "an engine nobody knows", f"{COMPARE} --engine rays",
         "--engine is 'rays', it must be local or ray"),
    Case("Studies", "no job at all", f"{COMPARE} --jobs 0", "--jobs is 0, it must be at least 1"),
    Case("Studies", "GPUs without a cluster", f"{COMPARE} --gpus 1", "--address and --gpus are for --engine ray"),
    Case("Studies", "an arm that cannot be built", f"{COMPARE.replace('model', 'model+groups=9', 1)}",
         "1 of 1 arms cannot be built: model+groups=9: ..."),
    Case("Studies", "a limit that is none", "advise study --max-size-mb -1", "max_size_mb is -1.0: expected a number above 0 - leave a limit out to have none"),
    Case("Studies", "a task that the study does not have", "advise study --task classificaton",
         "...did you mean classification?..."),
    Case("Studies", "the cost of a model that is not there", "cost nowhere/", "...no such folder: nowhere/..."),
    Case("Files of thrice", "thrice.json of a newer thrice", PREDICT,
         "tuned/thrice.json: format is 2, written by a newer thrice (this one reads up to 1); upgrade thrice",
         json_file("tuned/thrice.json", "format", value=2)),
    Case("Files of thrice", "thrice.json without its task's labels", PREDICT,
         "tuned/thrice.json is damaged: task.settings.labels is 7, expected a list. - copy it again, or fine-tune again",
         json_file("tuned/thrice.json", "task", "settings", "labels", value=7)),
    Case("Files of thrice", "thrice.json with another number of labels", PREDICT,
         "tuned: the sequence head is not the one of the task in thrice.json: classifier.bias is (2,), the task wants "
         "(1,), ... - fine-tune again?", json_file("tuned/thrice.json", "task", "settings", "labels", value=["bad"])),
    Case("Files of thrice", "study.json of a newer thrice", "report study",
         "study/study.json: format is 9, written by a newer thrice (this one reads up to 2); upgrade thrice",
         json_file("study/study.json", "format", value=9)),
    Case("Files of thrice", "study.json with a wrong kind", "report study",
         "study/study.json: seeds is 'x', expected a list - put back a whole copy, or begin the study anew with "
         "--restart", json_file("study/study.json", "seeds", value="x")),
    Case("Files of thrice", "cost.json with a wrong kind", "report study",
         "study/cost.json: arms.a.file_bytes is 'x', expected a number - delete it, the command of the study measures "
         "again", file("study/cost.json", '{"format": 2, "arms": {"a": {"file_bytes": "x"}}}')),
    Case("Files of thrice", "study.json of an older thrice", "report study",
         "study/study.json: written by an older thrice, whose studies had one task - begin the study anew with "
         "--restart, or in another folder", json_file("study/study.json", "format", value=1)),
    Case("Files of thrice", "a result cut short", "report study",
         "1 result file(s) cannot be read: study/cells/cell-000.json: ... - delete them and start the study again, it "
         "computes only what is missing", cut("study/cells/cell-000.json", keep=0.5)),
    Case("Names and numbers", "a schedule", f"{TUNE} --data good.csv --schedule linnear",
         "training config: no schedule called 'linnear'; did you mean linear?"),
    Case("Names and numbers", "a head", f"{TUNE} --data good.csv --head first_token",
         "--head is 'first_token'; did you mean first-token?"),
    Case("Names and numbers", "a metric", f"{TUNE} --data good.csv --metric acuracy",
         "--metric 'acuracy': this task gives accuracy, macro_f1, matthews, f1"),
    Case("Names and numbers", "a pattern", f"{UNSHARE} --pattern atention",
         "sharing pattern 'atention' for N calls: nobody knows 'atention'; did you mean attention?"),
    Case("Names and numbers", "a preset", "inspect preset:bert-tny", "no preset called 'bert-tny'; did you mean bert-tiny...?"),
    Case("Names and numbers", "no seeds", f"{COMPARE} --seeds 0", "--seeds is 0, it must be at least 1"),
    Case("Names and numbers", "batches of nothing", f"{COMPARE} --batch-size 0",
         "training config: batch_size is 0, it must be a whole number of at least 1"),
    Case("Names and numbers", "a rate below 0", f"{COMPARE} --lr -1",
         "training config: learning_rate is -1.0, it must be a number above 0"),
    Case("Names and numbers", "no threads", f"{COMPARE} --threads 0", "study: threads is 0, it must lie between 1 and 1024"),
    Case("Names and numbers", "no room for a text", f"{TUNE} --data good.csv --max-length 2",
         "--max-length is 2, it must be at least 3 tokens"),
    Case("Names and numbers", "one folder as two arms", COMPARE.replace("model", "model model/"),
         "study: arms named twice: model, model/"),
    Case("Names and numbers", "a hub id that cannot be reached", "inspect nobody/nothing",
         "no folder called 'nobody/nothing' here, and the model hub does not give it (...)\n- expected a folder, a hub "
         "id that can be reached or was fetched before, zoo:NAME or preset:NAME"),
    Case("Pre-training: text", "an empty file", CORPUS, "t.txt: no documents to train on", file("t.txt", "")),
    Case("Pre-training: text", "documents that are too short", f"{CORPUS} --min-tokens 100",
         "t.txt: no documents to train on; left out: 2 too short", file("t.txt", STORY)),
    Case("Pre-training: text", "no number of tokens", f"{CORPUS} --min-tokens 0", "min_tokens is 0, it must be at least 1",
         file("t.txt", STORY)),
    Case("Pre-training: text", "an engine nobody knows", f"{CORPUS} --engine rays",
         "--engine is 'rays', it must be local or ray", file("t.txt", STORY)),
    Case("Pre-training: text", "a cluster for processes of this machine", f"{CORPUS} --address 10.0.0.1:6379",
         "--address is for --engine ray", file("t.txt", STORY)),
    Case("Pre-training: text", "an ending that nobody knows", "corpus good.csv --tokenizer words --out new",
         "good.csv: documents come from .txt, .jsonl (also .gz) and .parquet files, not from '.csv'"),
    Case("Pre-training: text", "no UTF-8", CORPUS, "t.txt: line 4 is not UTF-8 (byte 0xfc); ...",
         file("t.txt", STORY.encode() + b"f\xfcr\n")),
    Case("Pre-training: text", "a gz file cut short", CORPUS.replace("t.txt", "t.txt.gz"),
         "t.txt.gz cannot be read: Compressed file ended before ... - is it a whole copy? test it: gzip -t",
         file("t.txt.gz", gzip.compress(STORY.encode())[:-20])),
    Case("Pre-training: text", "which column?", CORPUS.replace("t.txt", "d.jsonl"),
         "d.jsonl: which column has the text? say it; there are a, b", file("d.jsonl", '{"a": "x", "b": "y"}\n')),
    Case("Pre-training: text", "a vocabulary without [MASK]", CORPUS.replace("words", "maskless"),
         "a vocabulary of N tokens without [MASK]: nothing could be hidden in training. - choose another, or train one "
         "with thrice vocabulary", maskless),
    Case("Pre-training: text", "other text in the folder of a corpus", CORPUS.replace("new", "corpus"),
         "corpus holds a corpus with other sources. - choose another folder, or remove this one", file("t.txt", STORY)),
    Case("Pre-training: text", "a corpus among other things", CORPUS.replace("new", "words"),
         "words holds other things than a corpus, such as ...; name a new folder", file("t.txt", STORY)),
    Case("Pre-training: text", "a corpus with the name of a file", CORPUS.replace("new", "good.csv"),
         "good.csv is a file, expected the name of a folder", file("t.txt", STORY)),
    Case("Pre-training: text", "a vocabulary among other things", "vocabulary t.txt --size 100 --out corpus",
         "corpus holds other things than a vocabulary; name a new folder", file("t.txt", STORY)),
    Case("Pre-training: text", "a vocabulary larger than the memory", "vocabulary t.txt --size 100000000000 --out new",
         "vocab_size is 100000000000, expected at least 100 and at most 1000000", file("t.txt", STORY)),
    Case("Pre-training: a prepared corpus", "none", f"{PRETRAIN} --train words",
         "words holds no corpus; prepare one: thrice corpus", recipe()),
    Case("Pre-training: a prepared corpus", "text that is not prepared", f"{PRETRAIN} --train good.csv",
         "good.csv is a file; make a corpus of it first: thrice corpus good.csv --out NEW", recipe()),
    Case("Pre-training: a prepared corpus", "of another tokenizer", f"{PRETRAIN} --tokenizer zoo:albert-nano-zh",
         "corpus was made with another tokenizer: its vocabulary has N tokens and fingerprint ..., the one given N and ... "
         "- prepare the corpus with this one, in another folder", recipe()),
    Case("Pre-training: a prepared corpus", "a shard cut in half", PRETRAIN,
         "corpus/shard-00000.ids.npy is cut short: it has N bytes, expected N. - remove that file and prepare the corpus "
         "again from the same sources; the other shards are kept",
         of_corpus("shard-00000.ids.npy", lambda data: data[: len(data) // 2])),
    Case("Pre-training: a prepared corpus", "a shard with flipped bits", PRETRAIN,
         "corpus/shard-00000.ids.npy is damaged: its checksum is not the one in corpus.json. - remove that file ...",
         of_corpus("shard-00000.ids.npy", flipped)),
    Case("Pre-training: a prepared corpus", "the head of a shard damaged", PRETRAIN,
         "corpus/shard-00000.words.npy is damaged: ...",
         of_corpus("shard-00000.words.npy", lambda data: data[:60] + b"((((" + data[64:])),
    Case("Pre-training: a prepared corpus", "corpus.json with other counts", PRETRAIN,
         "corpus/corpus.json is damaged: it counts 1000000000000 tokens, its shards hold N",
         of_corpus_facts("counts", "tokens", value=10**12)),
    Case("Pre-training: a prepared corpus", "corpus.json with another special token", PRETRAIN,
         "corpus/corpus.json is damaged: special_ids of its tokenizer are not those of the tokenizer. - copy it "
         "again, or prepare the corpus again", of_corpus_facts("tokenizer", "special_ids", "mask", value=10**9)),
    Case("Pre-training: a prepared corpus", "sentence order without two sentences", f"{PRETRAIN} --train single",
         "single has nothing for sop: N documents of one sentence. - a pair needs two sentences of one document; is there an "
         "empty line behind every paragraph?", recipe()),
    Case("Pre-training: a prepared corpus", "the same in the held-out text", f"{PRETRAIN} --held-out single",
         "single has nothing for sop: N documents of one sentence. - ...", recipe()),
    Case("Pre-training: recipes", "a model whose run is not finished", "inspect half",
         "half is not finished: half.run holds its run. - start the same command again", lambda place: (place / "half.run").mkdir()),
    Case("Pre-training: recipes", "no such recipe", "pretrain albert-nono --out new",
         "albert-nono: no such file, and no recipe is called that; did you mean albert-nano...?"),
    Case("Pre-training: recipes", "a folder", "pretrain words --out new",
         "words is a folder; expected a recipe's file, such as words/recipe.toml, or name"),
    Case("Pre-training: recipes", "no TOML", PRETRAIN, "r.toml is no TOML: ...", file("r.toml", "name = ")),
    Case("Pre-training: recipes", "keys that nobody knows", PRETRAIN,
         "r.toml: model.num_layers is no key; did you mean num_hidden_layers?", recipe("num_hidden_layers", "num_layers")),
    Case("Pre-training: recipes", "a wrong kind", PRETRAIN, "r.toml: model.hidden_size is 'x', expected a whole number",
         recipe("hidden_size = 12", "hidden_size = 'x'")),
    Case("Pre-training: recipes", "options that are no table", PRETRAIN, "r.toml: objectives.mlm is 1, expected an object",
         recipe(more="[objectives]\nmlm = 1\n")),
    Case("Pre-training: recipes", "a rate that is no number", f"{PRETRAIN} --set optimizer.learning_rate=nan",
         "r.toml: optimizer.learning_rate is nan, expected a number", recipe()),
    Case("Pre-training: recipes", "a budget of nothing", f"{PRETRAIN} --set budget.tokens=0",
         "r.toml: budget.tokens is 0, it must be above 0", recipe()),
    Case("Pre-training: recipes", "two budgets", PRETRAIN,
         "r.toml: budget gives tokens, steps; expected exactly one of tokens, steps, flops, minutes",
         recipe("steps = 4", "steps = 4\ntokens = 4")),
    Case("Pre-training: recipes", "stages that make no whole", PRETRAIN,
         "r.toml: the stages' shares are 0.4, 0.5: expected parts above 0 that make 1", recipe("share = 0.5", "share = 0.4")),
    Case("Pre-training: recipes", "sequences longer than the position table and the batch", PRETRAIN,
         "r.toml: stages[2].max_length 128 is more than batch.tokens 100; stages[2].max_length 128 is more than the model's 64 "
         "positions", recipe("max_length = 32", "max_length = 128")),
    Case("Pre-training: recipes", "replaced tokens in an ALBERT", PRETRAIN,
         "r.toml: rtd wants a model of the family electra, this one is albert", recipe('["mlm"]', '["rtd"]')),
    Case("Pre-training: recipes", "sentence order in a RoBERTa", PRETRAIN,
         "r.toml: sop wants a model of the family albert or bert, this one is roberta", recipe('"albert"', '"roberta"')),
    Case("Pre-training: recipes", "two kinds of pairs", PRETRAIN,
         "r.toml: stages[2]: objectives: nsp and sop do not go together: ...", recipe('"sop"', '"sop", "nsp"')),
    Case("Pre-training: recipes", "a pattern that a stage cannot have", PRETRAIN,
         "r.toml: stages[2].sharing: sharing pattern 'groups=9' for 2 calls: ...",
         recipe(more='sharing = "groups=9"\n')),
    Case("Pre-training: recipes", "a BERT whose folder could not say its width", PRETRAIN,
         "r.toml: model.embedding_size is 6 and model.hidden_size 12: bert has no projection between them; give both the same "
         "value", recipe('"albert"', '"bert"\nembedding_size = 6')),
    Case("Pre-training: recipes", "no layer", PRETRAIN,
         "r.toml: model: num_hidden_layers is 0, it must be at least 1 and at most 1000",
         recipe("num_hidden_layers = 2", "num_hidden_layers = 0")),
    Case("Pre-training: recipes", "a model larger than the memory", PRETRAIN,
         "r: a model of this size cannot be built here: ...", recipe("hidden_size = 12", "hidden_size = 2_000_000_000")),
    Case("Pre-training: recipes", "a word table smaller than the vocabulary", PRETRAIN,
         "pre-training: the vocabulary has N tokens, the word table 7 rows", recipe("[corpus]", "vocab_size = 7\n[corpus]")),
    Case("Pre-training: recipes", "a finished model", "pretrain r.toml --out model",
         "model holds a finished model; choose another --out, or --restart to train it anew", recipe()),
    Case("Places to write", "a folder of somebody's own", "finetune model --out words --data good.csv",
         "words holds other things than a checkpoint; expected a new, empty or checkpoint folder"),
    Case("Places to write", "a file for a folder", "finetune model --out good.csv/out --data good.csv",
         "good.csv is a file, expected the name of a folder"),
    Case("Places to write", "a study in a folder that holds none", COMPARE.replace("new", "words"),
         "words is not empty and holds no study; use another --out"),
    Case("Places to write", "a folder for a file", f"{PREDICT} --out words.csv",
         "words.csv is a folder, expected the name of a file to write", lambda place: (place / "words.csv").mkdir()),
]  # fmt: skip

INTRODUCTION = """\
# Bad input and what is said about it

Errors are one or two lines, leave with code 2, and write nothing. They say what was expected, what came and what to do.
Below, `N` stands for a number and `...` for words that depend on the file or on a library. The commands ran in a folder
that holds the checkpoint `model`, its vocabulary `words`, the fine-tuned model `tuned`, the study `study`, the data file
`good.csv`, the prepared texts `corpus` and `single`, and, where it is named, the recipe `r.toml`.

The table is `CASES` of `tests/bad_input.py`; a test types every command and compares every message. Written by

    python tests/bad_input.py > docs/bad-input.md

What looks odd and is read as it is: a byte order mark of UTF-8, lines of any length, NUL letters inside a text,
empty texts, texts of emoji, texts written from right to left or in several scripts, values nested in JSON (they become
JSON text), weights in float64, float16 or bfloat16 (they become float32).
"""


def document() -> str:
    """Give docs/bad-input.md."""
    lines = [INTRODUCTION]
    for group in dict.fromkeys(case.group for case in CASES):
        lines += [f"## {group}\n", "| case | `thrice ...` | message |", "|---|---|---|"]
        cells = [
            (case.what, f"`{case.command}`", f"`` {case.message} ``".replace("\n", " ``<br>`` "))
            for case in CASES
            if case.group == group
        ]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(document(), end="")
