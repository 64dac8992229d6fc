"""
PostgreSQL, read-only.

Each statement is the query of a cursor in a read-only transaction of its own, sent alone (extended protocol), and
rolled back: the server itself refuses all that is no SELECT, VALUES or TABLE, and several statements. The server stops
it at the deadline, and also when the worker is gone. Connect with a role that may only read what it should see; a
superuser can read the server's files and is refused.

The data may change at any time, so no result is cached.
"""

import time

import psycopg
from psycopg import errors

from text2sql.errors import DatabaseError
from text2sql.executor.backend import NO_STATEMENT, LateError, cell_bytes, longest_cell, plain_rows, read_rows
from text2sql.executor.result import Answer, Execution, Limits, Row, Status, stopped

CONNECT_SECONDS = 10
_OPTIONS = "-c default_transaction_read_only=on -c client_connection_check_interval=1000"
_MACHINE_FAILED = ("08", "53", "57P", "58", "XX")  # connection, resources, shutdown, system, internal


def open_database(database: str, limits: Limits) -> "PostgresBackend":
    return PostgresBackend(database)


class PostgresBackend:
    """One connection. Raises DatabaseError for a superuser's address."""

    def __init__(self, database: str) -> None:
        self._connection = psycopg.connect(
            database, autocommit=True, connect_timeout=CONNECT_SECONDS, options=_OPTIONS, application_name="text2sql"
        )
        row = self._connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
        if row is None or row[0]:
            self._connection.close()
            raise DatabaseError("The PostgreSQL role is a superuser; connect with one that may only read the tables.")

    def close(self) -> None:
        self._connection.close()

    def run(self, sql: str, limits: Limits) -> Answer:
        started = time.perf_counter()
        deadline = started + limits.timeout_seconds
        columns: tuple[str, ...] = ()
        rows: list[Row] = []
        size, message = 0, None
        status: Status
        try:
            self._open_cursor(sql, limits)
            cursor = self._connection.cursor()
            cursor.execute("FETCH FORWARD 0 FROM answer")
            columns = tuple(column.name for column in cursor.description or ())

            def fetch(count: int) -> list[Row]:
                return plain_rows(cursor.execute(f"FETCH FORWARD {count} FROM answer").fetchall())

            size, message = read_rows(fetch, rows, limits, lambda: time.perf_counter() > deadline, cell_bytes)
            if longest_cell(rows) > limits.max_cell_bytes:
                rows, message = [], f"a cell of more than {limits.max_cell_bytes:,} bytes"
            status = "too_large" if message else "ok" if rows else "empty"
        except (errors.QueryCanceled, LateError):
            status, rows, message = "timeout", [], stopped(limits)
        except psycopg.Error as error:
            if self._connection.closed or (error.sqlstate or "").startswith(_MACHINE_FAILED):
                raise
            status, rows, message = "error", [], error.diag.message_primary or str(error)
        except UnicodeError as error:
            status, message = "error", str(error)
        if not sql.strip():
            status, message = "empty", NO_STATEMENT
        if not self._connection.closed:
            self._connection.rollback()
        execution = Execution(status, columns, tuple(rows), time.perf_counter() - started, message)
        return Answer(execution, size, repeatable=False)

    def _open_cursor(self, sql: str, limits: Limits) -> None:
        milliseconds = max(1, round(limits.timeout_seconds * 1000))
        self._connection.execute("BEGIN READ ONLY")
        self._connection.execute(f"SET LOCAL statement_timeout = {milliseconds}")
        # the parameter form takes one statement only, whatever the text holds
        result = self._connection.pgconn.exec_params(b"DECLARE answer NO SCROLL CURSOR FOR " + sql.encode(), None)
        if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result)
