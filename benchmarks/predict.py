"""Prediction: thrice against transformers' own class and ONNX Runtime, in bulk and one text at a time.

    python benchmarks/predict.py albert-tiny-zh albert-small-zh
    python benchmarks/predict.py albert-tiny-zh --bulk 0 --lengths 8 16 32 64 128

thrice is what `thrice predict` runs: `load_model(folder)`, tokens in, answers out. *stock* is transformers' class in
eager mode, arrival order, batches of 32 padded to their longest text. *onnx* is the stock model exported once and run
by ONNX Runtime in float32, texts sorted by length, batches of the same token budget. All start from token ids and end
with probabilities. Logits are checked equal to 1e-4 before anything is timed.

Two runtimes must not spin their threads at the same time: ONNX Runtime's do not spin here, the sides take turns, and
each turn begins with a pause in which the threads of the one before fall asleep. "control" is thrice against itself,
first after another side and then after thrice: were someone else's threads still spinning, it would not be 1.

Needs the extra `bench` (onnx, onnxruntime, onnxscript).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pairs import Sequences, padded
from texts import chinese_tokenizer, english_tokenizer, sequences_for
from timing import arguments_for, forward_flops, gemm_rate, interleave, padding_ratio, ratio, seconds, show, times
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from thrice.data.batching import prediction_batches
from thrice.data.columns import Columns
from thrice.data.encoding import Encoded
from thrice.finetune import save_model
from thrice.model.encoder import Encoder
from thrice.model.presets import PRESETS
from thrice.predict import FineTuned, load_model
from thrice.tasks.base import TaskModel
from thrice.tasks.classification import Classification, ClassificationData

MAX_TOKENS = 4096
PAUSE = 0.05
"""Seconds before every turn; OpenMP's threads spin for some milliseconds after their last work."""
Answer = Callable[[Sequences], np.ndarray]
"""Sequences -> (n, 2) probabilities, in the order of the sequences."""


def main(words: list[str] | None = None) -> None:
    """Print one table per preset, or JSON."""
    parser = arguments_for(__doc__)
    parser.add_argument("presets", nargs="*", default=["albert-tiny-zh"], help="names from `thrice list presets`")
    parser.add_argument("--bulk", type=int, default=512, help="texts answered at once (default 512; 0 for none)")
    parser.add_argument("--lengths", type=int, nargs="*", default=[8, 16, 32, 64, 128], help="tokens of single texts")
    parser.add_argument("--requests", type=int, default=20, help="single texts a round (default 20)")
    parser.add_argument("--max-length", type=int, default=512, help="tokens a text is cut to (default 512)")
    arguments = parser.parse_args(words)
    torch.set_num_threads(arguments.threads)
    for preset in arguments.presets:
        show(measure(preset, arguments), as_json=arguments.json, text=table)


def measure(preset: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give the ratios in bulk and for single texts."""
    config = PRESETS[preset]
    with tempfile.TemporaryDirectory() as place:
        folder = random_model(preset, Path(place) / "model", max_length=arguments.max_length)
        logging.disable_progress_bar()
        stock = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        session = onnx_session(stock, Path(place) / "model.onnx", threads=arguments.threads)
        tuned = load_model(folder)
    wanted = max(arguments.bulk, arguments.requests, 8)
    texts = sequences_for(config.vocab_size, count=wanted, max_length=arguments.max_length)
    answers: dict[str, Answer] = {
        "thrice": lambda sequences: thrice_answers(tuned, sequences),
        "stock": lambda sequences: stock_answers(stock, sequences),
        "onnx": lambda sequences: onnx_answers(session, sequences),
    }
    difference = check_equal(answers, texts[:40])
    result: dict[str, Any] = {
        "preset": preset,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "largest_difference": difference,
    }
    if arguments.bulk:
        result["bulk"] = bulk(config, answers, texts[: arguments.bulk], arguments)
    stream = [token for text in texts for token in text]
    result["single"] = [single(answers, stream, length, arguments) for length in arguments.lengths]
    return result


def bulk(config: Any, answers: Mapping[str, Answer], texts: Sequences, arguments: argparse.Namespace) -> dict[str, Any]:
    """Give what answering all texts takes on every side."""
    spent = _take_turns(answers, [texts], rounds=arguments.rounds)
    tokens = sum(map(len, texts))
    rate = gemm_rate(MAX_TOKENS, config.hidden_size, config.intermediate_size)
    floor = forward_flops(config, [len(s) for s in texts]) / rate
    arrival = [texts[start : start + 32] for start in range(0, len(texts), 32)]
    return {
        "texts": len(texts),
        "tokens": tokens,
        "padding_ratio": padding_ratio(arrival),
        "texts_per_second": {name: len(texts) / statistics.median(values) for name, values in spent.items()},
        **_ratios(spent),
        "gemm_gflops": rate / 1e9,
        "share_of_floor": floor / statistics.median(spent["thrice"]),
    }


def single(
    answers: Mapping[str, Answer], stream: list[int], length: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Give what answering one text of this length takes on every side; a round is several such requests."""
    starts = range(0, length * arguments.requests, length)
    texts = [(stream * (1 + (s + length) // len(stream)))[s : s + length] for s in starts]
    spent = _take_turns(answers, [[text] for text in texts], rounds=arguments.rounds)
    per_request = {name: 1000 * statistics.median(v) / len(texts) for name, v in spent.items()}
    return {"length": length, "milliseconds": per_request, **_ratios(spent)}


def _take_turns(answers: Mapping[str, Answer], portions: list[Sequences], *, rounds: int) -> dict[str, list[float]]:
    def side(answer: Answer) -> Callable[[int], float]:
        def run() -> None:
            for portion in portions:
                answer(portion)

        def turn(_: int) -> float:
            time.sleep(PAUSE)
            return seconds(run)

        return turn

    # Stock before thrice: whoever spins after its work would slow the first thrice and not the second.
    order = {"onnx": "onnx", "stock": "stock", "thrice": "thrice", "thrice again": "thrice"}
    return interleave({name: side(answers[which]) for name, which in order.items()}, rounds=rounds)


def _ratios(spent: Mapping[str, list[float]]) -> dict[str, Any]:
    ours = spent["thrice"]
    named = {"stock": "stock", "onnx": "onnx", "control": "thrice again"}
    return {name: ratio(ours, spent[side]) for name, side in named.items()}


# The three sides


def random_model(preset: str, folder: Path, *, max_length: int) -> Path:
    """Write a folder as `thrice finetune` does, with random weights and two classes."""
    config = PRESETS[preset]
    task = Classification(labels=("0", "1"), columns=Columns(text="text", label="label"), max_length=max_length)
    encoder = Encoder(config.replace(initializer_range=0.05))
    words = chinese_tokenizer() if config.vocab_size == 21128 else english_tokenizer()
    if words.vocab_size > config.vocab_size:
        # Only token ids are measured; any vocabulary that fits the table will do in the folder.
        words = chinese_tokenizer()
    return save_model(TaskModel(encoder, task), folder, words)


def thrice_answers(tuned: FineTuned, sequences: Sequences) -> np.ndarray:
    """Answer as `FineTuned.predict` does once the texts are ids."""
    lengths = [len(s) for s in sequences]
    encoded = Encoded(
        ids=np.concatenate([np.asarray(s, dtype=np.int32) for s in sequences]),
        type_ids=np.zeros(sum(lengths), dtype=np.uint8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        owner=np.arange(len(sequences)),
        num_cut=0,
    )
    data = ClassificationData(encoded, np.full(len(sequences), -100))
    answers = tuned.model.predict(data, max_tokens=MAX_TOKENS)
    return np.array([list(answer["probabilities"].values()) for answer in answers])


@torch.inference_mode()
def stock_answers(stock: Any, sequences: Sequences) -> np.ndarray:
    """Answer in arrival order, 32 texts a batch."""
    parts = [stock(**padded(sequences[start : start + 32])).logits for start in range(0, len(sequences), 32)]
    return torch.cat(parts).softmax(-1).numpy()


def onnx_answers(session: Any, sequences: Sequences) -> np.ndarray:
    """Answer sorted by length, batches of the token budget that thrice has."""
    probabilities = np.empty((len(sequences), 2))
    for indices in prediction_batches([len(s) for s in sequences], max_tokens=MAX_TOKENS):
        batch = {name: value.numpy() for name, value in padded([sequences[i] for i in indices]).items()}
        logits = session.run(["logits"], batch)[0]
        exponents = np.exp(logits - logits.max(-1, keepdims=True))
        probabilities[indices] = exponents / exponents.sum(-1, keepdims=True)
    return probabilities


def onnx_session(stock: Any, path: Path, *, threads: int) -> Any:
    """Export the stock model and give an ONNX Runtime session whose threads do not spin between two requests."""
    import onnxruntime

    class Logits(torch.nn.Module):
        """The one output that is compared."""

        def __init__(self) -> None:
            super().__init__()
            self.model = stock

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

    example = padded([[1] * 12, [1] * 9, [1] * 10])
    axes = {name: {0: torch.export.Dim("batch"), 1: torch.export.Dim("width", max=512)} for name in example}
    # The exporter reports on standard output and error what it does and which packages it could use.
    getLogger("torch.onnx").setLevel("ERROR")
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            Logits().eval(),
            (),
            str(path),
            kwargs=example,
            input_names=list(example),
            output_names=["logits"],
            dynamic_shapes=axes,
            dynamo=True,
            verbose=False,
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def check_equal(answers: Mapping[str, Answer], sequences: Sequences) -> float:
    """Give the largest difference between the logits of two sides; exit where it is above 1e-4."""
    margins = {}
    for name, answer in answers.items():
        # Probabilities to the difference of the two logits: as strict as the logits, up to what a softmax drops.
        probabilities = answer(sequences)
        margins[name] = np.log(probabilities[:, 0]) - np.log(probabilities[:, 1])
    worst = {name: float(np.abs(margin - margins["stock"]).max()) for name, margin in margins.items()}
    if not max(worst.values()) < 1e-4 or not np.ptp(margins["stock"]) > 1e-3:
        raise SystemExit(
            f"the sides do not answer the same: largest difference of logits from stock {worst}, while the texts "
            f"themselves differ by {np.ptp(margins['stock']):.1e}"
        )
    return max(worst.values())


def table(result: Mapping[str, Any]) -> str:
    """Give the result for a reader."""
    lines = [
        f"{result['preset']}: {result['rounds']} rounds, {result['threads']} threads, logits equal to "
        f"{result['largest_difference']:.0e}"
    ]
    if "bulk" in result:
        found = result["bulk"]
        rates = ", ".join(f"{name} {rate:.0f}" for name, rate in found["texts_per_second"].items())
        lines += [
            f"  {found['texts']} texts: {times(found['stock'])} over stock, {times(found['onnx'])} over ONNX Runtime; "
            f"control {times(found['control'])}",
            f"    texts a second: {rates}; padding ratio {found['padding_ratio']:.2f}; floor "
            f"{100 * found['share_of_floor']:.0f}% of thrice's time at {found['gemm_gflops']:.0f} GFLOP/s",
        ]
    for found in result["single"]:
        spent = ", ".join(f"{name} {value:.2f}" for name, value in found["milliseconds"].items())
        lines.append(
            f"  one text of {found['length']} tokens: {times(found['stock'])} over stock, {times(found['onnx'])} over "
            f"ONNX Runtime; control {times(found['control'])}; ms: {spent}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
