"""From files to batches of ids: readers, splits, tokenizers, encoding, batching."""

from thrice.data.batching import prediction_batches, training_batches
from thrice.data.columns import Columns, guess_columns
from thrice.data.encoding import Encoded, encode_texts
from thrice.data.readers import Table, read_table
from thrice.data.splits import Split, overlap, split
from thrice.data.tokenizer import Tokenizer

__all__ = [
    "Columns",
    "Encoded",
    "Split",
    "Table",
    "Tokenizer",
    "encode_texts",
    "guess_columns",
    "overlap",
    "prediction_batches",
    "read_table",
    "split",
    "training_batches",
]
