"""A tokenizer found by its vocabulary file, saved so that stock transformers gives the same ids."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thrice.data.spiece import read_spiece
from thrice.data.vocabulary import check_agreement, looks_cased, plain_vocabulary
from thrice.errors import DataError
from thrice.files import read_json, write_atomically, write_json

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

LOG = logging.getLogger(__name__)

VOCABULARY_FILES = ("vocab.txt", "spiece.model", "vocab.json", "merges.txt")
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
SPECIAL_NAMES = {
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "pad_token": ("[PAD]", "<pad>"),
    "mask_token": ("[MASK]", "<mask>"),
}
REQUIRED = ("unk_token", "cls_token", "sep_token")
CLASS_OF_FILE = {
    "tokenizer.json": "PreTrainedTokenizerFast",
    "vocab.txt": "BertTokenizer",
    "spiece.model": "AlbertTokenizer",
    "vocab.json": "RobertaTokenizer",
}
# Sentencepiece files whose ids are not their rows, or whose texts are prepared in another way than ALBERT's.
OTHER_SENTENCEPIECE = {"spm.model": "DeBERTa", "sentencepiece.bpe.model": "XLM-RoBERTa"}
# Which stock class reads which kind of tokenizer.json; the last one takes any of them as it is.
STOCK_CLASSES = {"WordPiece": "BertTokenizer", "Unigram": "AlbertTokenizer", "BPE": "RobertaTokenizer"}
ANY_CLASS = "PreTrainedTokenizerFast"


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The special tokens around one text or around a pair."""

    before: tuple[int, ...]
    """Ids before the first text."""
    between: tuple[int, ...]
    """Ids between the texts of a pair; () for one text. They belong to the first segment."""
    after: tuple[int, ...]
    """Ids after the last text."""

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """Texts to ids, for encoders whose sequences begin and end with a token of their own."""

    hf: PreTrainedTokenizerFast
    """The stock tokenizer; gives token_type_ids exactly where pairs have segments."""
    backend: tokenizers.Tokenizer
    """Its Rust half, shared with `hf`; every method here leaves it without padding and truncation."""
    cls_token_id: int
    """First token of every sequence."""
    sep_token_id: int
    """Last token of every text."""
    unk_token_id: int
    """Stands for what the vocabulary lacks."""
    pad_token_id: int | None
    """None where the vocabulary has none."""
    mask_token_id: int | None
    """None where the vocabulary has none."""
    vocab_size: int
    """Largest id + 1; the word table of a model has at least so many rows."""
    single: Frame
    """Around one text."""
    pair: Frame
    """Around a pair of texts."""
    second_type: int
    """token_type_id of the second text of a pair: 1, or 0 for models with one type."""
    fingerprint: str
    """sha256 (hex) of the whole pipeline, vocabulary included; survives saving and loading."""
    vocabulary_files: dict[str, bytes]
    """Vocabulary files of the source folder under their stock names; they travel along."""

    @classmethod
    def from_folder(
        cls, folder: str | Path, *, vocab_size: int | None = None, type_vocab_size: int | None = None
    ) -> Tokenizer:
        """Load the tokenizer of a folder; the vocabulary file decides which, not the model type.

        tokenizer.json is taken as it is; vocab.txt is WordPiece, also beside an `albert` config; spiece.model (or the
        only *.model) is ALBERT's sentencepiece; vocab.json + merges.txt is RoBERTa's byte-level BPE. Settings such as
        do_lower_case come from tokenizer_config.json.
        vocab_size: rows of the model's word table. type_vocab_size: rows of its type table; 1 turns segments off.
        Raises DataError if there is no vocabulary or more than one, if [UNK], [CLS] or [SEP] is missing, or if an id
        lies beyond the word table.
        """
        folder = Path(folder)
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        files = {name: (folder / name).read_bytes() for name in VOCABULARY_FILES if name in names}
        models = [name for name in names if name.endswith(".model") and name not in OTHER_SENTENCEPIECE]
        if "spiece.model" not in files and len(models) == 1:
            files["spiece.model"] = (folder / models[0]).read_bytes()
        kinds = _kinds(names, files)
        others = sorted(set(names) & OTHER_SENTENCEPIECE.keys())
        if not kinds and others:
            raise DataError(
                f"{folder}: {others[0]} is {OTHER_SENTENCEPIECE[others[0]]}'s sentencepiece, and a tokenizer.json is "
                "expected beside it. - write one with transformers: "
                f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
            )
        if not kinds:
            seen = f"it holds {', '.join(names)}" if names else "it is empty or no folder"
            raise DataError(
                f"{folder} has no tokenizer: expected tokenizer.json, vocab.txt, spiece.model, or vocab.json with "
                f"merges.txt; {seen}"
            )
        if len(kinds) > 1 and kinds[0] != "tokenizer.json":
            raise DataError(f"{folder} holds several vocabularies, {' and '.join(kinds)}; keep the one of the model")
        hf, vocabulary = _load(folder, kinds[0], files)
        backend = hf.backend_tokenizer
        backend.no_truncation()  # some published files carry settings for both, which are no part of the pipeline
        backend.no_padding()
        hf.truncation_side = "right"
        token, largest = max(backend.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        if vocab_size is not None and largest >= vocab_size:
            raise DataError(
                f"{folder}: the tokenizer gives ids up to {largest} ({token!r}), the model's word table has "
                f"{vocab_size} rows; this tokenizer belongs to another model"
            )
        if vocab_size is not None and 10 * (largest + 1) < 9 * vocab_size:
            LOG.warning(
                "%s: %s has %d tokens, the model's word table %d rows: a file cut short, or the tokenizer of another "
                "model?",
                *(folder, kinds[0], largest + 1, vocab_size),
            )
        single, _ = _frame(backend, hf, folder, pair=False)
        pair, second_type = _frame(backend, hf, folder, pair=True)
        second_type = 0 if type_vocab_size == 1 else second_type
        # Stock AlbertTokenizer leaves token_type_ids out, and pairs silently lose their segments.
        hf.model_input_names = ["input_ids", *(["token_type_ids"] if second_type else []), "attention_mask"]
        return cls(
            hf=hf,
            backend=backend,
            cls_token_id=vocabulary[hf.cls_token],
            sep_token_id=vocabulary[hf.sep_token],
            unk_token_id=vocabulary[hf.unk_token],
            pad_token_id=hf.pad_token_id,
            # Stock code makes up a mask behind the vocabulary where there is none.
            mask_token_id=vocabulary.get(str(hf.mask_token)),
            vocab_size=largest + 1,
            single=single,
            pair=pair,
            second_type=second_type,
            fingerprint=hashlib.sha256(_pipeline(backend).encode()).hexdigest(),
            vocabulary_files=files,
        )

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of every text without [CLS] and [SEP]."""
        # A call of the stock tokenizer with truncation or padding leaves both switched on in the shared backend.
        self.backend.no_truncation()
        self.backend.no_padding()
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def join(self, first: list[int], second: list[int] | None = None) -> tuple[list[int], list[int]]:
        """Put the special tokens around the ids of a text or a pair; gives input_ids and token_type_ids."""
        if second is None:
            ids = [*self.single.before, *first, *self.single.after]
            return ids, [0] * len(ids)
        head = [*self.pair.before, *first, *self.pair.between]
        tail = [*second, *self.pair.after]
        return head + tail, [0] * len(head) + [self.second_type] * len(tail)

    def encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int | None = None
    ) -> list[tuple[list[int], list[int]]]:
        """Give (input_ids, token_type_ids) of every text or pair.

        max_length: tokens, special ones included; longer ones lose their end, pairs the end of the longer text, as
        with `truncation=True` in transformers.
        """
        firsts = self.content_ids(texts)
        if pairs is None:
            room = None if max_length is None else max(0, max_length - len(self.single))
            return [self.join(first[:room]) for first in firsts]
        seconds = self.content_ids(pairs)
        encoded = []
        for first, second in zip(firsts, seconds, strict=True):
            keep = (len(first), len(second))
            if max_length is not None:
                keep = longest_first(*keep, max(0, max_length - len(self.pair)))
            encoded.append(self.join(first[: keep[0]], second[: keep[1]]))
        return encoded

    def save(self, folder: str | Path) -> Path:
        """Write the files from which stock AutoTokenizer gives the same ids and token_type_ids, whatever the config.

        Files of another tokenizer in the folder are removed. Raises DataError if no stock class reproduces this one.
        """
        folder = Path(folder)
        with tempfile.TemporaryDirectory() as name:
            stage = Path(name)
            self.hf.save_pretrained(stage)
            settings = read_json(stage / "tokenizer_config.json")
            for key in ("auto_map", "is_local", "local_files_only", "name_or_path", "processor_class"):
                settings.pop(key, None)
            settings["model_input_names"] = self.hf.model_input_names
            settings["tokenizer_class"] = self._stock_class(stage, settings)
            pipeline = (stage / "tokenizer.json").read_bytes()
        for name, content in self.vocabulary_files.items():
            write_atomically(folder / name, content)
        write_atomically(folder / "tokenizer.json", pipeline)
        write_json(folder / "tokenizer_config.json", settings)
        for stale in {*VOCABULARY_FILES, *SETTINGS_FILES} - {*self.vocabulary_files, "tokenizer_config.json"}:
            (folder / stale).unlink(missing_ok=True)
        return folder

    def _stock_class(self, stage: Path, settings: dict[str, Any]) -> str:
        """Give the name of the stock class that rebuilds exactly this pipeline from the files in `stage`."""
        import transformers

        # Stock classes with a constructor of their own take vocabulary and post-processor from tokenizer.json, but the
        # normaliser from tokenizer_config.json: they may disagree with the file.
        mine = _pipeline(self.backend)
        for name in (STOCK_CLASSES.get(type(self.backend.model).__name__, ANY_CLASS), ANY_CLASS):
            write_json(stage / "tokenizer_config.json", {**settings, "tokenizer_class": name})
            try:
                loaded = getattr(transformers, name).from_pretrained(stage)
            except (TypeError, ValueError):
                continue
            if _pipeline(loaded.backend_tokenizer) == mine:
                return name
        raise DataError("no stock tokenizer class gives back this tokenizer; nothing was saved")


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Give how many tokens of each text of a pair are kept in `room` tokens, as the `tokenizers` library does it."""
    if first + second <= room:
        return first, second
    short, long = min(first, second), max(first, second)
    long = max(short, room - short)
    if short + long > room:
        short = room // 2
        long = short + room % 2
    return (short, long) if first <= second else (long, short)


def has_vocabulary(folder: Path) -> bool:
    """Say whether a folder holds a vocabulary that `Tokenizer.from_folder` would read."""
    names = [path.name for path in folder.iterdir()]
    return any(name.endswith(".model") for name in names) or bool(_kinds(names, dict.fromkeys(names, b"")))


def _kinds(names: list[str], files: dict[str, bytes]) -> list[str]:
    """Give what vocabularies a folder holds, the strongest first."""
    kinds = ["tokenizer.json"] if "tokenizer.json" in names else []
    kinds += [name for name in ("vocab.txt", "spiece.model") if name in files]
    return kinds + (["vocab.json"] if {"vocab.json", "merges.txt"} <= set(files) else [])


def _load(folder: Path, kind: str, files: dict[str, bytes]) -> tuple[PreTrainedTokenizerFast, dict[str, int]]:
    """Build the stock tokenizer; gives the vocabulary as the file has it too, before stock code adds tokens to it."""
    import transformers
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

    arguments: dict[str, Any] = {}
    try:
        if kind == "tokenizer.json":
            whole = Backend.from_file(str(folder / kind))
            vocabulary, own = (
                whole.get_vocab(with_added_tokens=True),
                max(whole.get_vocab(False).values(), default=-1) + 1,
            )
        elif kind == "spiece.model":
            arguments = read_spiece(files[kind])
            vocabulary = {piece: index for index, (piece, _) in enumerate(arguments["vocab"])}
        else:
            vocabulary = plain_vocabulary(kind, files[kind])
    except Exception as error:  # the Rust library raises plain Exception
        raise DataError(f"{folder}: {kind} cannot be read: {error}") from error
    if kind == "tokenizer.json":
        check_agreement(folder, vocabulary, files, own=own)

    settings = _settings(folder)
    named = settings["added_tokens.json"].keys() | vocabulary.keys()
    special = {**settings["tokenizer_config.json"], **settings["special_tokens_map.json"]}
    missing = []
    for role, choices in SPECIAL_NAMES.items():
        token = special.get(role)
        if token is None:
            token = next((choice for choice in choices if choice in named), None)
            arguments |= {role: token} if token is not None else {}
        elif isinstance(token, dict):
            flags = {key: token[key] for key in ("lstrip", "rstrip", "single_word", "normalized") if key in token}
            token = token.get("content")
            arguments |= {role: AddedToken(token, special=True, **flags)}
        if role in REQUIRED and token not in named:
            missing.append(f"{role} ({token or ' or '.join(choices)})")
    if missing:
        raise DataError(f"{folder}: {kind} with {len(vocabulary)} tokens lacks {', '.join(missing)}")
    if kind == "vocab.txt" and "do_lower_case" not in special and looks_cased(vocabulary):
        LOG.warning(
            "%s: vocab.txt holds cased words, but no tokenizer_config.json says do_lower_case: texts are lower-cased, "
            'as stock transformers does; write {"do_lower_case": false} there if that is wrong',
            folder,
        )
    with tempfile.TemporaryDirectory() as name:
        # A folder with this vocabulary and nothing else, so that no other file has a say.
        stage = Path(name)
        for file, content in settings.items():
            if content:
                write_json(stage / file, content)
        for file in (kind, "merges.txt") if kind == "vocab.json" else (kind,):
            (stage / file).write_bytes(files[file] if file in files else (folder / file).read_bytes())
        stock = getattr(transformers, CLASS_OF_FILE[kind])
        try:
            if kind == "spiece.model":
                options = ("do_lower_case", "keep_accents", "model_max_length")
                hf = stock(**{key: special[key] for key in options if key in special}, **arguments)
            else:
                hf = stock.from_pretrained(stage, **arguments)
        except (TypeError, ValueError) as error:
            raise DataError(f"{folder}: {kind} does not make a {CLASS_OF_FILE[kind]}: {error}") from error
    return hf, {**settings["added_tokens.json"], **vocabulary}


def _settings(folder: Path) -> dict[str, dict[str, Any]]:
    """Give the content of the settings files, {} where there is none."""
    settings: dict[str, dict[str, Any]] = {}
    for name in SETTINGS_FILES:
        try:
            settings[name] = dict(read_json(folder / name)) if (folder / name).exists() else {}
        except (ValueError, TypeError) as error:
            raise DataError(f"{folder / name} is no JSON object: {error}") from error
        settings[name].pop("auto_map", None)
    return settings


def _frame(
    backend: tokenizers.Tokenizer, hf: PreTrainedTokenizerFast, folder: Path, *, pair: bool
) -> tuple[Frame, int]:
    """Find the special tokens around texts and the type of the second one, by encoding a text of one known token."""
    word = str(hf.unk_token)
    encoding = backend.encode(word, word) if pair else backend.encode(word)
    content = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
    ids, types = encoding.ids, encoding.type_ids
    first, last = (content[0], content[-1]) if content else (0, 0)
    frame = Frame(before=tuple(ids[:first]), between=tuple(ids[first + 1 : last]), after=tuple(ids[last + 1 :]))
    expected_types = [0] * (last if pair else len(ids)) + [types[last]] * (len(ids) - last if pair else 0)
    ends = (frame.before[:1], frame.after[-1:]) == ((hf.cls_token_id,), (hf.sep_token_id,))
    if len(content) != 1 + pair or not ends or types != expected_types or types[last] > 1:
        what = "a pair" if pair else "a text"
        raise DataError(
            f"{folder}: the tokenizer makes {encoding.tokens} with types {types} of {what}; "
            f"expected {hf.cls_token} first, {hf.sep_token} last, types 0 and then 0 or 1"
        )
    return frame, types[last]


def _pipeline(backend: tokenizers.Tokenizer) -> str:
    """Give the whole tokenizer as text, equal for equal tokenizers.

    The JSON reader of `tokenizers` gives unigram scores back with a wrong last digit, so they are compared as the
    float32 numbers they were.
    """
    text = backend.to_str()
    if type(backend.model).__name__ != "Unigram":
        return text
    pipeline = json.loads(text)
    pipeline["model"]["vocab"] = [
        [piece, struct.unpack("f", struct.pack("f", score))[0]] for piece, score in pipeline["model"]["vocab"]
    ]
    return json.dumps(pipeline)
