"""
SQLite, read-only.

The file is opened as immutable: no lock is taken or waited for, no journal or -wal file appears beside it, a read-only
folder is fine. An authorizer decides on the compiled statement, not on its words, and lets only reading through.
The deadline is checked by SQLite's progress handler; what that cannot interrupt (one long call of a function, the
parser) ends when the pool kills the worker.

Text is decoded with errors ignored, as the official evaluator does. Double-quoted words that match no column are
strings, as SQLite has it (gold relies on that); `hint` points at those that look like a misspelt column.
"""

import marshal
import re
import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from text2sql.executor.backend import NO_STATEMENT, LateError, read_rows
from text2sql.executor.quoted_words import misread_words
from text2sql.executor.result import Answer, Execution, Limits, Row, Status, stopped

STEPS_BETWEEN_CHECKS = 2000  # of SQLite's virtual machine: some 20 microseconds

_OK = sqlite3.SQLITE_OK
_ALWAYS_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_READING_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "foreign_key_list", "index_list", "index_info", "index_xinfo"}
)
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "sqlite_log"})
_UNREPEATABLE_FUNCTIONS = frozenset(
    {"random", "randomblob", "current_time", "current_date", "current_timestamp"}
    | {"date", "time", "datetime", "julianday", "unixepoch", "strftime"}  # of 'now', or of nothing
)
_ACTIONS = {
    value: constant.removeprefix("SQLITE_").replace("_", " ")
    for constant, value in vars(sqlite3).items()
    if re.match(
        r"SQLITE_((CREATE|DROP)_(TEMP_)?(TABLE|INDEX|VIEW|TRIGGER|VTABLE)"
        r"|INSERT|UPDATE|DELETE|ATTACH|DETACH|PRAGMA|TRANSACTION|SAVEPOINT|REINDEX|ANALYZE|FUNCTION|ALTER_TABLE)\Z",
        constant,
    )
}
_MACHINE_FAILED = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL}
)
_FILE_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def open_database(database: str, limits: Limits) -> "SqliteBackend":
    return SqliteBackend(Path(database))


class SqliteBackend:
    """One immutable connection. See the module's text for what it allows."""

    def __init__(self, database: Path) -> None:
        # as_uri quotes `#`, `?`, `%`, blanks and non-ASCII; glued together by hand such a path opens another file
        uri = f"{database.absolute().as_uri()}?mode=ro&immutable=1"
        # without the cache of compiled statements the authorizer sees each statement each time
        self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=0)
        self._connection.text_factory = partial(str, encoding="utf-8", errors="ignore")  # once a cell: no Python code
        self._connection.execute("PRAGMA temp_store = MEMORY")  # sorting must not write files either
        self._columns: list[str] | None = None
        self._deadline = 0.0
        self._refused: str | None = None
        self._repeatable = True
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._late, STEPS_BETWEEN_CHECKS)

    def close(self) -> None:
        self._connection.close()

    def run(self, sql: str, limits: Limits) -> Answer:
        self._refused, self._repeatable = None, True
        started = time.perf_counter()
        self._deadline = started + limits.timeout_seconds
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.max_cell_bytes)
        columns: tuple[str, ...] = ()
        rows: list[Row] = []
        size, message, hint = 0, None, None
        status: Status
        try:
            cursor = self._connection.execute(sql)
            columns = tuple(column[0] for column in cursor.description or ())
            size, message = read_rows(cursor.fetchmany, rows, limits, self._late, _marshalled_bytes)
            status = "too_large" if message else "ok" if rows else "empty"
            if not columns:
                message = NO_STATEMENT
            elif '"' in sql:
                hint = misread_words(sql, self._connection, self._column_names)
        except LateError:
            status, rows, message = "timeout", [], stopped(limits)
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in _MACHINE_FAILED or code in _FILE_BROKEN:
                broken = code in _FILE_BROKEN
                message = f"{error}. Restore the file from its source." if broken else str(error)
                failure = Execution("error", (), (), time.perf_counter() - started, message)
                return Answer(failure, failure="database" if broken else "infrastructure")
            status, message = self._explain(error, code, limits)
            rows = rows if status == "too_large" else []
        except (sqlite3.Warning, ValueError) as error:  # several statements; surrogates in the text
            status, message = "error", str(error)
        seconds = time.perf_counter() - started
        return Answer(
            Execution(status, columns, tuple(rows), seconds, message, hint),
            size,
            self._repeatable and status != "timeout",
        )

    def _late(self) -> bool:
        return time.perf_counter() > self._deadline

    def _explain(self, error: sqlite3.Error, code: int, limits: Limits) -> tuple[Status, str]:
        message = str(error)
        if code == sqlite3.SQLITE_INTERRUPT:
            return "timeout", stopped(limits)
        if code == sqlite3.SQLITE_TOOBIG:
            return "too_large", f"{message}; the limit is {limits.max_cell_bytes:,} bytes"
        if self._refused:
            return "error", f"only reading is allowed, refused: {self._refused}"
        return "error", message

    def _authorize(self, action: int, first: str | None, second: str | None, _: str | None, __: str | None) -> int:
        if action in _ALWAYS_READING:  # nearly all calls: one for each column a statement reads
            return _OK
        if action == sqlite3.SQLITE_FUNCTION and second and (name := second.lower()) not in _FORBIDDEN_FUNCTIONS:
            if name in _UNREPEATABLE_FUNCTIONS:
                self._repeatable = False
            return _OK
        if action == sqlite3.SQLITE_PRAGMA and first and first.lower() in _READING_PRAGMAS:
            return _OK
        if action == sqlite3.SQLITE_UPDATE and first == "sqlite_master":
            # SQLite announces this when json_each, pragma_table_info and the like are used for the first time; it
            # refuses a statement that really wants it by itself
            return _OK
        self._refused = self._refused or _refusal(action, first, second)
        return sqlite3.SQLITE_DENY

    def _column_names(self) -> list[str]:
        """All column names of the database, for hints."""
        if self._columns is None:
            tables = self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
            ).fetchall()
            found: dict[str, None] = {}
            for (table,) in tables:
                for column in self._connection.execute("SELECT name FROM pragma_table_info(?)", (table,)):
                    found[column[0]] = None
            self._columns = list(found)
        return self._columns


def _refusal(action: int, first: str | None, second: str | None) -> str:
    if first in ("sqlite_master", "sqlite_temp_master"):
        return "a change of the schema"
    name = second if action == sqlite3.SQLITE_FUNCTION else first
    return " ".join(filter(None, (_ACTIONS.get(action, "this statement"), name)))


def _marshalled_bytes(rows: Sequence[Row]) -> int:
    """The quickest way to add up the cells; SQLite itself refuses a cell beyond the limit."""
    return len(marshal.dumps(list(rows), 2))
