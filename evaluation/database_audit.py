"""What the audit finds out about each database, whatever is asked of it: one row per database."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from text2sql.datasets import Benchmark, read_tables
from text2sql.errors import DatabaseError
from text2sql.schema import Schema, read_only, read_schema

DATABASE_SCHEMA: Mapping[str, pl.DataType] = {
    "db_id": pl.String(),
    "fault": pl.String(),  # "", database_missing or database_broken
    "message": pl.String(),
    "turns": pl.Int64(),  # turns of the benchmark that ask this database
    "tables": pl.Int64(),
    "empty_tables": pl.List(pl.String()),
    "foreign_keys": pl.Int64(),
    "undecodable": pl.List(pl.String()),  # table.column whose text is not all UTF-8
    "schema_warnings": pl.List(pl.String()),  # where the database and tables.json differ
}


@dataclass(frozen=True)
class DatabaseFacts:
    """`schema` is None exactly when `fault` is set. `undecodable` holds (table, column) in the database's spelling."""

    db_id: str
    path: Path
    bytes: int = 0
    fault: str = ""
    message: str = ""
    schema: Schema | None = None
    empty_tables: tuple[str, ...] = ()
    undecodable: tuple[tuple[str, str], ...] = ()


def database_facts(benchmark: Benchmark) -> dict[str, DatabaseFacts]:
    """Facts on every database that a dialogue uses. Raises DataError for a broken tables.json."""
    entries = read_tables(benchmark.tables_json)
    return {db_id: _facts(db_id, benchmark.database(db_id), entries.get(db_id)) for db_id in benchmark.db_ids}


def database_table(benchmark: Benchmark, facts: Mapping[str, DatabaseFacts]) -> pl.DataFrame:
    """One row per database, sorted by name."""
    turns = dict.fromkeys(facts, 0)
    for dialogues in benchmark.splits.values():
        for dialogue in dialogues:
            turns[dialogue.db_id] += len(dialogue.turns)
    rows = [
        {
            "db_id": db_id,
            "fault": fact.fault,
            "message": fact.message,
            "turns": turns[db_id],
            "tables": len(fact.schema.tables) if fact.schema else None,
            "empty_tables": list(fact.empty_tables),
            "foreign_keys": len(fact.schema.foreign_keys) if fact.schema else None,
            "undecodable": [f"{table}.{column}" for table, column in fact.undecodable],
            "schema_warnings": list(fact.schema.warnings) if fact.schema else [],
        }
        for db_id, fact in facts.items()
    ]
    return pl.DataFrame(rows, schema=DATABASE_SCHEMA).sort("db_id")


def _facts(db_id: str, path: Path, entry: Mapping[str, Any] | None) -> DatabaseFacts:
    if not path.is_file():
        return DatabaseFacts(db_id, path, 0, "database_missing", f"no file {path.name} in database/{db_id}/")
    size = path.stat().st_size
    try:
        schema = read_schema(path, entry)
        empty, undecodable = _scan(schema)
    except DatabaseError as error:
        return DatabaseFacts(db_id, path, size, "database_broken", str(error))
    return DatabaseFacts(db_id, path, size, schema=schema, empty_tables=empty, undecodable=undecodable)


def _scan(schema: Schema) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Tables without rows, and columns with text that is not UTF-8 (each column is joined and decoded in one go)."""
    empty = []
    undecodable = []
    with read_only(schema.database) as connection:
        connection.text_factory = bytes
        for table in schema.tables:
            names = [quoted(column.name) for column in table.columns]
            texts = [f"group_concat(CASE typeof({name}) WHEN 'text' THEN {name} END, char(10))" for name in names]
            count, *columns = connection.execute(
                f"SELECT count(*), {', '.join(texts)} FROM {quoted(table.name)}"
            ).fetchone()
            if not count:
                empty.append(table.name)
            for column, text in zip(table.columns, columns, strict=True):
                try:
                    (text or b"").decode("utf-8")
                except UnicodeDecodeError:
                    undecodable.append((table.name, column.name))
    return tuple(empty), tuple(undecodable)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
