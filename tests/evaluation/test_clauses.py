"""Clause views and clause F1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.clauses import CLAUSES, clause_f1, clause_view, mean_clause_f1

SCHEMA = (("pet", ("id", "owner_id", "kind")), ("st", ("id", "name", "age", "city")))


def test_a_clause_absent_on_both_sides_is_left_out():
    """Case rw-f1-of-nothing: equal queries score 1.0, and clauses that neither has take no part in the mean."""
    scores = clause_f1("SELECT name FROM st", "SELECT name FROM st")

    assert scores == {"select": 1.0, "join": 1.0}
    assert mean_clause_f1("SELECT name FROM st", "SELECT name FROM st") == 1.0


def test_a_clause_on_one_side_counts_as_zero():
    """Case rw-f1-of-nothing: an added WHERE is in the union of clauses, so the mean is below 1.0."""
    added = clause_f1("SELECT name FROM st", "SELECT name FROM st WHERE id = 1")
    dropped = clause_f1("SELECT name FROM st WHERE id = 1", "SELECT name FROM st")

    assert added == {"select": 1.0, "where": 0.0, "join": 1.0}
    assert added == dropped
    assert pytest.approx(2 / 3) == mean_clause_f1("SELECT name FROM st", "SELECT name FROM st WHERE id = 1")


@pytest.mark.parametrize(
    ("clause", "gold", "pred", "expected"),
    [
        ("select", "SELECT name, age FROM st", "SELECT age, name FROM st", 1.0),
        ("select", "SELECT name, age FROM st", "SELECT name FROM st", 2 / 3),
        ("select", "SELECT name, name FROM st", "SELECT name FROM st", 2 / 3),
        ("select", "SELECT count(*) FROM st", "SELECT count(id) FROM st", 0.0),
        ("select", "SELECT DISTINCT city FROM st", "SELECT city FROM st", 2 / 3),
        ("where", "SELECT * FROM st WHERE age > 3 AND city = 'Oslo'", "SELECT * FROM st WHERE age > 3", 2 / 3),
        ("where", "SELECT * FROM st WHERE age > 3", "SELECT * FROM st WHERE age > 4", 0.0),
        ("where", "SELECT * FROM st WHERE age = 3 OR age = 5", "SELECT * FROM st WHERE age = 5 OR age = 3", 1.0),
        ("where", "SELECT * FROM st WHERE age = 3 OR id = 5", "SELECT * FROM st WHERE age = 3 AND id = 5", 0.8),
        ("join", "SELECT a FROM t JOIN u ON t.x = u.y", "SELECT a FROM u JOIN t ON u.y = t.x", 1.0),
        ("join", "SELECT a FROM t JOIN u ON t.x = u.y", "SELECT a FROM t JOIN u ON t.x = u.z", 2 / 3),
        ("join", "SELECT a FROM t LEFT JOIN u ON t.x = u.y", "SELECT a FROM t JOIN u ON t.x = u.y", 6 / 7),
        ("group", "SELECT city FROM st GROUP BY city HAVING count(*) > 1", "SELECT city FROM st GROUP BY city", 2 / 3),
        ("order", "SELECT name FROM st ORDER BY age DESC LIMIT 1", "SELECT name FROM st ORDER BY age LIMIT 1", 0.5),
        ("order", "SELECT name FROM st ORDER BY age LIMIT 1", "SELECT name FROM st ORDER BY age LIMIT 3", 0.5),
        ("select", "SELECT a FROM t EXCEPT SELECT a FROM u", "SELECT a FROM t INTERSECT SELECT a FROM u", 0.5),
        (
            "where",
            "SELECT a FROM t WHERE x IN (SELECT y FROM u)",
            "SELECT a FROM t WHERE x IN (SELECT z FROM u)",
            2 / 3,
        ),
    ],
)
def test_f1_counts_elements_in_common(clause: str, gold: str, pred: str, expected: float):
    """F1 is 2 x common / (gold + prediction) elements, with literals, aggregates and repetition, without order."""
    assert pytest.approx(expected) == clause_f1(gold, pred)[clause]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT T1.Name FROM St AS T1", "select name from st"),
        ("SELECT T1.name FROM st AS T1 JOIN pet AS T2 ON T1.id = T2.owner_id", "SELECT a.name FROM pet b JOIN st a ON b.owner_id = a.id"),
        ("SELECT st.name FROM st, pet WHERE st.id = pet.owner_id", "SELECT st.name FROM st JOIN pet ON st.id = pet.owner_id"),
        ("SELECT city, count(*) AS n FROM st GROUP BY 1 ORDER BY n", "SELECT city, count(*) FROM st GROUP BY city ORDER BY count(*)"),
        ("SELECT name FROM st WHERE 5 < age", "SELECT name FROM st WHERE age > 5"),
        ("SELECT name FROM st WHERE NOT age = 5", "SELECT name FROM st WHERE age <> 5"),
        ("SELECT name FROM st WHERE (age != 5)", "SELECT name FROM st WHERE age ! = 5;"),
        ('SELECT name FROM st WHERE city = "Oslo"', "SELECT name FROM st WHERE city = 'Oslo'"),
        ("SELECT name FROM st WHERE age IN (1, 2)", "SELECT name FROM st WHERE age IN (2, 1)"),
        ("WITH x AS (SELECT id FROM st) SELECT id FROM x", "SELECT d.id FROM (SELECT id FROM st) AS d"),
        ("SELECT * FROM t JOIN u USING (x)", "SELECT * FROM t JOIN u ON u.x = t.x"),
    ],
)  # fmt: skip
def test_spellings_of_one_query_are_one_view(one: str, other: str):
    """Aliases, case, sides, quotes and positions make no difference."""
    assert dict(clause_view(one).clauses) == dict(clause_view(other).clauses)


def test_the_schema_settles_bare_columns_and_quoted_words():
    """With the tables' columns, a bare column gets its table, and a quoted word that is no column is text."""
    view = clause_view('SELECT name FROM st JOIN pet ON owner_id = st.id WHERE kind = "Dog" AND name = "city"', SCHEMA)

    assert view.clauses["select"] == ("st.name",)
    assert view.clauses["join"] == ("pet", "pet.owner_id = st.id", "st")
    assert view.clauses["where"] == ("pet.kind = 'Dog'", "st.city = st.name")


def test_a_nested_query_knows_the_tables_around_it():
    """A correlated column belongs to the outer query's table."""
    view = clause_view("SELECT name FROM st AS a WHERE EXISTS (SELECT 1 FROM pet WHERE owner_id = a.id)", SCHEMA)

    assert "(FROM pet.owner_id = st.id)" not in view.clauses["where"]
    assert "(WHERE pet.owner_id = st.id)" in view.clauses["where"]


def test_aggregates_are_always_visible():
    """Case mp-memory-of-unreadable-sql: COUNT(*) is in the view, wherever it stands."""
    view = clause_view("SELECT city FROM st GROUP BY city HAVING count(*) > 1 ORDER BY max(age)")

    assert view.aggregates == ("COUNT(*)", "MAX(st.age)")
    assert clause_view("SELECT count(*) FROM st").clauses["select"] == ("COUNT(*)",)


def test_the_view_lists_entities_and_constraints():
    """The memory shows tables, columns, literals and what narrows the answer."""
    view = clause_view("SELECT name FROM st WHERE city = 'Oslo' GROUP BY age HAVING count(*) > 2 ORDER BY age LIMIT 3")

    assert view.tables == ("st",)
    assert view.columns == ("st.age", "st.city", "st.name")
    assert view.literals == ("'Oslo'", "2", "3")
    assert view.tables + view.columns + view.literals == view.entities
    assert view.constraints == ("st.city = 'Oslo'", "HAVING COUNT(*) > 2", "LIMIT 3")


@pytest.mark.parametrize(
    "sql", ["", "  ", "no idea", "SELECT", "SELECT FROM", "DROP TABLE st", "VALUES (1)", "(" * 3000, "SELECT 1 " * 9999]
)
def test_unreadable_text_has_no_view(sql: str):
    """Text that is no readable query gives None, and 0.0 on each of gold's clauses."""
    assert clause_view(sql) is None
    assert clause_f1("SELECT name FROM st", sql) == {"select": 0.0, "join": 0.0}
    assert clause_f1(sql, "SELECT name FROM st") == {}
    assert mean_clause_f1(sql, "SELECT name FROM st") == 0.0


WORDS = ["SELECT", "FROM", "WHERE", "(", ")", ",", "*", "count(", "st", "T1", ".", "name", '"x"', "'", "=", "! =", "IN", "NOT",
         "AND", "OR", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "1", "UNION", "JOIN", "ON", "AS", "WITH", "CASE", "END", ";", "é"]  # fmt: skip
BROKEN_SQL = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join),
    st.lists(st.sampled_from(WORDS), max_size=25).map(lambda words: "SELECT " + " ".join(words)),
)


@given(BROKEN_SQL, BROKEN_SQL)
def test_nothing_raises_and_scores_stay_within_bounds(gold: str, pred: str):
    """Any two texts give scores between 0 and 1, the same in both directions, and 1 for a readable text with itself."""
    scores = clause_f1(gold, pred)
    view = clause_view(gold)

    assert all(clause in CLAUSES and 0.0 <= score <= 1.0 for clause, score in scores.items())
    assert (view is None) == (clause_f1(gold, gold) == {})
    if view is not None and clause_view(pred) is not None:
        assert scores == clause_f1(pred, gold)
        assert all(score == 1.0 for score in clause_f1(gold, gold).values())
