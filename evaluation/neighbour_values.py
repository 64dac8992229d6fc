"""
Cells for neighbour databases: what a column holds, and other cells that could be in it.

Nothing is made up where the column shows what it holds: text comes from the column's own values, numbers lie near them.
Two kinds of columns keep their character. In a `unique` column no value repeats, declared so or not (names, titles,
codes: a neighbour in which two singers are called the same would fail queries that nobody calls wrong). A `closed`
column has two numbers, a flag; it gets no third.
"""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal

from evaluation.query_focus import Value

Kind = Literal["integer", "real", "text"]

LEAST_SEEN = 3  # cells that must all differ before a column without a declared key is taken to be unique
FLAG_SEEN = 5  # cells that must share two numbers before they are taken to be a flag
LARGEST = 2**62

_IDENTIFIER = re.compile(r"(?:^|_)(?:(?i:id|code|key|no|number))$|[a-z](?:Id|ID|Code|Key|No)$")
_SHARED = re.compile(
    r"first|last|middle|given|family|surname|street|address|^[fl]_?name|(?:city|state|country|nationality|type|location)$",
    re.IGNORECASE,
)  # names of columns that many rows can share, though the few rows that are there do not
_MEASURE = re.compile(r"[-+\d.,:/\s]*")  # numbers, dates and times written as text
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_CLUMPS = (1, 1, 1, 2, 2, 3, 5)  # how often a value comes: many once, some often, so that groups differ in size


@dataclass(frozen=True)
class ColumnProfile:
    """`values`: its different cells, NULL left out, in the order of the rows. `null_share`: 0 where NULL must not be."""

    name: str
    kind: Kind
    values: tuple[Any, ...]
    null_share: float
    unique: bool
    closed: bool
    decimals: int


def profile_column(name: str, declared: str, cells: Sequence[Any], *, key: bool, nullable: bool) -> ColumnProfile:
    """What `cells` show. `key`: declared unique by itself. NULLs come where the column has some and may have them."""
    known = [cell for cell in cells if cell is not None]
    values = tuple(dict.fromkeys(known))
    kind = _kind(known, declared)
    differ = len(known) >= LEAST_SEEN and len(values) == len(known)
    measures = all(_MEASURE.fullmatch(str(value)) for value in values)
    named = kind == "text" and not measures and not _SHARED.search(name)
    unique = key or (differ and (named or bool(_IDENTIFIER.search(name))))
    nulls = len(cells) - len(known)
    return ColumnProfile(
        name,
        kind,
        values,
        null_share=min(max(nulls / len(cells), 0.1), 0.3) if nulls and nullable and not key else 0.0,
        unique=unique,
        closed=kind != "text" and not unique and len(known) >= FLAG_SEEN and len(values) <= 2,
        decimals=max((_decimals(cell) for cell in known), default=0),
    )


def telling_values(column: ColumnProfile, constants: Iterable[tuple[Value, bool, bool]]) -> list[Any]:
    """
    The constants (value, is it a pattern, does the gold have it) as the column can hold them, and their neighbours on
    both sides. A text that only the prediction has counts where the column holds it: what does not exist is often asked
    for to be safe (`IN ('US', 'U.S.')`, `<> ''`).
    """
    found: dict[Any, None] = {}
    for value, pattern, gold in constants:
        near = list(_matches(str(value), column) if pattern else _near(value, column))
        text = any(isinstance(cell, str) for cell in near)
        if gold or not text or (not pattern and str(value) in column.values):
            found.update(dict.fromkeys(near))
    return list(found)


def drawn_values(column: ColumnProfile, rng: random.Random, number: int, counts: Sequence[int]) -> list[Any]:
    """`number` cells in which values repeat; `counts`: sizes of groups that matter, so some come that often."""
    pool = _pool(column, rng, max(3, rng.choice((number // 4, number // 2, number))))
    return clumps(pool, rng, number, counts)


def shifted(cells: Sequence[Any], column: ColumnProfile, rng: random.Random) -> list[Any]:
    """
    The same cells, one time in three with all numbers moved up, so that the least and the greatest change; numbers with
    decimals become eighths, so that a sum does not depend on the order in which it is taken.
    """
    numbers = [value for value in column.values if isinstance(value, int | float) and abs(value) < LARGEST]
    if not numbers or column.closed or column.kind == "text":
        return list(cells)
    width = max(numbers) - min(numbers)
    step = max(1, round(width * rng.uniform(0.05, 0.3))) if rng.random() < 1 / 3 and width >= 1 else 0

    def moved(cell: Any) -> Any:
        if not isinstance(cell, int | float) or abs(cell) >= LARGEST:
            return cell
        return round((cell + step) * 8) / 8 if isinstance(cell, float) and width >= 1 else cell + step

    return [moved(cell) for cell in cells]


def clumps(pool: Sequence[Any], rng: random.Random, number: int, counts: Sequence[int] = ()) -> list[Any]:
    """`number` items of the pool, some once and some often, in random order."""
    sizes = [*_CLUMPS, *(size for count in counts for size in (count - 1, count, count + 1) if 0 < size <= number)]
    drawn: list[Any] = []
    while pool and len(drawn) < number:
        drawn += [rng.choice(pool)] * rng.choice(sizes)
    del drawn[number:]
    rng.shuffle(drawn)
    return drawn


def unique_values(column: ColumnProfile, rng: random.Random, number: int, first: Sequence[Any]) -> list[Any]:
    """`number` different cells: some of `first` at the head, then the column's own, then new ones."""
    head = rng.sample(list(first), min(len(first), max(1, number // 2)))
    own = [value for value in rng.sample(column.values, len(column.values)) if value not in head]
    found = dict.fromkeys([*head, *own][:number])
    fresh = _fresh(column)
    while len(found) < number:
        found[next(fresh)] = None
    return list(found)


def _kind(known: Sequence[Any], declared: str) -> Kind:
    """Of most cells; SQLite's own rule of affinity for a column without any."""
    if known:
        integers, floats = (sum(isinstance(cell, kind) for cell in known) for kind in (int, float))
        if 2 * (integers + floats) <= len(known):
            return "text"
        return "real" if floats else "integer"
    declared = declared.upper()
    if "INT" in declared or "BOOL" in declared:
        return "integer"
    if any(word in declared for word in ("REAL", "FLOA", "DOUB", "NUM", "DEC")):
        return "real"
    return "text"


def _decimals(cell: Any) -> int:
    return min(len(repr(cell).partition(".")[2]), 4) if isinstance(cell, float) and not cell.is_integer() else 0


def _near(value: Value, column: ColumnProfile) -> Iterator[Any]:
    """A number with the ones below and above it, a date with the days around it, a text as it is."""
    if column.kind == "text":
        yield str(value)
        text = str(value)
        if _DATE.fullmatch(text):
            with suppress(ValueError, OverflowError):
                day = date.fromisoformat(text)
                yield from ((day + timedelta(days)).isoformat() for days in (-1, 1))
        elif text.lstrip("-").isdigit() and not column.unique and text == str(int(text)):
            yield from (str(int(text) - 1), str(int(text) + 1))
        return
    try:
        number = float(value)
    except ValueError:
        yield str(value)  # SQLite keeps a text in a column of numbers
        return
    if not abs(number) < LARGEST:  # infinite, or no number
        return
    steps = (0.0,) if column.closed else (0.0, -1.0, 1.0)
    if column.kind == "integer":
        yield from dict.fromkeys(int((number + step) // 1) for step in steps)
        if not number.is_integer():
            yield int(number // 1) + 1
    else:
        unit = 10.0**-column.decimals
        yield from (round(number + step * unit, 6) for step in steps)


def _matches(pattern: str, column: ColumnProfile) -> Iterator[Any]:
    """Texts with the pattern's words at the start, inside, at the end and alone, and one that lacks a letter."""
    core = pattern.strip("%*").replace("%", " ").replace("*", " ").replace("_", "a").replace("?", "a")
    if not core:
        return
    if column.kind != "text":
        if core.isdigit():
            yield int(core) if column.kind == "integer" else float(core)
        return
    sample = next((value for value in column.values if isinstance(value, str) and len(value) > len(core)), core + "ab")
    yield from (core, core + sample[len(core) :], f"{sample} {core}", f"{sample[:2]}{core}{sample[2:4]}")
    if len(core) > 1:
        yield core[:-1]


def _pool(column: ColumnProfile, rng: random.Random, size: int) -> list[Any]:
    """Values to draw from: the column's own, numbers moved a little, and new ones where it shows hardly any."""
    if not column.values:
        fresh = _fresh(column)
        return [next(fresh) for _ in range(min(size, 12))]
    own = rng.sample(column.values, min(size, len(column.values)))
    if column.kind != "text" and not column.closed:
        return [_moved(rng.choice(own), column, rng) for _ in range(size)]
    if len(column.values) == 1 and not column.closed:
        own.append(next(_fresh(column)))
    return own


def _moved(value: Any, column: ColumnProfile, rng: random.Random) -> Any:
    """Half of the numbers stay; the others go one step, or up to a tenth of the column's width, to either side."""
    if not isinstance(value, int | float) or abs(value) >= LARGEST or rng.random() < 0.5:
        return value
    numbers = [number for number in column.values if isinstance(number, int | float)]
    width = max(numbers) - min(numbers) or abs(value) or 10
    unit = 10.0**-column.decimals
    moved = value + (rng.choice((-unit, unit)) if rng.random() < 0.5 else rng.uniform(-0.1, 0.1) * width)
    if min(numbers) >= 0:
        moved = max(moved, 0)
    return round(moved) if isinstance(value, int) else round(moved, column.decimals)


def _fresh(column: ColumnProfile) -> Iterator[Any]:
    """Values that the column does not have, without end."""
    known = set(column.values)
    if column.kind == "text":
        stems = [value for value in column.values if isinstance(value, str)] or [column.name]
        candidates: Iterator[Any] = (
            str(int(stem) + 1000 * turn) if stem.isdecimal() else f"{stem} {turn}"
            for turn in range(2, 10**6)
            for stem in stems
        )
    else:
        numbers = [value for value in column.values if isinstance(value, int | float) and abs(value) < LARGEST // 2]
        start = int(max(numbers, default=0))
        whole = column.kind == "integer"
        candidates = (start + step if whole else float(start + step) for step in range(1, 10**6))
    for candidate in candidates:
        if candidate not in known:
            known.add(candidate)
            yield candidate
