"""The text of a result that a model sees: short, the same everywhere, and honest about what was left out."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2sql.executor import Execution, render_result


def of(*rows: tuple[object, ...], columns: tuple[str, ...] = ("a",), status: str = "ok", **more: str) -> Execution:
    return Execution(status, columns, rows, 0.01, **more)  # type: ignore[arg-type]


def test_rows_are_listed_under_their_columns() -> None:
    """The number of rows, the columns, then the rows."""
    execution = of(("Ana", 31), ("Bo", None), columns=("name", "age"))

    assert render_result(execution, 200) == "2 rows (name, age): ('Ana', 31), ('Bo', NULL)"


def test_null_differs_from_its_name_and_from_the_empty_text() -> None:
    """Case ex-binary-and-odd-cells: NULL, 'NULL' and '' are three things."""
    assert render_result(of((None, "NULL", "")), 200) == "1 row (a): (NULL, 'NULL', '')"


def test_all_null_result_differs_from_an_empty_one() -> None:
    """Case ex-null-logic: the model's own check needs to see the difference."""
    assert render_result(of((None,), columns=("sum(s)",)), 200) == "1 row, every value NULL (sum(s)): (NULL)"
    assert render_result(of(columns=("sum(s)",), status="empty"), 200) == "0 rows (sum(s))"


def test_odd_cells_are_shown_as_plain_marked_text() -> None:
    """Case ex-binary-and-odd-cells: blobs in hex, long cells cut with their length, infinities as words."""
    execution = of((b"\x00\xff", "a\x00b\n", "0" * 1_000_000, math.inf, -math.inf, None, 9.223372036854776e18))

    text = render_result(execution, 300)

    assert json.loads(json.dumps(text)) == text
    assert text == (
        "1 row (a): (X'00FF', 'a\\u0000b\\u000a', '" + "0" * 60 + "'… (1,000,000 characters), "
        "Infinity, -Infinity, NULL, 9.223372036854776e+18)"
    )
    assert render_result(of((bytes(100),)), 200) == "1 row (a): (X'" + "00" * 16 + "'… (100 bytes))"


def test_quote_inside_a_text_is_doubled() -> None:
    """A text cannot pretend to end."""
    assert render_result(of(("O'Brien", "x', NULL")), 200) == "1 row (a): ('O''Brien', 'x'', NULL')"


def test_rows_beyond_the_room_are_counted() -> None:
    """Whole rows as long as there is room, then how many more there are."""
    text = render_result(of(*((number,) for number in range(1000))), 60)

    assert text == "1,000 rows (a): (0), (1), (2), (3), (4), (5), (6) … 993 more"
    assert len(text) <= 60


@pytest.mark.parametrize(
    ("execution", "text"),
    [
        (of(status="error", message="no such column: nmae"), "error: no such column: nmae"),
        (of(status="timeout", message="stopped after 2 s"), "timeout: stopped after 2 s"),
        (
            of(status="too_large", message="needed more than 64 MiB of memory"),
            "too large: needed more than 64 MiB of memory",
        ),
        (
            of((1,), status="too_large", message="more than 1 rows"),
            "too large: more than 1 rows; the first 1 row (a): (1)",
        ),
        (
            of(columns=(), status="empty", message="the text holds no SQL statement"),
            "no result: the text holds no SQL statement",
        ),
        (of(status="empty", hint='"x" was read as text'), '0 rows (a) Hint: "x" was read as text.'),
    ],
)
def test_each_status_says_what_happened(execution: Execution, text: str) -> None:
    """Errors, time-outs, limits and hints are told in words."""
    assert render_result(execution, 200) == text


def test_hint_survives_a_long_result() -> None:
    """What was misread matters more than one more row."""
    text = render_result(of(*(("x" * 30,) for _ in range(50)), hint='"nmae" matches no column'), 120)

    assert text.endswith('Hint: "nmae" matches no column.')
    assert len(text) <= 120


cells = st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.binary())


@given(st.lists(st.tuples(cells, cells), max_size=5), st.integers(20, 400), st.text(max_size=40))
def test_text_fits_its_room_and_is_valid_utf8(rows: list[tuple[object, object]], room: int, name: str) -> None:
    """Whatever the cells hold: within the room, one line, encodable, and the same twice."""
    execution = of(*rows, columns=(name, name), status="ok" if rows else "empty")

    text = render_result(execution, room)

    assert len(text) <= room
    assert text.encode("utf-8").decode("utf-8") == text
    assert not set(text) & {"\n", "\r", "\x00", "\u2028"}
    assert render_result(execution, room) == text
