"""No text whatever makes exact match raise: SQL made by grammar, SQL with damage, and arbitrary unicode."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.exact_match import EvaluatorSchema, exact_match, exact_match_sound, hardness

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")

GOLD = "SELECT T1.name , count(*) FROM singer AS T1 JOIN performance AS T2 ON T1.singer_id = T2.singer_id GROUP BY name"

columns = st.sampled_from(
    ["name", "age", "T1.name", "singer.age", "*", "T2.fee", "nothing", '"name"', "`age`", "[fee]", "T1 . age", "T1.*"]
)
literals = st.sampled_from(
    ["3", "-1.5", "1e5", ".5", "3.", "'x'", '"O\'Brien"', "'it''s'", "NULL", "nan", "x'ff'", "TRUE"]
)
atoms = columns | literals


def calls(inner):
    return st.builds(
        "{}({})".format, st.sampled_from(["max", "count", "sum", "none", "round", "count(distinct", "cast"]), inner
    )


expressions = st.recursive(
    atoms,
    lambda inner: (
        calls(inner)
        | st.builds("{} {} {}".format, inner, st.sampled_from(["+", "-", "*", "/", "||", "%"]), inner)
        | st.builds("({})".format, inner)
        | st.builds("CASE WHEN {} THEN {} ELSE {} END".format, inner, inner, inner)
    ),
    max_leaves=5,
)
operators = st.sampled_from(
    [
        "=",
        "!=",
        "<>",
        ">",
        ">=",
        "> =",
        "==",
        "LIKE",
        "NOT LIKE",
        "IN",
        "NOT IN",
        "IS",
        "IS NOT",
        "BETWEEN 1 AND",
        "GLOB",
    ]
)


def conditions(query):
    values = expressions | st.builds("({})".format, query) | st.just("(1, 2)") | st.just("()")
    simple = st.builds("{} {} {}".format, expressions, operators, values) | st.builds("EXISTS ({})".format, query)
    return st.recursive(
        simple,
        lambda inner: (
            st.builds("{} {} {}".format, inner, st.sampled_from(["AND", "OR", "", "and or"]), inner)
            | st.builds("({})".format, inner)
            | st.builds("NOT {}".format, inner)
        ),
        max_leaves=3,
    )


def selects(query):
    tables = st.sampled_from(
        ["singer", "singer AS T1", "singer T1", "performance AS T2", "nothing", '"singer"', "singer AS concert"]
    ) | st.builds("({}) AS T2".format, query)
    joins = st.sampled_from([" JOIN ", " , ", " LEFT JOIN ", " NATURAL JOIN ", " CROSS JOIN ", " "])
    on = st.just("") | st.builds(" ON {}".format, conditions(query)) | st.just(" USING (singer_id)")
    where = st.just("") | st.builds(" WHERE {}".format, conditions(query))
    group = st.just("") | st.builds(" GROUP BY {} HAVING {}".format, expressions, conditions(query))
    order = st.just("") | st.builds(" ORDER BY {} DESC , 1 LIMIT {}".format, expressions, atoms)
    return st.builds(
        "SELECT {} {} , {} FROM {}{}{}{}{}{}{}".format,
        st.sampled_from(["", "DISTINCT"]),
        expressions | st.builds("{} AS name".format, expressions),
        expressions,
        tables,
        joins,
        tables,
        on,
        where,
        group,
        order,
    )


plain = st.sampled_from([GOLD, "SELECT name FROM singer", "SELECT 1", "WITH name AS (SELECT 1) SELECT * FROM name"])
queries = st.recursive(
    plain,
    lambda query: (
        selects(query)
        | st.builds("{} {} {}".format, query, st.sampled_from(["UNION", "EXCEPT", "UNION ALL", "INTERSECT"]), query)
        | st.builds("WITH x AS ({}) {}".format, query, query)
        | st.builds("({})".format, query)
    ),
    max_leaves=4,
)
scraps = st.sampled_from(
    [
        "'",
        '"',
        "(",
        ")",
        ";",
        ",",
        " as ",
        " as",
        " from ",
        " select ",
        "--",
        "/*",
        "`",
        "[",
        ".",
        "=",
        "\x00",
        "\n",
        "é",
        "limit",
    ]
) | st.text(max_size=3)


@st.composite
def damaged(draw):
    text = draw(queries)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(scraps) + text[at + draw(st.integers(0, 6)) :]
    return text


def judge(gold: str, pred: str, schema: EvaluatorSchema) -> None:
    verdict = exact_match(gold, pred, schema)
    sound = exact_match_sound(gold, pred, schema)
    level = hardness(gold, schema)

    assert verdict.em in (True, False, None)
    assert isinstance(sound, bool)
    assert level in ("easy", "medium", "hard", "extra", None)
    assert (verdict.em is None) == (verdict.partial is None)


@given(gold=queries, pred=queries)
def test_generated_sql(gold, pred, concerts: EvaluatorSchema):
    """Pairs of SQL made by grammar, readable or not, get a verdict."""
    judge(gold, pred, concerts)


@given(pred=damaged())
def test_damaged_sql(pred, concerts: EvaluatorSchema):
    """So do queries with characters put in and taken out, as gold and as prediction."""
    judge(GOLD, pred, concerts)
    judge(pred, GOLD, concerts)


@given(pred=st.text(max_size=200), start=st.sampled_from(["", "select ", "SELECT name FROM singer WHERE "]))
def test_arbitrary_text(pred, start, concerts: EvaluatorSchema):
    """And so does any text, in any script."""
    judge(GOLD, start + pred, concerts)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT x AS x FROM singer",
        'SELECT "x" AS x FROM singer WHERE x = 1',
        "SELECT x AS y , y AS x FROM singer ORDER BY x",
        "SELECT x + 1 AS x FROM singer GROUP BY x",
        "SELECT age FROM (SELECT x AS x FROM singer) AS T1 WHERE x = 1",
    ],
)
def test_aliases_that_name_each_other(text, concerts: EvaluatorSchema):
    """An alias of nothing but itself, which a query on columns that are not there has easily, is no endless search."""
    judge(GOLD, text, concerts)
    judge(text, GOLD, concerts)


DOUBLED = ", ".join(f"a{link} + a{link} AS a{link + 1}" for link in range(1, 60))
JOINED = "".join(f", c{link + 1} AS (SELECT x.n FROM c{link} AS x JOIN c{link} AS y)" for link in range(60))


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT age + age AS a1 , {DOUBLED} FROM singer",
        f"WITH c0 AS (SELECT name AS n FROM singer) {JOINED} SELECT n FROM c60",
    ],
    ids=["aliases", "common tables"],
)
def test_chains_of_names_that_double_at_each_link(text, concerts: EvaluatorSchema):
    """Written out, sixty links would be 2 ** 60 parts: refused, not read for ever."""
    judge(GOLD, text, concerts)
    judge(text, GOLD, concerts)


@pytest.mark.parametrize(
    ("opening", "middle", "closing"),
    [
        ("SELECT name FROM singer WHERE age IN (", "SELECT age FROM singer", ")"),
        ("SELECT name FROM (", "SELECT name FROM singer", ")"),
        ("(", "SELECT name FROM singer", ")"),
        ("SELECT name FROM singer UNION ", "SELECT name FROM singer", ""),
        ("SELECT CASE WHEN ", "1", " THEN 1 END"),
        ("SELECT name FROM singer WHERE NOT ", "age = 3", " AND NOT age = 3"),
        ("SELECT name FROM singer AS s JOIN ", "concert", " ON 1 = 1"),
        ("SELECT max(", "age", ")"),
        ("[", "", "]"),
    ],
)
def test_deep_nesting(opening, middle, closing, concerts: EvaluatorSchema):
    """Nesting far beyond any recursion limit, of every kind that nests, is unreadable and no more."""
    text = opening * 3_000 + middle + closing * 3_000

    judge(GOLD, text, concerts)
    judge(text, GOLD, concerts)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT name FROM singer WHERE " + "age = 3 OR " * 20_000 + "age = 3",
        "SELECT " + "name , " * 20_000 + "name FROM singer",
        "select " + "(" * 200_000,
        "'" * 200_000,
        "SELECT name FROM singer WHERE " + "NOT " * 5_000 + "age = 3",
    ],
    ids=["conditions", "columns", "parentheses", "quotes", "negations"],
)
def test_long_texts(text, concerts: EvaluatorSchema):
    """Hundreds of kilobytes of SQL-like text are read to their end or refused, without an exception."""
    judge(GOLD, text, concerts)
