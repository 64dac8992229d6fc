"""A small database for the tests of exact match: singers who perform in concerts in stadiums."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evaluation.exact_match import EvaluatorSchema, load_schema

TABLES = {
    "singer": ["singer_id", "name", "country", "age", "market_value"],
    "stadium": ["stadium_id", "name", "city", "capacity"],
    "concert": ["concert_id", "title", "year", "stadium_id"],
    "performance": ["concert_id", "singer_id", "fee"],
}
FOREIGN_KEYS = [
    ("concert.stadium_id", "stadium.stadium_id"),
    ("performance.concert_id", "concert.concert_id"),
    ("performance.singer_id", "singer.singer_id"),
]


@pytest.fixture(scope="session")
def concerts_entry() -> dict[str, Any]:
    """The database's entry in tables.json."""
    columns = [(-1, "*"), *((at, name) for at, names in enumerate(TABLES.values()) for name in names)]
    places = {f"{table}.{name}": -1 for table, names in TABLES.items() for name in names}
    for index, place in enumerate(places, start=1):
        places[place] = index
    return {
        "db_id": "concerts",
        "table_names_original": list(TABLES),
        "column_names_original": columns,
        "primary_keys": [],
        "foreign_keys": [[places[left], places[right]] for left, right in FOREIGN_KEYS],
    }


@pytest.fixture(scope="session")
def concerts_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("concerts") / "concerts.sqlite"
    connection = sqlite3.connect(path)
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    connection.commit()
    connection.close()
    return path


@pytest.fixture(scope="session")
def concerts(concerts_database: Path, concerts_entry: dict[str, Any]) -> EvaluatorSchema:
    return load_schema(concerts_database, concerts_entry)
