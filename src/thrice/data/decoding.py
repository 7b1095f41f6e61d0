"""Bytes of a text file to text: unpacked, UTF-8, and where it is not, a guess at what it is."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from thrice.errors import DataError

# UTF-32 first: its mark begins with that of UTF-16.
MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
SAMPLE = 1 << 20
"""Bytes that a guess looks at."""


def bytes_of(path: Path) -> bytes:
    """Give the bytes of a file, unpacked where it ends in .gz, without UTF-8's byte order mark; raises DataError."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix.lower() == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise cannot_be_read(path, error) from error
    return data.removeprefix(b"\xef\xbb\xbf")


def cannot_be_read(path: Path, error: Exception) -> DataError:
    """Give the error of a file that cannot be read or unpacked."""
    cut = isinstance(error, EOFError | zlib.error) or "CRC" in str(error)
    hint = ". - is it a whole copy? test it: gzip -t" if cut else ""
    return DataError(f"{path} cannot be read: {error}{hint}")


def decoded(data: bytes, name: str, *, first_line: int = 1) -> str:
    """Give the text of UTF-8 bytes; raises DataError that names the line, the likely encoding and how to convert it.

    first_line: of a file's bytes that these are; only its beginning tells two bytes a letter from one.
    """
    if first_line == 1 and (encoding := _wide_encoding(data)) is not None:
        raise DataError(f"{name} is {encoding}, expected UTF-8; convert it: {_conversion(encoding)}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + first_line
        encoding = _narrow_encoding(data)
        way_out = (
            f"if the file is {encoding}: {_conversion(encoding)}"
            if encoding
            else "find its encoding, such as with `file -i`, and convert it: iconv -f ENCODING -t UTF-8"
        )
        raise DataError(f"{name}: line {line} is not UTF-8 (byte {data[error.start]:#04x}); {way_out}") from error


def _conversion(encoding: str) -> str:
    return f"iconv -f {encoding} -t UTF-8"


def _wide_encoding(data: bytes) -> str | None:
    """Give the encoding of two or four bytes a letter that a file begins like, with its mark or without."""
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            return encoding
    # Without a mark: a first line of plain letters has a NUL after or before each of them.
    first, second = data[:16:2], data[1:16:2]
    for zeros, letters, encoding in ((second, first, "UTF-16LE"), (first, second, "UTF-16BE")):
        if len(zeros) >= 4 and not any(zeros) and 0 not in letters:
            return encoding
    return None


def _narrow_encoding(data: bytes) -> str | None:
    """Give the encoding that bytes which are no UTF-8 may be in, or None where none is likely.

    Chinese text has its high bytes in pairs, Western text one at a time between plain letters. Both decode as GB18030
    now and then: "\xfcr" in Latin-1 is one Chinese character there.
    """
    sample = data[:SAMPLE]
    runs = re.findall(rb"[\x80-\xff]+", sample)
    if 2 * sum(len(run) == 1 for run in runs) > len(runs):
        return "WINDOWS-1252" if _decodes(data, "cp1252") else "ISO-8859-1"
    return "GB18030" if _decodes(data, "gb18030") else None


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True
