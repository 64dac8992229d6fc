"""
The rows of one neighbour database, in memory: what `evaluation.neighbours` promises of them is kept here.

Tables are filled parents before children, each column by column: cells of rows of the original, values drawn anew, and
the constants of the two queries, mostly together in the same rows.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.neighbour_values import ColumnProfile, clumps, drawn_values, shifted, telling_values, unique_values
from evaluation.query_focus import Focus, Place, Value

LEAST_ROWS, MOST_ROWS, ROW_CAP = 24, 100, 240
SHARED = 4  # values that columns of a set operation have in common
HOT_SHARE = 0.35  # hot rows: those whose cells are mostly constants

Cells = dict[str, list[Any]]


@dataclass(frozen=True)
class Link:
    """`columns` of `table` hold what `other_columns` of `other` hold, row by row."""

    table: str
    columns: tuple[str, ...]
    other: str
    other_columns: tuple[str, ...]


@dataclass(frozen=True)
class TableProfile:
    """
    `rows`: the first of the original. `unique`: sets of columns in which no row equals another; `declared`: those that
    the schema declares.
    """

    name: str
    columns: Mapping[str, ColumnProfile]
    rows: tuple[Mapping[str, Any], ...]
    unique: tuple[tuple[str, ...], ...]
    declared: tuple[tuple[str, ...], ...]


@dataclass
class Filled:
    """A table of a neighbour while it is made. `marked`: rows that hold a constant, or refer to one that does."""

    cells: Cells
    marked: list[bool]

    def __len__(self) -> int:
        return len(self.marked)


def fill(
    tables: Mapping[str, TableProfile], links: Sequence[Link], focus: Focus, rng: random.Random
) -> tuple[dict[str, Filled], list[Link]]:
    """The rows of each table that the focus needs, and the links that they keep. `links`: the foreign keys."""
    links = [*links, *_joins(focus, links, tables)]
    names = _needed(focus, links, tables)
    links = [link for link in links if link.table in names and link.other in names]
    filling = _Filling(tables, links, focus, rng)
    for name in names:
        filling.fill(name)
    filling.tie_loose_ends()
    return filling.filled, filling.kept


class _Filling:
    """Makes the rows of one neighbour, parents before children."""

    def __init__(
        self, tables: Mapping[str, TableProfile], links: Sequence[Link], focus: Focus, rng: random.Random
    ) -> None:
        self.filled: dict[str, Filled] = {}
        self.kept: list[Link] = []  # a column that two foreign keys fill in different ways keeps the first
        self._tables = tables
        self._links = links
        self._focus = focus
        self._rng = rng
        self._constants = _constants(focus, links)
        self._aligned = True  # do the constants of a table's unique columns stand in the same rows?
        self._begun: set[str] = set()
        self._loose: list[Link] = []

    def fill(self, name: str) -> None:
        """The table's rows, after those of the tables it refers to. Links that go round in a circle are left for later."""
        if name in self._begun:
            return
        self._begun.add(name)
        own = [link for link in self._links if link.table == name]
        for link in own:
            self.fill(link.other)
        ready = [link for link in own if link.other in self.filled]
        self._loose += [link for link in own if link.other not in self.filled]
        self.filled[name] = self._rows(self._tables[name], ready)

    def tie_loose_ends(self) -> None:
        """Columns that refer to their own table, or round in a circle, get values now that all tables have rows."""
        for link in self._loose:
            child, parent = self.filled[link.table], self.filled[link.other]
            profile = self._tables[link.table]
            if any(profile.columns[column].unique for column in link.columns) or not len(parent):
                continue
            self.kept.append(link)
            picked = clumps(range(len(parent)), self._rng, len(child), self._focus.counts)
            for column, other in zip(link.columns, link.other_columns, strict=True):
                for row, place in enumerate(picked):
                    if child.cells[column][row] is not None:
                        child.cells[column][row] = parent.cells[other][place]

    def _rows(self, table: TableProfile, links: Sequence[Link]) -> Filled:
        rng = self._rng
        number = int(min(max(len(table.rows), LEAST_ROWS), MOST_ROWS) * rng.uniform(0.7, 1.4))
        large_group = max(self._focus.counts, default=0)
        number = min(max(number, self._focus.most_rows + 8, 3 * large_group), ROW_CAP)
        hot = [rng.random() < HOT_SHARE for _ in range(number)]
        filled = Filled({}, [False] * number)
        for link in links:
            if not any(column in filled.cells for column in link.columns):
                self.kept.append(link)
                self._refer(link, table, filled, hot)
        some = rng.sample(table.rows, (len(table.rows) + 1) * 3 // 5)  # not all: the extremes are to change
        based_on = [rng.choice(some) for _ in range(number)] if some else [{}] * number
        self._aligned = rng.random() < 0.6
        for name, column in table.columns.items():
            if name not in filled.cells:
                constants = [*self._constants.get((table.name, name), ())]
                constants += [(value, False, gold) for value, gold in self._focus.loose]
                telling = telling_values(column, constants) + self._shared_values(table.name, name)
                cells = [row.get(name) for row in based_on]
                filled.cells[name] = self._column(column, telling, hot, filled.marked, cells)
        return _without_repeats(filled, table.unique)

    def _shared_values(self, table: str, column: str) -> list[Any]:
        """Some values of the columns that a set operation of the gold puts beside this one."""
        pairs = [*self._focus.overlaps, *((there, here) for here, there in self._focus.overlaps)]
        values: list[Any] = []
        for here, there in pairs:
            if here == (table, column):
                other = self._tables[there[0]].columns[there[1]]
                if other.kind == self._tables[table].columns[column].kind:
                    values += other.values[:SHARED]
        return values

    def _column(
        self,
        column: ColumnProfile,
        telling: Sequence[Any],
        hot: Sequence[bool],
        marked: list[bool],
        based_on: Sequence[Any],
    ) -> list[Any]:
        """A column that refers to no table. Marks the rows that get one of the `telling` values."""
        rng = self._rng
        number = len(hot)
        if column.unique:
            values = unique_values(column, rng, number, telling)
            places = sorted(range(number), key=lambda row: (not hot[row], row if self._aligned else rng.random()))
            cells: list[Any] = [None] * number
            for place, value in zip(places, values, strict=True):
                cells[place] = value
                marked[place] = marked[place] or value in telling
            return cells
        cells = drawn_values(column, rng, number, self._focus.counts)
        kept = 0.2 if self._focus.counts else 0.5  # groups of a certain size are drawn, not found
        for row, cell in enumerate(based_on):
            if cell is not None and rng.random() < kept:
                cells[row] = cell
        cells = shifted(cells, column, rng)
        for row in range(number):
            if telling and rng.random() < (0.8 if hot[row] else 0.1):
                cells[row] = rng.choice(telling)
                marked[row] = True
            if rng.random() < column.null_share:
                cells[row] = None
        return cells

    def _refer(self, link: Link, table: TableProfile, filled: Filled, hot: Sequence[bool]) -> None:
        """
        The columns of a foreign key. Most parents get children and some none; hot rows mostly refer to marked parents,
        or, where none is, all to the same two, so that what a query asks of two children can be true of one parent.
        """
        rng = self._rng
        parent = self.filled[link.other]
        known = [
            row
            for row in range(len(parent))
            if all(parent.cells[column][row] is not None for column in link.other_columns)
        ]
        places = [row for row in known if self._fits_all(link, parent, row)] or known
        number = len(hot)
        picked: list[int | None] = [None] * number
        if any(set(columns) <= set(link.columns) for columns in table.unique):
            picked[: len(places)] = rng.sample(places, min(len(places), number))  # the other rows go: no key is left
        elif places:
            some = rng.sample(places, max(1, len(places) * 3 // 4))
            special = [row for row in places if parent.marked[row]] or some[:2]
            usual = clumps(some, rng, number, self._focus.counts)
            favoured = clumps(special, rng, number, self._focus.counts)
            picked = [
                favoured[row] if rng.random() < (0.7 if hot[row] else 0.2) else usual[row] for row in range(number)
            ]
        null_share = table.columns[link.columns[0]].null_share if len(link.columns) == 1 else 0.0
        picked = [None if rng.random() < null_share else place for place in picked]
        for column, other in zip(link.columns, link.other_columns, strict=True):
            filled.cells[column] = [None if place is None else parent.cells[other][place] for place in picked]
        for row, place in enumerate(picked):
            filled.marked[row] = filled.marked[row] or (place is not None and parent.marked[place])

    def _fits_all(self, link: Link, parent: Filled, row: int) -> bool:
        """Where the columns refer to several tables: do the others have the row's values, too?"""
        values = tuple(parent.cells[column][row] for column in link.other_columns)
        for other in self._links:
            if (
                (other.table, other.columns) == (link.table, link.columns)
                and other != link
                and other.other in self.filled
            ):
                there = self.filled[other.other].cells
                if values not in set(zip(*(there[column] for column in other.other_columns), strict=True)):
                    return False
        return True


def _without_repeats(filled: Filled, unique: Iterable[Sequence[str]]) -> Filled:
    """Without the rows that repeat an earlier one in a set of columns that must not; NULLs repeat nothing."""
    kept = list(range(len(filled)))
    for columns in unique:
        seen: set[tuple[Any, ...]] = set()
        left = []
        for row in kept:
            values = tuple(filled.cells[column][row] for column in columns)
            if values not in seen:
                left.append(row)
            if None not in values:
                seen.add(values)
        kept = left
    cells = {name: [column[row] for row in kept] for name, column in filled.cells.items()}
    return Filled(cells, [filled.marked[row] for row in kept])


def _constants(focus: Focus, links: Sequence[Link]) -> dict[Place, list[tuple[Value, bool, bool]]]:
    """Constants by column. What a column is compared with counts for the columns that it refers to, too."""
    found: dict[Place, list[tuple[Value, bool, bool]]] = {}
    for constant in focus.constants:
        reached = {(constant.table, constant.column)}
        waiting = list(reached)
        while waiting:
            table, column = waiting.pop()
            for link in links:
                if link.table == table and column in link.columns:
                    place = (link.other, link.other_columns[link.columns.index(column)])
                    if place not in reached:
                        reached.add(place)
                        waiting.append(place)
        for place in sorted(reached):
            found.setdefault(place, []).append((constant.value, constant.pattern, constant.gold))
    return found


def _needed(focus: Focus, links: Sequence[Link], tables: Mapping[str, TableProfile]) -> list[str]:
    """The tables that get rows: those of the focus and those that they refer to, in the database's order."""
    needed = set(tables if focus.tables is None else focus.tables) & set(tables)
    while more := {link.other for link in links if link.table in needed} - needed:
        needed |= more
    return [name for name in tables if name in needed]


def _joins(focus: Focus, links: Sequence[Link], tables: Mapping[str, TableProfile]) -> Iterator[Link]:
    """Joins of the gold that no foreign key covers: the side whose values are unique is referred to."""
    known = {
        frozenset([(link.table, column), (link.other, other)])
        for link in links
        for column, other in zip(link.columns, link.other_columns, strict=True)
    }
    taken = {(link.table, column) for link in links for column in link.columns}
    for left, right in focus.joins:
        if left[0] == right[0] or frozenset([left, right]) in known:
            continue
        left_unique = tables[left[0]].columns[left[1]].unique
        child, parent = (right, left) if left_unique else (left, right)
        if child not in taken:
            taken.add(child)
            yield Link(child[0], (child[1],), parent[0], (parent[1],))
