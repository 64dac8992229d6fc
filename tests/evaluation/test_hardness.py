"""Hardness of golds, rule by rule."""

import pytest

from evaluation.exact_match import EvaluatorSchema, hardness

JOIN = "FROM singer AS T1 JOIN performance AS T2 ON T1.singer_id = T2.singer_id"


@pytest.mark.parametrize(
    ("gold", "level"),
    [
        ("SELECT name FROM singer", "easy"),
        ("SELECT name FROM singer WHERE age = 3", "easy"),
        ("SELECT max(age) FROM singer", "easy"),
        ("SELECT name , age FROM singer", "medium"),
        ("SELECT name FROM singer WHERE age = 3 AND country = 'x'", "medium"),
        ("SELECT name FROM singer ORDER BY age LIMIT 1", "medium"),
        (f"SELECT T1.name {JOIN} WHERE T2.fee = 3", "medium"),
        ("SELECT name FROM singer WHERE age = 3 OR country = 'x'", "medium"),
        (f"SELECT T1.name , T2.fee {JOIN} WHERE T2.fee = 3", "medium"),
        ("SELECT name FROM singer WHERE age = 3 ORDER BY age LIMIT 1", "hard"),
        ("SELECT name , age FROM singer WHERE age = 3 AND age = 4 ORDER BY name", "extra"),
        ("SELECT name FROM singer WHERE age = (SELECT max(age) FROM singer)", "hard"),
        ("SELECT name FROM singer UNION SELECT name FROM stadium", "hard"),
        ("SELECT name , age FROM singer UNION SELECT name , city FROM stadium", "extra"),
        (f"SELECT T1.name {JOIN} WHERE T2.fee = (SELECT max(fee) FROM performance)", "extra"),
        (f"SELECT T1.name , T2.fee {JOIN} WHERE T2.fee = 3 AND T1.age = 3 ORDER BY T1.age LIMIT 1", "extra"),
    ],
)
def test_level(gold, level, concerts: EvaluatorSchema):
    """Clauses, joins, OR and LIKE; nested queries; and what occurs more than once decide the level."""
    assert level == hardness(gold, concerts)


def test_like_counts_as_a_component(concerts: EvaluatorSchema):
    """LIKE adds one to the clauses."""
    assert "easy" == hardness("SELECT name FROM singer WHERE name = 'x'", concerts)
    assert "medium" == hardness("SELECT name FROM singer WHERE name LIKE 'x'", concerts)


def test_derived_table_does_not_count_as_nested(concerts: EvaluatorSchema):
    """A query in FROM is one unit of FROM and nothing more."""
    assert "easy" == hardness("SELECT count(*) FROM (SELECT country FROM singer GROUP BY country)", concerts)


def test_negated_conditions_count_as_aggregates(concerts: EvaluatorSchema):
    """An oddity of the original: two negated conditions are more than one `aggregate`."""
    plain = "SELECT name , age FROM singer WHERE age IN (1) AND age IN (2)"
    negated = "SELECT name , age FROM singer WHERE age NOT IN (1) AND age NOT IN (2)"

    assert "medium" == hardness(plain, concerts)
    assert "hard" == hardness(negated, concerts)


def test_connectors_in_having_count_as_aggregates(concerts: EvaluatorSchema):
    """Another one: every AND or OR in HAVING is an `aggregate`, while count(*) there is none."""
    one = "SELECT country , count(*) FROM singer GROUP BY country HAVING count(*) > 1"
    two = "SELECT country , count(*) FROM singer GROUP BY country HAVING count(*) > 1 AND count(*) < 5"
    three = f"{two} AND count(*) != 3"

    assert "medium" == hardness(one, concerts)
    assert "medium" == hardness(two, concerts)
    assert "medium" == hardness(three, concerts)
    assert "hard" == hardness(f"{two} ORDER BY country LIMIT 1", concerts)


def test_between_has_no_connector(concerts: EvaluatorSchema):
    """BETWEEN's own AND neither connects nor adds a condition."""
    assert "easy" == hardness("SELECT name FROM singer WHERE age BETWEEN 3 AND 5", concerts)
