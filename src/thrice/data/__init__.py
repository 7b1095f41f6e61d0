"""From files to batches of ids: readers, splits, tokenizers, encoding, batching; corpora and their segments."""

from thrice.data.batching import prediction_batches, training_batches
from thrice.data.columns import Columns, guess_columns
from thrice.data.corpus import Corpus, prepare_corpus
from thrice.data.encoding import Encoded, encode_texts
from thrice.data.readers import Table, read_table
from thrice.data.segments import Position, PretrainingExample, SegmentStream
from thrice.data.splits import Split, overlap, split
from thrice.data.tokenizer import Tokenizer
from thrice.data.vocabulary_training import train_vocabulary

__all__ = [
    "Columns",
    "Corpus",
    "Encoded",
    "Position",
    "PretrainingExample",
    "SegmentStream",
    "Split",
    "Table",
    "Tokenizer",
    "encode_texts",
    "guess_columns",
    "overlap",
    "prediction_batches",
    "prepare_corpus",
    "read_table",
    "split",
    "train_vocabulary",
    "training_batches",
]
