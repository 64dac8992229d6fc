"""Fixtures shared by all tests."""

import json
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parents[1]

# Fuzz tests draw the same 400 inputs each time; TEXT2SQL_FUZZ_EXAMPLES asks for another number, and new ones each time.
FUZZ_EXAMPLES = os.environ.get("TEXT2SQL_FUZZ_EXAMPLES")
settings.register_profile(
    "project",
    max_examples=int(FUZZ_EXAMPLES or 400),
    derandomize=FUZZ_EXAMPLES is None,
    deadline=None,  # a busy machine is no bug
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("project")


@pytest.fixture(scope="session")
def shared() -> Path:
    """
    The folder with the real dialogues, databases and verdicts: TEXT2SQL_SHARED, or `shared` beside the repository.
    Missing in CI is a failure; elsewhere the test is skipped with the reason.
    """
    folder = Path(os.environ.get("TEXT2SQL_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "data" / "tables.json").is_file():
        message = f"the shared data are not at {folder}: set TEXT2SQL_SHARED to the folder that holds data/ and peer/"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture
def make_release(tmp_path: Path) -> Callable[..., Path]:
    """
    Writes a small benchmark in the demo's layout and returns its folder: `make_release(train=, dev=, databases=)`.
    A dialogue is `(db_id, [(utterance, gold), ...])`, a database an SQL script under its db_id; each gets an entry in
    tables.json that lists no keys, unless `tables` gives one.
    """

    def make(
        train: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (),
        dev: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (),
        databases: Mapping[str, str] | None = None,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Path:
        root = tmp_path / "release"
        entries = []
        for db_id, script in (databases or {}).items():
            path = root / "database" / db_id / f"{db_id}.sqlite"
            path.parent.mkdir(parents=True)
            with sqlite3.connect(path) as connection:
                connection.executescript(script)
            entries.append({**_tables_entry(db_id, connection), **(tables or {}).get(db_id, {})})
            connection.close()
        (root / "database").mkdir(parents=True, exist_ok=True)
        (root / "tables.json").write_text(json.dumps(entries), encoding="utf-8")
        for split, dialogues in {"train": train, "dev": dev}.items():
            released = [
                {"database_id": db_id, "interaction": [{"utterance": said, "query": gold} for said, gold in turns]}
                for db_id, turns in dialogues
            ]
            (root / f"{split}.json").write_text(json.dumps(released, ensure_ascii=False), encoding="utf-8")
        return root

    return make


def _tables_entry(db_id: str, connection: sqlite3.Connection) -> dict[str, Any]:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns: list[list[Any]] = [[-1, "*"]]
    for number, table in enumerate(tables):
        columns += [[number, name] for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    return {
        "db_id": db_id,
        "table_names_original": tables,
        "column_names_original": columns,
        "column_types": ["text"] * len(columns),
        "primary_keys": [],
        "foreign_keys": [],
    }
