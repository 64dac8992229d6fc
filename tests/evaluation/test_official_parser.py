"""Tokens and grammar of the official reading."""

import pytest

from evaluation.official_parser import Condition, parse
from evaluation.official_tokens import END, UnreadableError, tokenize

COLUMNS = {"singer": frozenset({"id", "name", "age"}), "song": frozenset({"id", "title", "singer_id"})}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a,b , c", ["a", ",", "b", ",", "c"]),
        ("a,1", ["a,1"]),
        ("count(*)", ["count", "(", "*", ")"]),
        ("a=3 t1.id=t2.id", ["a=3", "t1.id=t2.id"]),
        ("a-b x||y a/b", ["a-b", "x||y", "a/b"]),
        ("a*b", ["a", "*", "b"]),
        ("a--b", ["a", "--", "b"]),
        ("x>3 x<3", ["x", ">", "3", "x", "<", "3"]),
        ("x >= 3 x > = 3 x ! = 3", ["x", ">=", "3", "x", ">=", "3", "x", "!=", "3"]),
        ("x >=3", ["x", ">", "=3"]),
        ("x <> 3", ["x", "<", ">", "3"]),
        ("a = 'It is' b", ["a", "=", '"It is"', "b"]),
        ("a ='x'", ["a", "=__string_1__"]),
        ("'it''s'", ["__string_1____string_3__"]),
        ("(\"x\",'y')", ["(", '"x"', ",", '"y"', ")"]),
        ("1.5 .5 1e5 -3", ["1.5", ".5", "1e5", "-3"]),
        ("x > 3.", ["x", ">", "3", "."]),
        ("x > 3. AND y", ["x", ">", "3", ".", "and", "y"]),
        ("x > 3. and y", ["x", ">", "3.", "and", "y"]),
        ("x > 3.;", ["x", ">", "3.", ";"]),
        ("(x > 3.) y", ["(", "x", ">", "3", ".", ")", "y"]),
        ("T1.* d.*", ["t1", ".", "*", "d.", "*"]),
        ("group by name. having", ["group", "by", "name", ".", "having"]),
        ("a..b", ["a", "..", "b"]),
        ("``` `x`", ["``", "`", "`", "x", "`"]),
        ("cannot GIMME", ["can", "not", "gim", "me"]),
        ("it’s – so", ["it", "’", "s", "–", "so"]),
        ("a ; b", ["a", ";", "b"]),
        ("", []),
    ],
)
def test_tokens(text, tokens):
    """Text falls apart as the evaluator's tokenizer for English splits it."""
    assert [*tokens, END] == tokenize(text)


def test_odd_number_of_quotes_is_unreadable():
    """A quote without a partner cannot be read."""
    with pytest.raises(UnreadableError, match="odd number of quotes"):
        tokenize("name = 'x")


def test_structure_of_a_query():
    """Clauses come out as nested tuples: aggregate, column and DISTINCT; operator, left and right side."""
    query = parse("SELECT name , max(age) FROM singer WHERE age > 3 ORDER BY name DESC LIMIT 1", COLUMNS)

    name = ("none", ("none", "singer.name", False), None)
    age = ("none", ("none", "singer.age", False), None)
    assert (("none", name), ("max", age)) == query.select
    assert ("singer",) == query.tables
    assert (Condition(False, ">", age, 3.0),) == query.where
    assert ("desc", (name,)) == query.order
    assert query.limit is True


def test_set_operations_nest_to_the_right():
    """`a UNION b EXCEPT c` is a with (b EXCEPT c); ORDER BY at the end belongs to c."""
    query = parse("SELECT id FROM singer UNION SELECT id FROM song EXCEPT SELECT age FROM singer ORDER BY age", COLUMNS)

    assert "union" == query.operation
    assert "except" == query.operand.operation
    assert () == query.order
    assert "asc" == query.operand.operand.order[0]


def test_alias_of_the_last_definition_counts_everywhere():
    """One map of aliases serves the whole text, subqueries included."""
    text = "SELECT T1.id FROM singer AS T1 WHERE id IN (SELECT T1.id FROM song AS T1)"
    query = parse(text, COLUMNS)

    assert ("none", ("none", ("none", "song.id", False), None)) == query.select[0]


def test_bare_column_belongs_to_the_first_table_that_has_it():
    """There is no error for an ambiguous name."""
    query = parse("SELECT id FROM song JOIN singer", COLUMNS)

    assert "song.id" == query.select[0][1][1][1]


def test_column_as_value_swallows_up_to_the_next_stop():
    """The right side of `age = id OR name = "x" AND age = 3` is `id`, and `OR name = "x"` is gone."""
    query = parse('SELECT name FROM singer WHERE age = id OR name = "x" AND age = 3', COLUMNS)

    assert 3 == len(query.where)
    assert "and" == query.where[1]
    assert ("none", "singer.id", False) == query.where[0].value


def test_limit_takes_any_token():
    """The token after LIMIT is skipped, whatever it is; a LIMIT at the end is unreadable."""
    assert parse("SELECT id FROM song LIMIT banana", COLUMNS).limit is True
    with pytest.raises(UnreadableError, match="LIMIT without a number"):
        parse("SELECT id FROM song LIMIT", COLUMNS)


def test_limit_number_is_kept_on_request():
    """Other copies of the evaluator keep LIMIT's number and read whole numbers only."""
    assert "7" == parse("SELECT id FROM song LIMIT 7", COLUMNS, keep_limit=True).limit
    with pytest.raises(UnreadableError, match="whole number"):
        parse("SELECT id FROM song LIMIT banana", COLUMNS, keep_limit=True)


def test_numbers_are_what_float_takes():
    """Values are read by Python's float(): nan and 1_000 are numbers, a hexadecimal number is a column."""
    assert 1000.0 == parse("SELECT id FROM song WHERE id = 1_000", COLUMNS).where[0].value
    with pytest.raises(UnreadableError):
        parse("SELECT id FROM song WHERE id = 0x10", COLUMNS)


def test_deep_nesting_is_unreadable_not_an_exception_of_python():
    """A recursion limit that is hit makes the text unreadable."""
    deep = "SELECT id FROM song WHERE id IN (" * 2000 + "SELECT id FROM song" + ")" * 2000

    with pytest.raises(UnreadableError, match="nested too deeply"):
        parse(deep, COLUMNS)
