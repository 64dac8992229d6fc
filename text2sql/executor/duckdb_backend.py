"""
DuckDB, read-only: the file is opened so, nothing outside it can be reached (no files, no extensions, no settings), and
only a single SELECT or EXPLAIN is run. A timer interrupts at the deadline.
"""

import threading
import time

import duckdb

from text2sql.executor.backend import NO_STATEMENT, LateError, cell_bytes, longest_cell, plain_rows, read_rows
from text2sql.executor.result import Answer, Execution, Limits, Row, Status, out_of_memory, stopped

_READING = ("SELECT", "EXPLAIN")
_MACHINE_FAILED = (duckdb.IOException, duckdb.InternalException, duckdb.FatalException)


def open_database(database: str, limits: Limits) -> "DuckdbBackend":
    return DuckdbBackend(database, limits)


class DuckdbBackend:
    """One read-only connection; its memory limit is that of the first statement."""

    def __init__(self, database: str, limits: Limits) -> None:
        self._connection = duckdb.connect(database, read_only=True)
        for setting, value in {
            "memory_limit": f"{limits.memory_bytes // 2**20}MiB",
            "threads": 1,
            "temp_directory": "",  # sorting must not write files either
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "enable_external_access": False,
            "lock_configuration": True,  # the last one: from here on nothing can be set
        }.items():
            self._connection.execute(f"SET {setting} = '{value}'")

    def close(self) -> None:
        self._connection.close()

    def run(self, sql: str, limits: Limits) -> Answer:
        started = time.perf_counter()
        deadline = started + limits.timeout_seconds
        timer = threading.Timer(limits.timeout_seconds, self._connection.interrupt)
        timer.start()
        columns: tuple[str, ...] = ()
        rows: list[Row] = []
        size, message = 0, None
        status: Status
        try:
            statement = self._single_query(sql)
            cursor = self._connection.execute(statement)
            columns = tuple(column[0] for column in cursor.description or ())

            def fetch(count: int) -> list[Row]:
                return plain_rows(cursor.fetchmany(count))

            size, message = read_rows(fetch, rows, limits, lambda: time.perf_counter() > deadline, cell_bytes)
            if longest_cell(rows) > limits.max_cell_bytes:
                rows, message = [], f"a cell of more than {limits.max_cell_bytes:,} bytes"
            status = "too_large" if message else "ok" if rows else "empty"
        except _NoStatementError:
            status, message = "empty", NO_STATEMENT
        except (duckdb.InterruptException, LateError):
            status, rows, message = "timeout", [], stopped(limits)
        except duckdb.OutOfMemoryException:
            status, rows, message = "too_large", [], out_of_memory(limits)
        except _MACHINE_FAILED:
            raise
        except (duckdb.Error, _RefusedError, ValueError, RuntimeError) as error:
            status, rows, message = "error", [], str(error)
        finally:
            timer.cancel()
        execution = Execution(status, columns, tuple(rows), time.perf_counter() - started, message)
        return Answer(execution, size, repeatable=status != "timeout")

    def _single_query(self, sql: str) -> duckdb.Statement:
        sql.encode()  # DuckDB's own complaint at text that is no Unicode is no error of the SQL
        statements = self._connection.extract_statements(sql)
        if not statements:
            raise _NoStatementError
        if len(statements) > 1:
            raise _RefusedError("You can only execute one statement at a time.")
        kind = statements[0].type.name
        if not kind.startswith(_READING):
            raise _RefusedError(f"only reading is allowed, refused: {kind.replace('_', ' ')}")
        return statements[0]


class _RefusedError(Exception):
    """More than one statement, or one that is no query."""


class _NoStatementError(Exception):
    """The text is empty, or all comment."""
