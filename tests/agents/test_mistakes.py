"""Mistakes in SQL: each kind is one that people make, made in place, and never the right query."""

import random
import sqlite3
from pathlib import Path

import pytest

from agents.mtsql.mistakes import coherence_mistakes, execution_mistakes
from agents.mtsql.sql_edits import parse
from text2sql.schema import Schema, read_schema


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    path = tmp_path_factory.mktemp("clinic") / "clinic.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        CREATE TABLE doctor(id INTEGER PRIMARY KEY, name TEXT, city TEXT, age INTEGER);
        CREATE TABLE patient(id INTEGER PRIMARY KEY, fullname TEXT, town TEXT, years INTEGER);
        CREATE TABLE visit(id INTEGER PRIMARY KEY, doctor_id INTEGER REFERENCES doctor(id), cost INTEGER);
        """
    )
    connection.close()
    return read_schema(path)


def execution(sql: str, schema: Schema) -> set[str]:
    return set(execution_mistakes(sql, schema, random.Random(0)))


def coherence(sql: str, *earlier: str) -> set[str]:
    return set(coherence_mistakes(sql, earlier, random.Random(0)))


JOIN = "SELECT T1.cost FROM visit AS T1 JOIN doctor AS T2 ON T1.doctor_id = T2.id WHERE T2.city = 'Graz'"


@pytest.mark.parametrize(
    ("sql", "mistake"),
    [
        ("SELECT age FROM doctor", "SELECT years FROM doctor"),  # a column of the other table
        ("SELECT age FROM doctor WHERE name = 'Bo'", "SELECT years FROM patient WHERE fullname = 'Bo'"),  # other table
        (JOIN, "SELECT cost FROM visit WHERE city = 'Graz'"),  # the join left out
        (JOIN, JOIN.replace("T2.city", "T1.city")),  # the wrong alias
        ("SELECT age FROM doctor WHERE city = 'Bo'", "SELECT age FROM doctor WHERE name = 'Bo'"),  # another column
        ("SELECT age FROM doctor WHERE city = 'Bo'", "SELECT age FROM doctor WHERE city = 'bo'"),  # the other case
        ("SELECT age FROM doctor", "SELECT ages FROM doctor"),  # misspelt
    ],
)
def test_execution_mistakes_hold_this_one(schema: Schema, sql: str, mistake: str) -> None:
    """Each kind of mistake that executing can show is among those offered."""
    assert mistake in execution(sql, schema)


@pytest.mark.parametrize(
    ("sql", "earlier", "mistake"),
    [
        (
            "SELECT name FROM doctor WHERE city = 'Graz' AND age > 40",
            "SELECT name FROM doctor WHERE city = 'Graz'",
            "SELECT name FROM doctor WHERE age > 40",
        ),
        (
            "SELECT COUNT(*) FROM doctor WHERE city = 'Graz'",
            "SELECT name FROM doctor WHERE city = 'Graz'",
            "SELECT COUNT(*) FROM doctor",
        ),
        ("SELECT COUNT(*) FROM doctor", "SELECT name FROM doctor", "SELECT name FROM doctor"),  # said again
        ("SELECT AVG(age) FROM doctor", "SELECT name FROM doctor", "SELECT MAX(age) FROM doctor"),
        ("select avg (age) from doctor", "select name from doctor", "select max (age) from doctor"),
        ("SELECT a FROM t ORDER BY b DESC LIMIT 1", "SELECT a FROM t", "SELECT a FROM t ORDER BY b ASC LIMIT 1"),
        ("SELECT name, COUNT(*) FROM doctor", "SELECT city FROM doctor", "SELECT name FROM doctor"),
        ("SELECT COUNT(*) ,  MAX ( age ) FROM t", "SELECT city FROM t", "SELECT COUNT(*) FROM t"),
    ],
)
def test_coherence_mistakes_hold_this_one(sql: str, earlier: str, mistake: str) -> None:
    """Each kind of mistake that only the earlier turns can show is among those offered."""
    assert mistake in coherence(sql, earlier)


def test_a_filter_that_no_earlier_turn_had_is_not_forgotten() -> None:
    """Losing a filter of the question itself is no lack of memory."""
    assert "SELECT a FROM t" not in coherence("SELECT a FROM t WHERE c = 'x'", "SELECT b FROM t WHERE d = 'y'")


def test_edits_keep_the_spelling_of_the_query(schema: Schema) -> None:
    """Spaces, case and double quotes of a released query stay, so that only the mistake differs."""
    sql = 'select  age from doctor where name  =  "Bo"'

    assert 'select  years from patient where fullname  =  "Bo"' in execution(sql, schema)
    assert all(mistake.startswith("select  ") for mistake in execution(sql, schema))


def test_keys_are_not_mixed_up(schema: Schema) -> None:
    """Nobody looks for the cost of a visit in a key, or joins on an age."""
    for mistake in execution(JOIN, schema):
        assert "SELECT T1.id" not in mistake
        assert " = T2.id" in mistake or "JOIN" not in mistake or "T1.id" in mistake


def test_no_mistake_is_the_right_query(schema: Schema) -> None:
    """Whatever is offered differs from the query that it was made from."""
    for sql in (JOIN, "SELECT age FROM doctor WHERE name = 'Bo'", "SELECT name FROM doctor ORDER BY age ASC"):
        assert sql not in execution(sql, schema)
        assert sql not in coherence(sql, sql, "SELECT 1")


@pytest.mark.parametrize("sql", ["SELECT FROM WHERE", "", "SELECT 'open", "SELECT a FROM t WHERE (("])
def test_a_query_that_cannot_be_read_offers_nothing(schema: Schema, sql: str) -> None:
    """A broken gold of a release gives episodes without mistakes, not an error."""
    assert parse(sql) is None
    assert execution(sql, schema) == set()
    assert coherence(sql, "SELECT 1") == set()


def test_the_same_generator_state_gives_the_same_mistakes(schema: Schema) -> None:
    """Order and choice depend on the generator alone."""
    first = list(execution_mistakes(JOIN, schema, random.Random(4)))

    assert first == list(execution_mistakes(JOIN, schema, random.Random(4)))
    assert len(set(first)) == len(first) > 3


def test_mistakes_of_a_release_are_made_without_errors(shared: Path) -> None:
    """Every gold of the CoSQL dev set is read or passed over, whatever its spelling."""
    from text2sql.config import BenchmarkSettings
    from text2sql.datasets import load_benchmark

    benchmark = load_benchmark(BenchmarkSettings(name="cosql"), shared / "data")
    rng, made = random.Random(0), 0
    for dialogue in benchmark.dev:
        if benchmark.database(dialogue.db_id).is_file():
            schema = read_schema(benchmark.database(dialogue.db_id))
            golds = [turn.gold for turn in dialogue.turns]
            for turn, gold in enumerate(golds):
                made += any(True for _ in execution_mistakes(gold, schema, rng))
                list(coherence_mistakes(gold, golds[:turn], rng))

    assert made > 900
