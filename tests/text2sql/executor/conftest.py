"""Databases and executors for the tests of the executor."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from text2sql.executor import Executor, Limits


@pytest.fixture
def make_database(tmp_path: Path) -> Callable[..., Path]:
    """Writes an SQLite file from a script and returns its path."""

    def make(script: str, name: str = "shop.sqlite") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path)
        connection.executescript(script)
        connection.close()
        return path

    return make


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(Limits(timeout_seconds=5), workers=2) as running:
        yield running
