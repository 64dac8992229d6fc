"""
What a database system has to offer to be executed on: open a connection, run one statement read-only within limits.

A backend lives in a worker process and may block: the pool kills the worker when a deadline passes unanswered.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from text2sql.executor.result import Answer, Job, Limits, Row

BackendName = Literal["sqlite", "duckdb", "postgres"]
ROWS_AT_ONCE = 256
NO_STATEMENT = "the text holds no SQL statement"


class LateError(Exception):
    """The deadline of a statement passed between two of its rows."""


class Backend(Protocol):
    """One open connection to one database."""

    def run(self, sql: str, limits: Limits) -> Answer:
        """Runs one statement. A statement that fails is an Answer; an exception means that the connection is lost."""
        ...

    def close(self) -> None: ...


def backend_name(database: str) -> BackendName:
    """`postgresql://…` is a PostgreSQL server, a path that ends in .duckdb is DuckDB, all else is an SQLite file."""
    if database.startswith(("postgresql://", "postgres://")):
        return "postgres"
    return "duckdb" if database.endswith(".duckdb") else "sqlite"


def shown(database: str) -> str:
    """The database as messages may name it: without the password of an address."""
    return re.sub(r"(://[^:@/]*):[^@]*@", r"\1:…@", database)


def open_backend(job: Job) -> Backend:
    """Opens the job's database; the backend's module, and with it its library, is imported only here."""
    name = backend_name(job.database)
    module = importlib.import_module(f"text2sql.executor.{name}_backend")
    backend: Backend = module.open_database(job.database, job.limits)
    return backend


def read_rows(
    fetch: Callable[[int], Sequence[Row]],
    rows: list[Row],
    limits: Limits,
    late: Callable[[], bool],
    size_of: Callable[[Sequence[Row]], int],
) -> tuple[int, str | None]:
    """
    Reads into `rows`, some at once, until there is no more or a limit is reached. Returns the size of what was read in
    bytes and, when a limit ended it, which one. Raises LateError.
    """
    size = 0
    while chunk := fetch(min(ROWS_AT_ONCE, limits.max_rows + 1 - len(rows))):
        size += size_of(chunk)
        if size > limits.max_result_bytes:
            return size, f"a result of more than {limits.max_result_bytes:,} bytes"
        rows += chunk
        if len(rows) > limits.max_rows:
            rows.pop()
            return size, f"more than {limits.max_rows:,} rows"
        if late():
            raise LateError
    return size, None


def plain_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows whose cells can be compared and hashed: lists, structs and the like become text."""
    return [tuple(str(cell) if isinstance(cell, list | dict | set | tuple) else cell for cell in row) for row in rows]


def cell_bytes(rows: Sequence[Row]) -> int:
    """About what the cells take."""
    return sum(len(cell) if isinstance(cell, str | bytes) else 16 for row in rows for cell in row)


def longest_cell(rows: Sequence[Row]) -> int:
    return max((len(cell) for row in rows for cell in row if isinstance(cell, str | bytes)), default=0)
