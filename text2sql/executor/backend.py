"""
What a database system has to offer to be executed on: open a connection, run one statement read-only within limits.

A backend lives in a worker process and may block: the pool kills the worker when a deadline passes unanswered.
"""

import importlib
from typing import Literal, Protocol

from text2sql.executor.result import Answer, Job, Limits

BackendName = Literal["sqlite", "duckdb", "postgres"]


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


def open_backend(job: Job) -> Backend:
    """Opens the job's database; the backend's module, and with it its library, is imported only here."""
    name = backend_name(job.database)
    module = importlib.import_module(f"text2sql.executor.{name}_backend")
    backend: Backend = module.open_database(job.database, job.limits)
    return backend
