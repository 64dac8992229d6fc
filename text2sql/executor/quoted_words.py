"""
A hint at misspelt columns in double quotes.

SQLite reads a double-quoted word that matches no column as a string: `SELECT "nmae" FROM st` runs and answers
nonsense, while gold relies on the same rule (`WHERE city = "Oslo"`). A word gets a hint when it was read as text and
stands where a value is unusual: in a select list, on the left of a comparison, in GROUP BY or ORDER BY. On the right
of a comparison or in the list of an IN it is taken for the string it is.
"""

import difflib
import re
import sqlite3
from collections.abc import Callable

_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)|\w+|<=|>=|<>|!=|==|\|\||[^\s]""",
    re.DOTALL,
)
_NAME = re.compile(r'"([^\W\d]\w*)"\Z')
_SURE_VALUE = re.compile(r'(?:[=<>]|\blike)\s*"[^"]*"', re.IGNORECASE)
_BEFORE_VALUES = frozenset({"=", "==", "!=", "<>", "<", ">", "<=", ">=", "||"}) | frozenset(
    {"like", "glob", "regexp", "match", "is", "not", "between", "and", "or", "then", "else", "escape", "values", "as"}
)
_COMPARISONS = frozenset({"=", "==", "!=", "<>", "<", ">", "<=", ">=", "like", "glob", "in", "not", "between", "is"})
_MOST_WORDS = 8  # each is one more statement to compile


def misread_words(sql: str, connection: sqlite3.Connection, column_names: Callable[[], list[str]]) -> str | None:
    """The hint for a statement that ran, None where there is nothing to say."""
    if '"' not in _SURE_VALUE.sub("", sql):  # the common case, quickly
        return None
    words: dict[str, None] = {}
    for start, end, word in _suspects(sql):
        if len(words) < _MOST_WORDS and word not in words and _read_as_text(sql, start, end, word, connection):
            words[word] = None
    if not words:
        return None
    parts = []
    for word in words:
        near = difflib.get_close_matches(word.lower(), [name.lower() for name in column_names()], n=1)
        parts.append(
            f'"{word}" matches no column and was read as text' + (f" (did you mean {near[0]}?)" if near else "")
        )
    return "; ".join(parts)


def _suspects(sql: str) -> list[tuple[int, int, str]]:
    """Double-quoted names that do not stand where a value is usual: (start, end, name)."""
    tokens = [match for match in _TOKEN.finditer(sql) if not match.group().startswith(("--", "/*"))]
    texts = [token.group().lower() for token in tokens]
    inside_list: list[bool] = []  # per open parenthesis: does it hold the values of an IN?
    found = []
    for position, token in enumerate(tokens):
        before = texts[position - 1] if position else ""
        after = texts[position + 1] if position + 1 < len(texts) else ""
        if texts[position] == "(":
            inside_list.append(before == "in")
        elif texts[position] == ")" and inside_list:
            inside_list.pop()
        name = _NAME.match(token.group())
        if name is None or before == "." or after == ".":
            continue
        left_of_comparison = after in _COMPARISONS
        is_value = before in _BEFORE_VALUES or (inside_list and inside_list[-1])
        if not is_value or (left_of_comparison and before in ("and", "or", "not")):
            found.append((token.start(), token.end(), name.group(1)))
    return found


def _read_as_text(sql: str, start: int, end: int, word: str, connection: sqlite3.Connection) -> bool:
    """Asks SQLite itself: with back-ticks, which are never a string, does the word still mean something?"""
    try:
        connection.execute(f"EXPLAIN {sql[:start]}`{word}`{sql[end:]}").close()
    except sqlite3.OperationalError as error:
        return str(error) == f"no such column: {word}"
    except (sqlite3.Error, sqlite3.Warning):
        return False
    return False
