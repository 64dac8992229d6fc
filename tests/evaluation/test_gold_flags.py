"""Reading a gold query for its sort keys and its cut."""

import sqlite3
from pathlib import Path

import pytest

from evaluation.gold_flags import cuts_a_tie, parse, sort_key_columns, tie_probes
from text2sql.schema import Schema, read_schema

BUS = (
    "CREATE TABLE bus(code TEXT, seats INTEGER, fare REAL); CREATE TABLE stop(code TEXT, name TEXT); "
    "INSERT INTO bus VALUES ('b7',40,2.5),('b1',52,1.5),('b3',40,3.0),('b4',60,1.0),('b7',60,9.0);"
)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "bus.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(BUS)
    connection.close()
    return path


@pytest.fixture
def schema(database: Path) -> Schema:
    return read_schema(database)


def keys(sql: str, schema: Schema) -> set[tuple[str, str]]:
    tree = parse(sql)
    return sort_key_columns(tree, schema) if tree else set()


def undetermined(sql: str, database: Path) -> bool:
    tree = parse(sql)
    if tree is None:
        return False
    with sqlite3.connect(database) as connection:
        return any(cuts_a_tie(probe, tuple(connection.execute(probe.sql).fetchall())) for probe in tie_probes(tree))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT code FROM bus ORDER BY fare", {("bus", "fare")}),
        ("SELECT T1.code FROM BUS AS T1 JOIN stop AS T2 ON T1.code = T2.code ORDER BY T2.NAME", {("stop", "name")}),
        ("SELECT b.code FROM bus b, stop ORDER BY code", {("bus", "code"), ("stop", "code")}),
        ("SELECT code, fare FROM bus ORDER BY 2", {("bus", "fare")}),
        ("SELECT min(fare), max(seats) FROM bus", {("bus", "fare"), ("bus", "seats")}),
        ("SELECT code FROM bus GROUP BY code ORDER BY max(seats)", {("bus", "seats")}),
        ("SELECT code FROM bus WHERE fare = (SELECT max(fare) FROM bus)", {("bus", "fare")}),
        ('SELECT code FROM bus ORDER BY "nothing"', set()),
        ("SELECT code FROM bus ORDER BY fare * 2", set()),
        ("SELECT code FROM bus", set()),
        ("SELECT code FROM bus ORDER BY (", set()),
    ],
)
def test_sort_keys_are_found(sql: str, expected: set[tuple[str, str]], schema: Schema) -> None:
    """Plain columns behind ORDER BY, MIN and MAX, through aliases, positions and subqueries."""
    assert expected == keys(sql, schema)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT code FROM bus ORDER BY seats LIMIT 1", True),
        ("SELECT code FROM bus ORDER BY seats LIMIT 2", False),
        ("SELECT seats FROM bus ORDER BY seats LIMIT 1", False),
        ("SELECT code FROM bus ORDER BY seats LIMIT 2 OFFSET 1", True),
        ("SELECT code FROM bus ORDER BY fare LIMIT 1 OFFSET 1", False),
        ("SELECT code FROM bus ORDER BY fare LIMIT 99", False),
        ("SELECT code FROM bus LIMIT 1", True),
        ("SELECT * FROM bus ORDER BY 2 LIMIT 1", True),
        ("SELECT seats AS s, code FROM bus ORDER BY s LIMIT 1", True),
        ("SELECT DISTINCT seats FROM bus ORDER BY seats LIMIT 1", False),
        ("SELECT DISTINCT code FROM bus ORDER BY seats LIMIT 1", False),
        ("SELECT code FROM bus WHERE fare > (SELECT fare FROM bus ORDER BY seats LIMIT 1)", True),
        ("SELECT count(*) FROM bus ORDER BY count(*) LIMIT 1", False),
    ],
)
def test_cut_through_ties_is_found(sql: str, expected: bool, database: Path) -> None:
    """Rows on both sides of the cut tie and differ in what is shown. A DISTINCT sorted by what it hides is left out."""
    assert expected == undetermined(sql, database)
