"""Neighbour databases, and the second judge that asks them."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evaluation.execution_match import execution_match
from evaluation.neighbour_rows import ROW_CAP
from evaluation.neighbours import Neighbours
from evaluation.query_focus import Constant, Focus, read_focus
from evaluation.suite import Suite
from text2sql.executor import Executor, Limits
from text2sql.schema import ForeignKey, Schema, read_schema

ALL = Focus(tables=None)
OVERFLOW = "abs(CASE WHEN {} THEN -9223372036854775808 ELSE age END) > 6"  # fails where the condition holds
SHOP = """
    CREATE TABLE owner(owner_id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT, born INTEGER);
    CREATE TABLE dog(
        dog_id INTEGER PRIMARY KEY, owner_id INTEGER REFERENCES owner(owner_id), name TEXT, breed TEXT, age INTEGER,
        weight REAL, tag TEXT UNIQUE, good INTEGER CHECK (good IN (0, 1))
    );
    INSERT INTO owner VALUES
        (1, 'Ana', 'Oslo', 1980), (2, 'Bo', 'Rome', 1990), (3, 'Cy', 'Oslo', NULL), (4, 'Di', 'Paris', 1975);
    INSERT INTO dog VALUES
        (1, 1, 'Rex', 'husky', 3, 21.5, 'a1', 1), (2, 1, 'Kit', 'pug', 5, 8.0, 'b2', 0),
        (3, 2, 'Max', 'pug', 5, 7.25, 'c3', 1), (4, 2, 'Lou', 'husky', 9, 30.0, 'd4', 1),
        (5, NULL, 'Pip', 'corgi', 1, 11.5, 'e5', 0);
"""


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(Limits(timeout_seconds=2), workers=1) as running:
        yield running


@pytest.fixture
def database(tmp_path: Path) -> Callable[..., Schema]:
    """Makes an SQLite file of a script and reads its schema."""

    def make(script: str = SHOP, name: str = "shop", entry: dict[str, Any] | None = None) -> Schema:
        path = tmp_path / f"{name}.sqlite"
        connection = sqlite3.connect(path)
        connection.executescript(script)
        connection.close()
        return read_schema(path, entry)

    return make


@pytest.fixture
def shop(database: Callable[..., Schema]) -> Schema:
    return database()


@pytest.fixture
def suite(executor: Executor, tmp_path: Path) -> Suite:
    return Suite(executor, tmp_path / "neighbours")


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def made(schema: Schema, folder: Path, focus: Focus = ALL, **settings: Any) -> tuple[Path, ...]:
    return Neighbours(schema, folder, **settings).write(focus)


def test_same_arguments_give_the_same_bytes(database: Callable[..., Schema], tmp_path: Path) -> None:
    """In another folder, too; another seed gives other rows, and so does each number."""
    schema = database()
    first, again = made(schema, tmp_path / "a"), made(schema, tmp_path / "b")
    other = made(schema, tmp_path / "a", seed=1)

    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert len({path.read_bytes() for path in (*first, *other)}) == len(first) + len(other)


def test_neighbours_are_kept_for_the_next_time(database: Callable[..., Schema], tmp_path: Path) -> None:
    """What is in the folder is used; a database that changed gets neighbours of its own."""
    paths = made(database(), tmp_path / "cache")
    written = [path.stat().st_mtime_ns for path in paths]
    again = made(read_schema(tmp_path / "shop.sqlite"), tmp_path / "cache")
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("DELETE FROM dog WHERE dog_id = 4")
    connection.close()
    changed = made(read_schema(tmp_path / "shop.sqlite"), tmp_path / "cache")

    assert again == paths
    assert [path.stat().st_mtime_ns for path in again] == written
    assert not set(changed) & set(paths)
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_schema_is_the_same_and_the_original_untouched(database: Callable[..., Schema], tmp_path: Path) -> None:
    """Tables, types, indexes, views and triggers are those of the file; the triggers saw none of the rows."""
    script = (
        SHOP
        + """
        CREATE INDEX by_age ON dog(age);
        CREATE VIEW puppies AS SELECT name FROM dog WHERE age < 2;
        CREATE TABLE log(said TEXT);
        CREATE TRIGGER grown AFTER INSERT ON dog BEGIN INSERT INTO log VALUES (new.name); END;
    """
    )
    schema = database(script)
    before = schema.database.read_bytes()
    everything = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    focus = read_focus("SELECT name FROM dog", "", schema)

    for path in made(schema, tmp_path / "n", focus):
        assert rows(path, everything) == rows(schema.database, everything)
        assert rows(path, "SELECT count(*) FROM log") == [(0,)]
    assert schema.database.read_bytes() == before


def test_keys_and_constraints_hold(database: Callable[..., Schema], tmp_path: Path) -> None:
    """SQLite finds no broken foreign key; primary keys, UNIQUE, NOT NULL and CHECK hold; no table is empty or large."""
    for path in made(database(), tmp_path / "n"):
        assert rows(path, "PRAGMA foreign_key_check") == []
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        for table in ("owner", "dog"):
            assert 5 < rows(path, f"SELECT count(*) FROM {table}")[0][0] <= ROW_CAP


def test_foreign_keys_of_tables_json_hold(database: Callable[..., Schema], tmp_path: Path) -> None:
    """A key that only the benchmark's authors wrote down is kept as well, and so is a join of the gold."""
    script = (
        "CREATE TABLE city(code TEXT PRIMARY KEY, mayor TEXT); CREATE TABLE stop(name TEXT, city TEXT);"
        "CREATE TABLE tram(line INTEGER, calls_at TEXT);"
        "INSERT INTO city VALUES ('os', 'A'), ('ro', 'B'), ('pa', 'C'); INSERT INTO stop VALUES ('x', 'os'), ('y', 'ro');"
        "INSERT INTO tram VALUES (1, 'x'), (1, 'y'), (2, 'x')"
    )
    plain = database(script)
    schema = Schema(plain.database, plain.tables, (ForeignKey("stop", "city", "city", "code"),))
    gold = "SELECT T1.line FROM tram AS T1 JOIN stop AS T2 ON T1.calls_at = T2.name"

    for path in made(schema, tmp_path / "n", read_focus(gold, "", schema)):
        assert rows(path, "SELECT count(*) FROM stop WHERE city NOT IN (SELECT code FROM city)") == [(0,)]
        assert rows(path, gold)
        assert rows(path, "SELECT count(*) FROM tram WHERE calls_at NOT IN (SELECT name FROM stop)") == [(0,)]


def test_foreign_keys_of_several_columns_and_circles_hold(database: Callable[..., Schema], tmp_path: Path) -> None:
    """Columns that refer together stay together; a table may refer to itself, or two to each other."""
    script = """
        CREATE TABLE course(code TEXT, year INTEGER, title TEXT, PRIMARY KEY (code, year));
        CREATE TABLE exam(code TEXT, year INTEGER, mark REAL, FOREIGN KEY (code, year) REFERENCES course(code, year));
        CREATE TABLE staff(id INTEGER PRIMARY KEY, boss INTEGER REFERENCES staff(id), team INTEGER REFERENCES team(id));
        CREATE TABLE team(id INTEGER PRIMARY KEY, lead INTEGER REFERENCES staff(id));
        INSERT INTO course VALUES ('a', 2001, 'Art'), ('a', 2002, 'Art'), ('b', 2001, 'Bio');
        INSERT INTO exam VALUES ('a', 2001, 1.5), ('b', 2001, 2.0);
        INSERT INTO team VALUES (1, 1), (2, 3); INSERT INTO staff VALUES (1, NULL, 1), (2, 1, 1), (3, 1, 2);
    """
    for path in made(database(script), tmp_path / "n"):
        assert rows(path, "PRAGMA foreign_key_check") == []
        assert all(rows(path, f"SELECT count(*) FROM {name}")[0][0] > 3 for name in ("course", "exam", "staff", "team"))


def test_rows_stand_at_below_and_above_a_constant(database: Callable[..., Schema], tmp_path: Path) -> None:
    """So `>`, `>=` and the next number give different counts on the neighbours taken together."""
    schema = database()
    gold = "SELECT name FROM dog WHERE age > 40 AND breed = 'beagle'"
    paths = made(schema, tmp_path / "n", read_focus(gold, "", schema))
    ages = {age for path in paths for (age,) in rows(path, "SELECT age FROM dog WHERE breed = 'beagle'")}

    assert {39, 40, 41} <= ages
    assert any(rows(path, gold) for path in paths)


def test_constants_of_a_pattern_match_and_nearly_match(database: Callable[..., Schema], tmp_path: Path) -> None:
    """LIKE is put to the test by texts with the words at the start, inside, at the end, and by one that lacks a letter."""
    schema = database()
    paths = made(schema, tmp_path / "n", read_focus("SELECT name FROM dog WHERE breed LIKE '%terrier%'", "", schema))
    breeds = {breed for path in paths for (breed,) in rows(path, "SELECT breed FROM dog")}

    assert {"terrier", "terrie"} <= breeds
    assert any(re.fullmatch(".+ terrier", breed) for breed in breeds)


def test_numbers_tie_and_nulls_stay_where_they_were(database: Callable[..., Schema], tmp_path: Path) -> None:
    """Numbers repeat; `born` and `owner_id` have NULLs in the original, and only they get any. Names do not repeat."""
    paths = made(database(), tmp_path / "n")
    nulls = {
        column
        for path in paths
        for table, names in {"owner": ("name", "city", "born"), "dog": ("owner_id", "name", "age", "good")}.items()
        for column in names
        if rows(path, f"SELECT 1 FROM {table} WHERE {column} IS NULL")
    }

    assert nulls == {"born", "owner_id"}
    for path in paths:
        assert rows(path, "SELECT age FROM dog GROUP BY age HAVING count(*) > 1")
        assert not rows(path, "SELECT name FROM owner GROUP BY name HAVING count(*) > 1")


def test_unusual_databases_survive(database: Callable[..., Schema], tmp_path: Path) -> None:
    """
    Undecodable text, cells of another type than declared, foreign keys that were always broken, tables without rows,
    key or columns to fill, generated columns, names that need quotes, blobs, numbers at the edge of 64 bits.
    """
    script = """
        CREATE TABLE [odd "table] ("a b" INTEGER, "select" TEXT, blob);
        INSERT INTO [odd "table] VALUES ('not a number', CAST(x'ff41' AS TEXT), x'00ff'), (3, NULL, NULL);
        CREATE TABLE broken(id INTEGER, other TEXT REFERENCES nowhere(id), "odd" INTEGER REFERENCES [odd "table]("a b"));
        INSERT INTO broken VALUES (9223372036854775807, 'x', 17), (-9223372036854775808, 'y', 18), (1, 'z', 19);
        CREATE TABLE bare(a, b); CREATE TABLE made(a INTEGER, b INTEGER GENERATED ALWAYS AS (a * 2) STORED, c REAL);
        INSERT INTO made(a, c) VALUES (1, 9e999), (2, 1e300);
        CREATE TABLE keyed(k TEXT PRIMARY KEY) WITHOUT ROWID; INSERT INTO keyed VALUES ('x'), ('y');
        CREATE VIEW seen AS SELECT * FROM nowhere;
    """
    for path in made(database(script), tmp_path / "n"):
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        assert rows(path, "SELECT count(*) > 0 FROM bare") == [(1,)]
        assert rows(path, "SELECT count(*) FROM made WHERE b <> a * 2") == [(0,)]


def test_every_database_of_the_benchmark_has_neighbours(shared: Path, tmp_path: Path) -> None:
    """Whatever its quirks: all tables filled, nothing raised, keys that SQLite can check hold."""
    for path in sorted((shared / "data" / "database").glob("*/*.sqlite"))[::6]:
        schema = read_schema(path)
        neighbour = made(schema, tmp_path / "n", count=1)[0]

        assert rows(neighbour, "PRAGMA integrity_check") == [("ok",)]
        filled = [bool(rows(neighbour, f'SELECT 1 FROM "{table.name}" LIMIT 1')) for table in schema.tables]
        assert sum(filled) >= 0.9 * len(filled), path.stem


def test_focus_is_read_from_both_queries(database: Callable[..., Schema]) -> None:
    """Constants by column, a double-quoted word that is no column being text; joins and counts; whose a constant is."""
    focus = read_focus(
        'SELECT T2.city FROM dog AS T1 JOIN owner AS T2 ON T1.owner_id = T2.owner_id WHERE T1.breed = "pug" AND '
        "age BETWEEN 2 AND 4.5 GROUP BY T2.city HAVING count(*) >= 3 ORDER BY count(*) LIMIT 7",
        "SELECT city FROM owner WHERE born <> -1 AND name LIKE 'A%'",
        database(),
    )

    assert focus.tables == ("dog", "owner")
    assert set(focus.constants) == {
        Constant("dog", "breed", "pug"),
        Constant("dog", "age", 2),
        Constant("dog", "age", 4.5),
        Constant("owner", "born", -1, gold=False),
        Constant("owner", "name", "A%", pattern=True, gold=False),
    }
    assert focus.joins == ((("dog", "owner_id"), ("owner", "owner_id")),)
    assert (focus.counts, focus.most_rows) == ((3,), 7)


def test_query_that_cannot_be_parsed_is_read_by_its_spelling(database: Callable[..., Schema]) -> None:
    """All tables count and its constants may belong anywhere; nothing is raised."""
    focus = read_focus("SELECT FROM WHERE name == == 'Rex' or age > 7", "", database())

    assert focus.tables is None
    assert set(focus.loose) == {("Rex", True), (7, True)}


@pytest.mark.parametrize(
    ("gold", "lucky"),
    [
        ("SELECT name FROM dog WHERE age > 40", "SELECT name FROM dog WHERE age > 50"),
        ("SELECT name FROM dog WHERE age > 6", "SELECT name FROM dog WHERE age > 7"),
        ("SELECT count(*) FROM dog WHERE age >= 5", "SELECT count(*) FROM dog WHERE breed <> 'corgi' AND age > 3"),
        ("SELECT name FROM owner WHERE city = 'Bergen'", "SELECT name FROM owner WHERE name = 'Bergen'"),
        ("SELECT name FROM dog ORDER BY age DESC LIMIT 1", "SELECT name FROM dog ORDER BY weight DESC LIMIT 1"),
        ("SELECT name FROM dog WHERE breed = 'corgi'", "SELECT name FROM dog WHERE owner_id IS NULL"),
        ("SELECT city FROM owner WHERE city LIKE '%Par%'", "SELECT city FROM owner WHERE city = 'Paris'"),
        ("SELECT name FROM dog", "SELECT name FROM dog LIMIT 5"),
        (
            "SELECT T1.name FROM owner AS T1 JOIN dog AS T2 ON T1.owner_id = T2.owner_id WHERE T2.age = 9",
            "SELECT name FROM owner WHERE owner_id = 2",
        ),
        (
            "SELECT name FROM owner WHERE city = 'Oslo' INTERSECT SELECT name FROM dog",
            "SELECT name FROM owner WHERE city = 'Rome' INTERSECT SELECT name FROM dog",
        ),
    ],
)
def test_luck_on_the_original_runs_out(
    database: Callable[..., Schema], suite: Suite, executor: Executor, gold: str, lucky: str
) -> None:
    """Queries that happen to agree on the few rows there are, or both find nothing, differ on a neighbour."""
    schema = database()
    verdict = suite.verdict(schema, gold, lucky, True)

    assert execution_match(gold, lucky, [schema.database], executor).ex is True
    assert (verdict.ex_suite, verdict.status) == (False, "wrong")
    assert re.match(r"neighbour \d: ", verdict.reason or "")


@pytest.mark.parametrize(
    ("gold", "respelt"),
    [
        ("SELECT name FROM dog WHERE age > 6", "SELECT d.name FROM dog d WHERE NOT d.age <= 6"),
        ("SELECT name, age FROM dog", "SELECT age, name FROM dog"),
        ("SELECT count(*) FROM dog WHERE age BETWEEN 2 AND 5", "SELECT count(*) FROM dog WHERE age >= 2 AND age <= 5"),
        (
            "SELECT name FROM owner WHERE owner_id NOT IN (SELECT owner_id FROM dog WHERE owner_id IS NOT NULL)",
            "SELECT name FROM owner o WHERE NOT EXISTS (SELECT 1 FROM dog WHERE dog.owner_id = o.owner_id)",
        ),
        (
            "SELECT T1.name, count(*) FROM owner AS T1 JOIN dog AS T2 ON T1.owner_id = T2.owner_id GROUP BY T1.owner_id",
            "SELECT T1.name, count(*) FROM owner AS T1 JOIN dog AS T2 ON T1.owner_id = T2.owner_id GROUP BY T1.name",
        ),
        ("SELECT city FROM owner UNION SELECT breed FROM dog", "SELECT breed FROM dog UNION SELECT city FROM owner"),
        (
            "SELECT avg(weight) FROM dog WHERE age > 2",
            "SELECT avg(weight) FROM (SELECT * FROM dog ORDER BY name) WHERE age > 2",
        ),
        ("SELECT name FROM dog WHERE breed = 'pug'", "SELECT name FROM dog WHERE breed IN ('pug', 'Pug', 'pug dog')"),
        ("SELECT DISTINCT breed FROM dog", "SELECT breed FROM dog GROUP BY breed"),
        ("SELECT age FROM dog WHERE age < 0 ORDER BY age LIMIT 1", "SELECT min(age) FROM dog WHERE age < 0"),
    ],
)
def test_same_query_in_other_words_stays_right(
    database: Callable[..., Schema], suite: Suite, gold: str, respelt: str
) -> None:
    """
    Also where it relies on names that are unique though not declared so, allows for spellings that do not occur, adds
    numbers in another order, leaves a DISTINCT out that the official rule takes away, or gives NULL for nothing.
    """
    verdict = suite.verdict(database(), gold, respelt, True)

    assert (verdict.ex_suite, verdict.status, verdict.reason) == (True, "right", None)
    assert verdict.left_out == 0


@pytest.mark.parametrize(
    ("pred", "right"),
    [
        ("SELECT name FROM dog WHERE age = (SELECT max(age) FROM dog)", True),
        ("SELECT name FROM dog ORDER BY age DESC, name LIMIT 1", True),
        ("SELECT name FROM dog ORDER BY age DESC LIMIT 2", False),
        ("SELECT name FROM dog WHERE age >= (SELECT max(age) - 1 FROM dog)", False),
    ],
)
def test_ties_at_the_golds_limit_are_not_held_against_a_prediction(
    database: Callable[..., Schema], suite: Suite, pred: str, right: bool
) -> None:
    """Any of the tied rows, or all of them, are right; more than those, or fewer, are not."""
    verdict = suite.verdict(database(), "SELECT name FROM dog ORDER BY age DESC LIMIT 1", pred, True)

    assert verdict.ex_suite is right


def test_order_still_counts(database: Callable[..., Schema], suite: Suite) -> None:
    """Mercy for ties is none for an ORDER BY that is missing."""
    verdict = suite.verdict(database(), "SELECT name FROM dog ORDER BY age", "SELECT name FROM dog", True)

    assert (verdict.ex_suite, verdict.status) == (False, "wrong")


def test_without_ex_nothing_is_asked(database: Callable[..., Schema], suite: Suite) -> None:
    """EX false stays false, EX null stays null; what the gold says is told all the same."""
    schema = database()
    wrong = suite.verdict(schema, "SELECT name FROM dog", "SELECT nonsense", False)
    failed = suite.verdict(schema, "SELECT nmae FROM dog", "SELECT name FROM dog", None)

    assert (wrong.ex_suite, wrong.status, wrong.gold) == (False, "ex_wrong", "varies")
    assert (failed.ex_suite, failed.status, failed.gold) == (None, "ex_null", "fails")


def test_prediction_that_fails_on_a_neighbour_is_wrong(database: Callable[..., Schema], suite: Suite) -> None:
    """The database's own words are the reason."""
    pred = f"SELECT name FROM dog WHERE {OVERFLOW.format('age > 9')}"
    verdict = suite.verdict(database(), "SELECT name FROM dog WHERE age > 6", pred, True)

    assert (verdict.ex_suite, verdict.status) == (False, "pred_error")
    assert "integer overflow" in (verdict.reason or "")


def test_neighbours_that_cannot_tell_are_left_out_and_counted(database: Callable[..., Schema], suite: Suite) -> None:
    """A gold that fails on some neighbours is judged on the others; one that fails on all has no verdict."""
    schema = database()
    sometimes = f"SELECT name FROM dog WHERE {OVERFLOW.format('age > 14')}"
    always = f"SELECT name FROM dog WHERE {OVERFLOW.format('(SELECT count(*) FROM dog) > 5')}"
    found = suite.verdict(schema, sometimes, f"{sometimes} AND 1", True)
    none = suite.verdict(schema, always, f"{always} AND 1", True)

    assert 0 < found.left_out < suite.count
    assert found.ex_suite is True
    assert (none.ex_suite, none.status, none.gold) == (None, "no_neighbour", "fails")
    assert none.left_out == suite.count


@pytest.mark.parametrize(
    ("gold", "says"),
    [
        ("SELECT name FROM dog WHERE age > 40", "varies"),
        ("SELECT name FROM dog WHERE age > 9 AND age < 2", "empty"),
        ("SELECT count(*) FROM dog WHERE age > 9 AND age < 2", "constant"),
        ("SELECT 'yes'", "constant"),
    ],
)
def test_golds_that_tell_nothing_are_flagged(
    database: Callable[..., Schema], suite: Suite, gold: str, says: str
) -> None:
    """Empty on all neighbours, or the same on all; a gold that is empty by chance on the original is neither."""
    schema = database()

    assert suite.gold_says(schema, gold) == says
    assert suite.verdict(schema, gold, gold, True).gold == says


def test_verdict_depends_on_the_pair_alone(database: Callable[..., Schema], executor: Executor, tmp_path: Path) -> None:
    """Whatever was judged before, and in another folder, the same pair gets the same verdict."""
    schema = database()
    pairs = [
        (f"SELECT name FROM dog WHERE age > {age}", f"SELECT name FROM dog WHERE age > {age + 1}") for age in (5, 6)
    ]
    forward, backward = Suite(executor, tmp_path / "one"), Suite(executor, tmp_path / "two")

    first = [forward.verdict(schema, gold, pred, True) for gold, pred in pairs]
    second = [backward.verdict(schema, gold, pred, True) for gold, pred in reversed(pairs)]

    assert first == list(reversed(second))


ODD_CONSTANTS = [
    *(
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808",
        "9" * 40,
        "0" * 5000 + "5",
        "1e999",
        "-1e308",
    ),
    *("0x10", "NULL", "TRUE", "x'ff'", "''", "''''", "'%'", "'\x00'", "'\ud800'", "'" + "a" * 3000 + "'", '"name"'),
]
CONDITIONS = st.builds(
    "{} {} {}".format,
    st.sampled_from(["name", "T1.age", "weight", "dog_id", "good", "tag", "count(*)", "abs(age)", "nothing", "("]),
    st.sampled_from(
        ["=", "<>", "<=", "LIKE", "NOT LIKE", "GLOB", "IS NOT", "BETWEEN 1 AND", "IN (1, 2) OR age IN", "AND"]
    ),
    st.sampled_from(ODD_CONSTANTS),
)
ODD_SQL = st.builds(
    "SELECT name FROM dog AS T1 WHERE {} GROUP BY breed HAVING {} ORDER BY age LIMIT {}".format,
    *(CONDITIONS, CONDITIONS, st.sampled_from(ODD_CONSTANTS)),
) | st.text(max_size=60)


@settings(max_examples=max(20, settings.default.max_examples // 10))  # each writes databases
@given(gold=ODD_SQL, pred=ODD_SQL)
@example(gold="SELECT name FROM dog WHERE name > '\ud800'", pred="SELECT name FROM dog")
def test_neighbours_are_made_around_any_constant(shop: Schema, suite: Suite, gold: str, pred: str) -> None:
    """Numbers beyond every type, bytes, half characters and text that is no SQL: a verdict, never an exception."""
    assert suite.verdict(shop, gold, pred, True).ex_suite in (True, False, None)
