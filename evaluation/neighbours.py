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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from evaluation.database_audit import quoted
from evaluation.neighbour_rows import Filled, Link, TableProfile, fill
from evaluation.neighbour_values import LEAST_SEEN, profile_column
from evaluation.query_focus import Focus, as_json
from text2sql.artifacts import file_digest, fingerprint
from text2sql.schema import Schema, read_only

RULES = 1  # part of every cache key: raise it when the same focus is to give other rows
COUNT = 8
ROWS_READ = 5_000  # of each table of the original


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
        filled, links = fill(self._tables, self._links, focus, rng)
        return _database(self._statements, filled, links)


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


def _database(statements: Sequence[tuple[str, str]], filled: Mapping[str, Filled], links: Sequence[Link]) -> bytes:
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


def _insert(connection: sqlite3.Connection, name: str, table: Filled) -> None:
    columns = ", ".join(map(quoted, table.cells))
    holes = ", ".join("?" * len(table.cells))
    sql = f"INSERT OR IGNORE INTO {quoted(name)} ({columns}) VALUES ({holes})"
    for row in zip(*table.cells.values(), strict=True):
        with contextlib.suppress(sqlite3.Error, ValueError, OverflowError):  # a cell that the column, or any, refuses
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
