"""Error classes, each by the cases that define it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.error_taxonomy import ERROR_CLASSES, classify_error
from evaluation.exact_match import EvaluatorSchema

JOIN = "FROM singer JOIN performance ON singer.singer_id = performance.singer_id"
FRENCH = "SELECT name FROM singer WHERE country = 'France'"


@pytest.mark.parametrize(
    ("pred", "status"),
    [
        (None, ""),
        ("", "no_answer"),
        ("Which singer do you mean?", ""),
        ("SELECT FROM WHERE", ""),
        ("SELECT nam FROM singer", "pred_error"),
        ("SELECT name FROM singer", "pred_timeout"),
    ],
)
def test_execution(pred, status, concerts: EvaluatorSchema):
    """No answer, no readable query, or a query that the database refuses or stops."""
    assert "execution" == classify_error("SELECT age FROM singer", pred, [], concerts, status)


@pytest.mark.parametrize(
    ("history", "gold", "pred"),
    [
        pytest.param([FRENCH], "SELECT age FROM singer WHERE country = 'France'", "SELECT age FROM singer", id="lost"),
        pytest.param(
            [FRENCH],
            "SELECT age FROM singer WHERE country = 'France'",
            "SELECT age FROM singer WHERE country = 'Spain'",
            id="changed",
        ),
        pytest.param([FRENCH], "SELECT age FROM singer", "SELECT age FROM singer WHERE country = 'France'", id="kept"),
        pytest.param(
            ["SELECT name FROM singer ORDER BY age LIMIT 3"],
            "SELECT country FROM singer ORDER BY age LIMIT 3",
            "SELECT country FROM singer ORDER BY age",
            id="limit",
        ),
        pytest.param(
            ["SELECT country FROM singer GROUP BY country HAVING count(*) > 2"],
            "SELECT country , avg(age) FROM singer GROUP BY country HAVING count(*) > 2",
            "SELECT country , avg(age) FROM singer GROUP BY country",
            id="having",
        ),
        pytest.param(
            [FRENCH, "SELECT count(*) FROM singer"],
            "SELECT age FROM singer WHERE country = 'France'",
            "SELECT age FROM singer",
            id="set by any earlier turn",
        ),
    ],
)
def test_constraint_coherence(history, gold, pred, concerts: EvaluatorSchema):
    """What an earlier turn narrowed and gold keeps is lost or changed, or what gold dropped is carried on."""
    assert "constraint_coherence" == classify_error(gold, pred, history, concerts)


def test_constraint_of_this_turn_is_no_matter_of_coherence(concerts: EvaluatorSchema):
    """A condition that this turn sets for the first time is not inherited."""
    wrong = classify_error("SELECT name FROM singer WHERE age > 3", "SELECT name FROM singer", [FRENCH], concerts)

    assert "schema_linking" == wrong


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        pytest.param(
            f"SELECT singer.name {JOIN}",
            "SELECT singer.name FROM singer JOIN performance ON singer.singer_id = performance.concert_id",
            id="other keys",
        ),
        pytest.param(
            f"SELECT singer.name , performance.fee {JOIN}", "SELECT name , fee FROM singer , performance", id="no keys"
        ),
        pytest.param(
            "SELECT title FROM concert JOIN performance ON concert.concert_id = performance.concert_id",
            "SELECT title FROM concert",
            id="bridge missing",
        ),
    ],
)
def test_join_path(gold, pred, concerts: EvaluatorSchema):
    """The columns asked for are right; how their tables are joined, or over which, is not."""
    assert "join_path" == classify_error(gold, pred, [], concerts)


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        pytest.param("SELECT name FROM singer", "SELECT name FROM stadium", id="table"),
        pytest.param("SELECT name FROM singer", "SELECT country FROM singer", id="column"),
        pytest.param("SELECT max(age) FROM singer", "SELECT max(market_value) FROM singer", id="aggregated column"),
        pytest.param(
            "SELECT name FROM singer WHERE age = 3",
            "SELECT name FROM singer WHERE country = 3",
            id="column of a filter",
        ),
    ],
)
def test_schema_linking(gold, pred, concerts: EvaluatorSchema):
    """The question's words were linked to other tables or columns."""
    assert "schema_linking" == classify_error(gold, pred, [], concerts)


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        pytest.param("SELECT max(age) FROM singer", "SELECT min(age) FROM singer", id="function"),
        pytest.param("SELECT count(*) FROM singer", "SELECT name FROM singer", id="list for count"),
        pytest.param(
            "SELECT count(*) FROM singer GROUP BY country", "SELECT count(*) FROM singer GROUP BY age", id="group"
        ),
        pytest.param(
            "SELECT country FROM singer GROUP BY country HAVING count(*) > 2",
            "SELECT country FROM singer GROUP BY country HAVING count(*) >= 2",
            id="having",
        ),
    ],
)
def test_aggregation_drift(gold, pred, concerts: EvaluatorSchema):
    """Over the right tables, something else is counted, summed or grouped."""
    assert "aggregation_drift" == classify_error(gold, pred, [], concerts)


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        pytest.param("SELECT name FROM singer ORDER BY age", "SELECT name FROM singer ORDER BY age DESC", id="order"),
        pytest.param(
            "SELECT name FROM singer WHERE age > 3", "SELECT name FROM singer WHERE age > 4", id="literal of this turn"
        ),
        pytest.param(
            "SELECT name FROM singer WHERE age = 3 AND country = 'x'",
            "SELECT name FROM singer WHERE age = 3 OR country = 'x'",
            id="connector",
        ),
        pytest.param("not a query", "SELECT name FROM singer", id="unreadable gold"),
    ],
)
def test_other(gold, pred, concerts: EvaluatorSchema):
    """The rest: order, literals, connectors, and golds that cannot be read."""
    assert "other" == classify_error(gold, pred, [], concerts)


def test_aliases_and_spelling_do_not_matter(concerts: EvaluatorSchema):
    """Names are compared by the tables that they stand for."""
    gold = "SELECT T1.name FROM singer AS T1 JOIN performance AS T2 ON T1.singer_id = T2.singer_id"
    pred = "select S.name from singer S join performance P on P.singer_id = S.singer_id limit 1"

    assert "other" == classify_error(gold, pred, [], concerts)


@given(
    gold=st.text(max_size=60), pred=st.none() | st.text(max_size=60), history=st.lists(st.text(max_size=40), max_size=2)
)
def test_any_text_has_a_class(gold, pred, history):
    """No text raises, and the class is one of those listed."""
    assert classify_error(gold, pred, history) in ERROR_CLASSES
