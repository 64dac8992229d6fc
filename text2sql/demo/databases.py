"""
The demo's database files and its `tables.json`.

Rows are drawn from the domain with a seed of their own, so a database does not change when dialogues do. Files are the
same bytes on every machine: one page size, one journal mode, VACUUM, and the two header fields in which SQLite notes
its own version are set to fixed numbers.
"""

import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2sql.demo import domains_culture, domains_people, domains_trade, domains_travel
from text2sql.demo.domain import Column, Domain, Table

DOMAINS: tuple[Domain, ...] = (
    *domains_culture.DOMAINS,
    *domains_travel.DOMAINS,
    *domains_trade.DOMAINS,
    *domains_people.DOMAINS,
)

Row = tuple[Any, ...]
_WRITER_VERSION = (3040001).to_bytes(4, "big")


def write_database(domain: Domain, seed: int, path: Path) -> None:
    """Write one SQLite file, replacing what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript("PRAGMA page_size = 4096; PRAGMA journal_mode = DELETE; PRAGMA encoding = 'UTF-8';")
    connection.execute("BEGIN")
    for table, rows in zip(domain.tables, draw_rows(domain, seed), strict=True):
        connection.execute(create_statement(domain, table))
        marks = ", ".join("?" * len(table.columns))
        connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows)
    connection.execute("COMMIT")
    connection.execute("VACUUM")
    connection.close()
    with path.open("r+b") as file:
        file.seek(96)
        file.write(_WRITER_VERSION)


def create_statement(domain: Domain, table: Table) -> str:
    lines = []
    for column in table.columns:
        if column.kind == "key":
            lines.append(f"{column.name} INTEGER PRIMARY KEY")
        else:
            lines.append(f"{column.name} {sql_type(column)}")
    lines.extend(f"FOREIGN KEY ({ref.name}) REFERENCES {ref.parent}(id)" for ref in table.of_kind("reference"))
    return f"CREATE TABLE {table.name} (\n  " + ",\n  ".join(lines) + "\n)"


def sql_type(column: Column) -> str:
    if column.kind in ("label", "category"):
        return "TEXT"
    return "REAL" if column.kind == "number" and column.bounds[2] != int(column.bounds[2]) else "INTEGER"


def draw_rows(domain: Domain, seed: int) -> list[list[Row]]:
    """Rows of each table, in the order of the domain's tables. No name occurs in two tables of one database."""
    rng = random.Random(f"{seed}/{domain.name}")
    used: set[str] = set()
    sizes = {table.name: table.rows for table in domain.tables}
    tables = []
    for table in domain.tables:
        drawn = [_draw_column(column, table.rows, sizes, used, rng) for column in table.columns]
        tables.append(list(zip(*drawn, strict=True)))
    return tables


def _draw_column(column: Column, count: int, sizes: dict[str, int], used: set[str], rng: random.Random) -> list[Any]:
    if column.kind == "key":
        return list(range(1, count + 1))
    if column.kind == "label":
        free = [name for name in column.values if name not in used]
        names = rng.sample(free, count)
        used.update(names)
        return names
    if column.kind == "reference":
        return _draw_references(sizes[column.parent], count, rng)
    drawn: list[Any] = (
        _draw_categories(column.values, count, rng) if column.kind == "category" else _draw_numbers(column, count, rng)
    )
    for index in rng.sample(range(count), round(column.nulls * count)):
        drawn[index] = None
    return drawn


def _draw_references(parents: int, count: int, rng: random.Random) -> list[int]:
    """Uneven, and about a fifth of the parents have no row, so that counts differ and "without any" has an answer."""
    ids = rng.sample(range(1, parents + 1), max(2, round(parents * 0.8)))
    weights = [rng.uniform(0.3, 2.5) for _ in ids]
    return rng.choices(ids, weights, k=count)


def _draw_categories(values: Sequence[str], count: int, rng: random.Random) -> list[Any]:
    """Each value at least once, the rest by uneven weights."""
    drawn = [*values, *rng.choices(values, [rng.uniform(0.5, 2.5) for _ in values], k=count)][:count]
    rng.shuffle(drawn)
    return list(drawn)


def _draw_numbers(column: Column, count: int, rng: random.Random) -> list[Any]:
    """Without ties where the range has room for that, so that most orders are determined; narrow ranges have ties."""
    low, high, step = column.bounds
    steps = round((high - low) / step)
    places = rng.sample(range(steps + 1), count) if steps >= 1.5 * count else rng.choices(range(steps + 1), k=count)
    drawn = [low + step * place for place in places]
    return [round(number, 1) for number in drawn] if step != int(step) else [int(number) for number in drawn]


def tables_entry(domain: Domain) -> dict[str, Any]:
    """The database's entry in `tables.json`, in the official format."""
    names: list[tuple[int, str]] = [(-1, "*")]
    types = ["text"]
    index: dict[tuple[str, str], int] = {}
    for position, table in enumerate(domain.tables):
        for column in table.columns:
            index[table.name, column.name] = len(names)
            names.append((position, column.name))
            types.append("text" if sql_type(column) == "TEXT" else "number")
    return {
        "db_id": domain.name,
        "table_names_original": [table.name for table in domain.tables],
        "table_names": [table.noun for table in domain.tables],
        "column_names_original": [list(name) for name in names],
        "column_names": [[position, name.replace("_", " ")] for position, name in names],
        "column_types": types,
        "primary_keys": [index[table.name, "id"] for table in domain.tables],
        "foreign_keys": [
            [index[table.name, ref.name], index[ref.parent, "id"]]
            for table in domain.tables
            for ref in table.of_kind("reference")
        ],
    }
