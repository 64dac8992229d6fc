"""
Text and JSON files, always as UTF-8: those that others wrote, with the place named when reading fails, and small ones of
ours, which appear whole or not at all.
"""

import json
import os
from pathlib import Path
from typing import Any

from text2sql.errors import DataError


def read_text(path: Path) -> str:
    """
    The text of a UTF-8 file, whatever the machine's locale is; a byte order mark is left out. Raises DataError.

    >>> read_text(Path("dev.json"))  # doctest: +SKIP
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}: byte {error.start} (line {line}) is not UTF-8 ({error.reason}). "
            "Save the file as UTF-8, or take it from the release again."
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_json(path: Path) -> Any:
    """The parsed content of a UTF-8 JSON file. Raises DataError with line and column."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not valid JSON: {error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}. "
            "The file may be cut short; take it from the release again."
        ) from None


def write_whole(path: Path, text: str) -> None:
    """Writes the file so that whoever reads it, or goes on after a kill, finds all of the text or what was there before."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def json_line(value: Any) -> bytes:
    """A line of JSON Lines. Half of a surrogate pair, which JSON can say and UTF-8 cannot, becomes a question mark."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8", "replace")
