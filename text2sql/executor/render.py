"""The short text of a result that a model gets to see."""

import math
import re
from typing import Any

from text2sql.executor.result import Execution, Row

CELL_CHARACTERS = 60
BLOB_BYTES = 16
# a fixed list, not str.isprintable(): that one knows more characters with each release of Python
_UNSHOWABLE = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")


def render_result(execution: Execution, max_characters: int) -> str:
    """
    At most `max_characters` of plain text, the same for the same execution on every machine and always valid UTF-8:
    NULL stands for itself, texts are in single quotes (so 'NULL' and '' differ from NULL), blobs are X'…' in hex, long
    cells are cut with a mark and their length, control characters are escaped. An all-NULL result says so; it differs
    from an empty one.

        2 rows (name, age): ('Ana', 31), ('Bo', NULL)
    """
    hint = f" Hint: {_showable(execution.hint)}." if execution.hint else ""
    room = max(max_characters - len(hint), max_characters // 2)
    return _cut(_body(execution, room) + hint, max_characters)


def _body(execution: Execution, room: int) -> str:
    message = _showable(execution.message or "")
    if execution.status == "error":
        return f"error: {message}"
    if execution.status == "timeout":
        return f"timeout: {message}"
    if execution.status == "too_large" and not execution.rows:
        return f"too large: {message}"
    if execution.status == "empty" and not execution.columns:
        return f"no result: {message}"
    count = len(execution.rows)
    head = f"{count:,} row{'' if count == 1 else 's'}"
    if execution.status == "too_large":
        head = f"too large: {message}; the first {head}"
    elif count and all(cell is None for row in execution.rows for cell in row):
        head += ", every value NULL"
    columns = _cut(", ".join(_showable(column) for column in execution.columns), max(20, room // 3))
    return _rows(f"{head} ({columns})", execution.rows, room)


def _rows(head: str, rows: tuple[Row, ...], room: int) -> str:
    """As many whole rows as there is room for, and how many more there are; of a first row that is too long, a part."""
    text = head
    for position, row in enumerate(rows):
        separator = ", " if position else ": "
        shown = f"({', '.join(_cell(cell) for cell in row)})"
        rest = len(rows) - position
        more = f" … {rest - 1:,} more" if rest > 1 else ""
        if len(text) + len(separator) + len(shown) + len(more) > room:
            if position:
                return f"{text} … {rest:,} more"
            return _cut(text + separator + shown, room)
        text += separator + shown
    return text


def _cell(cell: Any) -> str:
    if cell is None:
        return "NULL"
    if isinstance(cell, bytes):
        mark = f"… ({len(cell):,} bytes)" if len(cell) > BLOB_BYTES else ""
        return f"X'{cell[:BLOB_BYTES].hex().upper()}'{mark}"
    if isinstance(cell, float):
        return repr(cell) if math.isfinite(cell) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(cell, "NaN")
    if isinstance(cell, str):
        mark = f"… ({len(cell):,} characters)" if len(cell) > CELL_CHARACTERS else ""
        return "'" + _showable(cell[:CELL_CHARACTERS]).replace("'", "''") + f"'{mark}"
    return _showable(str(cell))


def _showable(text: str) -> str:
    return _UNSHOWABLE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: max(0, characters - 1)] + "…"
