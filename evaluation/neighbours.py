"""
Neighbour databases: small SQLite files with a database's schema and other rows, made around what two queries look at.

Two queries that give the same on one database may do so by luck: both find nothing, or the one row that is there. On a
few neighbours luck runs out. Each holds, for the tables that the queries read (and those they refer to):

    rows          some 20 to 240 a table; up to half of the cells come from rows of the original, the others are drawn
                  anew, column by column, so that what happened to go together no longer does
    constants     rows at, below and above every constant of the two queries, several columns of a row at once
    keys          primary keys, UNIQUE and CHECK hold; foreign keys hold (of the file, of tables.json, and pairs of
                  columns that the gold joins), some parents having many children and some none
    ties, NULLs   numbers repeat; NULL is where the original has NULL

The other tables are empty. The same database, seed and focus give the same bytes. Written for any SQLite file: a table
that cannot be made again (a virtual one without its module) is left out, a row that a constraint refuses too.
"""

import contextlib
import random
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluation.database_audit import quoted
from evaluation.neighbour_values import (
    LEAST_SEEN,
    ColumnProfile,
    clumps,
    drawn_values,
    profile_column,
    shifted,
    telling_values,
    unique_values,
)
from evaluation.query_focus import Focus, Place, Value, as_json
from text2sql.artifacts import file_digest, fingerprint
from text2sql.schema import Schema, read_only

RULES = 1  # part of every cache key: raise it when the same focus is to give other rows
COUNT = 8
ROWS_READ = 5_000  # of each table of the original
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
class _Filled:
    """A table of a neighbour while it is made. `marked`: rows that hold a constant, or refer to one that does."""

    cells: Cells
    marked: list[bool]

    def __len__(self) -> int:
        return len(self.marked)


class Neighbours:
    """
    Writes neighbours of one database below `folder`, where those that are there already are used again. Raises
    DatabaseError when the database cannot be read.
    """

    def __init__(self, schema: Schema, folder: Path, *, seed: int = 0, count: int = COUNT) -> None:
        self.schema = schema
        self.folder = folder
        self.seed = seed
        self.count = count
        self._digest = file_digest(schema.database)
        with read_only(schema.database) as connection:
            connection.text_factory = lambda data: data.decode("utf-8", "ignore")  # as the executor reads it
            self._statements = _statements(connection)
            self._links = _links(connection, schema)
            profiles = [_profile(connection, table.name) for table in schema.tables]
        self._tables = {profile.name: _with_links(profile, self._links) for profile in profiles}

    def write(self, focus: Focus) -> tuple[Path, ...]:
        """The neighbours for a focus, numbered from 1."""
        made_from = fingerprint([RULES, self._digest, self.seed, as_json(focus)])
        folder = self.folder / f"{self.schema.database.stem}-{made_from}"
        paths = tuple(folder / f"{number}.sqlite" for number in range(1, self.count + 1))
        for number, path in enumerate(paths, start=1):
            if not path.is_file():
                folder.mkdir(parents=True, exist_ok=True)
                _write_whole(path, self._make(focus, random.Random(f"{made_from}/{number}")))
        return paths

    def _make(self, focus: Focus, rng: random.Random) -> bytes:
        links = [*self._links, *_joins(focus, self._links, self._tables)]
        names = _needed(focus, links, self._tables)
        links = [link for link in links if link.table in names and link.other in names]
        filling = _Filling(self._tables, links, focus, rng)
        for name in names:
            filling.fill(name)
        filling.tie_loose_ends()
        return _database(self._statements, filling.filled, filling.kept)


class _Filling:
    """Makes the rows of one neighbour, parents before children."""

    def __init__(
        self, tables: Mapping[str, TableProfile], links: Sequence[Link], focus: Focus, rng: random.Random
    ) -> None:
        self.filled: dict[str, _Filled] = {}
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

    def _rows(self, table: TableProfile, links: Sequence[Link]) -> _Filled:
        rng = self._rng
        number = int(min(max(len(table.rows), LEAST_ROWS), MOST_ROWS) * rng.uniform(0.7, 1.4))
        large_group = max(self._focus.counts, default=0)
        number = min(max(number, self._focus.most_rows + 8, 3 * large_group), ROW_CAP)
        hot = [rng.random() < HOT_SHARE for _ in range(number)]
        filled = _Filled({}, [False] * number)
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

    def _refer(self, link: Link, table: TableProfile, filled: _Filled, hot: Sequence[bool]) -> None:
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

    def _fits_all(self, link: Link, parent: _Filled, row: int) -> bool:
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


def _without_repeats(filled: _Filled, unique: Iterable[Sequence[str]]) -> _Filled:
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
    return _Filled(cells, [filled.marked[row] for row in kept])


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


def _statements(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """(type, SQL) of all that the schema consists of, in the order in which it was made."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
    return [(kind, sql) for kind, name, sql in rows if not name.lower().startswith("sqlite_")]


def _links(connection: sqlite3.Connection, schema: Schema) -> list[Link]:
    """The foreign keys, those of several columns as one; each with columns that exist and are not the same."""
    columns = {table.name: {column.name.lower(): column.name for column in table.columns} for table in schema.tables}
    known = {(key.table, key.column.lower(), key.other_table): key for key in schema.foreign_keys}
    links: dict[Link, None] = {}
    for table in schema.tables:
        parts: dict[int, list[str]] = {}
        others: dict[int, str] = {}
        for number, column, other in connection.execute(
            'SELECT id, "from", "table" FROM pragma_foreign_key_list(?) ORDER BY id DESC, seq', (table.name,)
        ):
            parts.setdefault(number, []).append(column)
            others[number] = next((name for name in columns if name.lower() == other.lower()), "")
        for number, names in parts.items():
            keys = [known.pop((table.name, name.lower(), others[number]), None) for name in names]
            if len(keys) > 1 and all(keys):
                found = [key for key in keys if key]
                links[
                    Link(
                        table.name,
                        tuple(key.column for key in found),
                        others[number],
                        tuple(key.other_column for key in found),
                    )
                ] = None
            else:
                known |= {(key.table, key.column.lower(), key.other_table): key for key in keys if key}
    for key in known.values():
        if key.other_column.lower() in columns.get(key.other_table, {}):
            link = Link(key.table, (key.column,), key.other_table, (key.other_column,))
            if (link.table, link.columns) != (link.other, link.other_columns):
                links[link] = None
    return list(links)


def _profile(connection: sqlite3.Connection, name: str) -> TableProfile:
    """What the table holds. Columns that SQLite computes are left to it."""
    described = connection.execute(
        'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden = 0', (name,)
    ).fetchall()
    key = tuple(column for _, column in sorted((place, column) for column, _, _, place in described if place))
    unique = [key] if key else []
    for (index,) in connection.execute(
        'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', (name,)
    ).fetchall():
        parts = [part for (part,) in connection.execute("SELECT name FROM pragma_index_info(?)", (index,))]
        if None not in parts:
            unique.append(tuple(parts))
    shown = ", ".join(quoted(column) for column, *_ in described)
    rows = connection.execute(f"SELECT {shown} FROM {quoted(name)} LIMIT {ROWS_READ}").fetchall()
    names = [column for column, *_ in described]
    columns = {
        column: profile_column(
            column,
            declared,
            [row[place] for row in rows],
            key=(column,) in unique,
            nullable=not not_null and not position,
        )
        for place, (column, declared, not_null, position) in enumerate(described)
    }
    single = [(column,) for column, found in columns.items() if found.unique]
    return TableProfile(
        name,
        columns,
        tuple(dict(zip(names, row, strict=True)) for row in rows),
        tuple(dict.fromkeys([*single, *unique])),
        tuple(unique),
    )


def _with_links(table: TableProfile, links: Sequence[Link]) -> TableProfile:
    """
    A column that refers to another table repeats, unless a key forbids it; the pair of such columns in a table that
    only connects others does not, if the original has no pair twice.
    """
    referring = [column for link in links if link.table == table.name for column in link.columns]
    columns = {
        name: replace(column, unique=column.unique and (name not in referring or (name,) in table.declared))
        for name, column in table.columns.items()
    }
    unique = [columns_ for columns_ in table.unique if len(columns_) > 1 or columns[columns_[0]].unique]
    pair = tuple(dict.fromkeys(referring))
    rows = [tuple(row[name] for name in pair) for row in table.rows]
    if len(pair) > 1 and len(rows) >= LEAST_SEEN and len(set(rows)) == len(rows):
        unique.append(pair)
    return replace(table, columns=columns, unique=tuple(unique))


def _database(statements: Sequence[tuple[str, str]], filled: Mapping[str, _Filled], links: Sequence[Link]) -> bytes:
    """An SQLite file with these rows. Triggers and views come last, so that no trigger sees the rows."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute("PRAGMA page_size = 512")
        connection.execute("BEGIN")
        late = ("trigger", "view")
        for sql in (sql for kind, sql in statements if kind not in late):
            with contextlib.suppress(sqlite3.Error):  # a virtual table without its module, or one of its own tables
                connection.execute(sql)
        for name, table in filled.items():
            _insert(connection, name, table)
        _drop_orphans(connection, links)
        for sql in (sql for kind, sql in statements if kind in late):
            with contextlib.suppress(sqlite3.Error):  # a view of what is not there
                connection.execute(sql)
        connection.execute("COMMIT")
        return connection.serialize()
    finally:
        connection.close()


def _insert(connection: sqlite3.Connection, name: str, table: _Filled) -> None:
    columns = ", ".join(map(quoted, table.cells))
    holes = ", ".join("?" * len(table.cells))
    sql = f"INSERT OR IGNORE INTO {quoted(name)} ({columns}) VALUES ({holes})"
    for row in zip(*table.cells.values(), strict=True):
        with contextlib.suppress(sqlite3.Error):  # a cell that the column's type refuses
            connection.execute(sql, row)


def _drop_orphans(connection: sqlite3.Connection, links: Sequence[Link]) -> None:
    """Rows whose parent a constraint refused go too, and their children after them."""
    gone = True
    while gone:
        gone = False
        for link in links:
            there = " AND ".join(
                f"parent.{quoted(other)} = {quoted(link.table)}.{quoted(column)}"
                for column, other in zip(link.columns, link.other_columns, strict=True)
            )
            known = " AND ".join(f"{quoted(column)} IS NOT NULL" for column in link.columns)
            with contextlib.suppress(sqlite3.Error):  # one of the tables could not be made
                gone |= (
                    connection.execute(
                        f"DELETE FROM {quoted(link.table)} WHERE {known} AND NOT EXISTS "
                        f"(SELECT 1 FROM {quoted(link.other)} AS parent WHERE {there})"
                    ).rowcount
                    > 0
                )


def _write_whole(path: Path, data: bytes) -> None:
    """A reader, and another process that writes the same, never sees half a file."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    partial.write_bytes(data)
    partial.replace(path)
