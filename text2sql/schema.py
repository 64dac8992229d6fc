"""
Schemas: read from the SQLite file, rendered as the text a model sees.

Tables, columns, types and primary keys come from the database, which is what the SQL runs on. `tables.json` adds the
foreign keys that its authors wrote down; where the two disagree, `Schema.warnings` says so. Nothing is invented: tables
without a declared foreign key are shown without one. Views and SQLite's own tables are left out.
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from text2sql.errors import DatabaseError, DataError
from text2sql.executor import check_sqlite_file

Style = Literal["full", "compact", "name"]

SAMPLED_ROWS = 1_000  # sample values are the first different ones in this many rows
SAMPLE_CHARACTERS = 30

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYWORDS = """
add all alter and as autoincrement between case cast check collate commit constraint create current_date
current_time current_timestamp default deferrable delete distinct drop else escape except exists foreign
from group having if in index insert intersect into is isnull join limit not nothing notnull null on or
order primary raise references returning select set table then to transaction union unique update using
values when where
"""
_MUST_QUOTE = frozenset(_KEYWORDS.split())  # words that SQLite does not read as a name without quotes


@dataclass(frozen=True)
class Column:
    """`type` is the declared type, empty when none was declared."""

    name: str
    type: str


@dataclass(frozen=True)
class ForeignKey:
    table: str
    column: str
    other_table: str
    other_column: str


@dataclass(frozen=True)
class Table:
    """`primary_key` holds the key's columns in key order; empty when the table has none."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]


@dataclass(frozen=True)
class Schema:
    """`warnings` names what the database and tables.json tell differently."""

    database: Path
    tables: tuple[Table, ...]
    foreign_keys: tuple[ForeignKey, ...]
    warnings: tuple[str, ...] = ()


@contextmanager
def read_only(database: Path) -> Iterator[sqlite3.Connection]:
    """
    A connection that cannot write and leaves no files beside the database. Text that is not UTF-8 is read with
    replacement marks. Raises DatabaseError, also for what SQLite finds broken while it is used.
    """
    check_sqlite_file(database)
    try:
        connection = sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            yield connection
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise DatabaseError(f"{database} cannot be read: {error}. Take it from the release again.") from None


def read_schema(database: Path, tables_entry: Mapping[str, Any] | None = None) -> Schema:
    """
    The schema of a database file; `tables_entry` is its entry in tables.json. Raises DatabaseError for a file that
    is no database, DataError for an entry that is not formed as tables.json is.
    """
    with read_only(database) as connection:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid"
            )
        ]
        tables = tuple(_read_table(connection, name) for name in names)
        declared = _declared_foreign_keys(connection, tables)
    if tables_entry is None:
        return Schema(database, tables, declared)
    try:
        listed = _Listed.read(tables_entry)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(
            f"tables.json, entry {tables_entry.get('db_id')!r}: {type(error).__name__} {error}. Expected table_names_"
            "original, column_names_original, primary_keys and foreign_keys as in the release."
        ) from None
    foreign_keys, unknown = _merge(tables, declared, listed.foreign_keys)
    name = str(tables_entry.get("db_id", database.stem))
    warnings = (*_column_warnings(name, tables, listed), *_key_warnings(name, declared, listed.foreign_keys), *unknown)
    return Schema(database, tables, foreign_keys, warnings)


def render_schema(schema: Schema, sample_values: int = 0, style: Style = "full") -> str:
    """
    The schema as text. `full` has one CREATE TABLE per table with types and keys; `compact` one line per table, then
    one line per foreign key; `name` the database's name alone. With `sample_values` each column shows its first
    different values (this reads the database). The same file gives the same text.
    """
    if style == "name":
        return f"database {schema.database.stem}"
    samples = _sample_values(schema, sample_values) if sample_values else {}
    lines = _compact(schema, samples) if style == "compact" else _full(schema, samples)
    return "\n".join(lines)


def _compact(schema: Schema, samples: Mapping[tuple[str, str], str]) -> Iterator[str]:
    for table in schema.tables:
        columns = []
        for column in table.columns:
            values = samples.get((table.name, column.name), "")
            columns.append(_quoted(column.name) + (f" [{values}]" if values else ""))
        yield f"{_quoted(table.name)}({', '.join(columns)})"
    for key in schema.foreign_keys:
        yield (f"{_quoted(key.table)}.{_quoted(key.column)} = {_quoted(key.other_table)}.{_quoted(key.other_column)}")


def _full(schema: Schema, samples: Mapping[tuple[str, str], str]) -> Iterator[str]:
    for table in schema.tables:
        single = table.primary_key[0] if len(table.primary_key) == 1 else None
        entries = []
        for column in table.columns:
            key = " PRIMARY KEY" if column.name == single else ""
            declared_type = f" {column.type}" if column.type else ""
            entries.append((f"{_quoted(column.name)}{declared_type}{key}", samples.get((table.name, column.name), "")))
        if len(table.primary_key) > 1:
            entries.append((f"PRIMARY KEY ({', '.join(map(_quoted, table.primary_key))})", ""))
        entries += [
            (
                f"FOREIGN KEY ({_quoted(key.column)}) REFERENCES {_quoted(key.other_table)}({_quoted(key.other_column)})",
                "",
            )
            for key in schema.foreign_keys
            if key.table == table.name
        ]
        yield f"CREATE TABLE {_quoted(table.name)} ("
        for number, (text, values) in enumerate(entries, start=1):
            comma = "," if number < len(entries) else ""
            yield f"  {text}{comma}" + (f" -- {values}" if values else "")
        yield ");"


def _quoted(name: str) -> str:
    """The name as SQL has to write it."""
    if _PLAIN_NAME.fullmatch(name) and name.lower() not in _MUST_QUOTE:
        return name
    return '"' + name.replace('"', '""') + '"'


def _sample_values(schema: Schema, count: int) -> dict[tuple[str, str], str]:
    """For each (table, column): its first `count` different values, NULL left out, in the order of the rows."""
    samples = {}
    with read_only(schema.database) as connection:
        for table in schema.tables:
            rows = connection.execute(f"SELECT * FROM {_always_quoted(table.name)} LIMIT {SAMPLED_ROWS}").fetchall()
            for position, column in enumerate(table.columns):
                values = dict.fromkeys(_literal(row[position]) for row in rows if row[position] is not None)
                samples[table.name, column.name] = ", ".join(list(values)[:count])
    return samples


def text_values(database: Path, max_characters: int = 40) -> set[str]:
    """Every distinct text in the database's cells, long ones left out."""
    values: set[str] = set()
    with read_only(database) as connection:
        for table in read_schema(database).tables:
            for column in table.columns:
                name, source = _always_quoted(column.name), _always_quoted(table.name)
                rows = connection.execute(
                    f"SELECT DISTINCT {name} FROM {source} WHERE typeof({name}) = 'text' AND length({name}) <= ?",
                    (max_characters,),
                )
                values.update(value for (value,) in rows)
    return values


def _literal(value: Any) -> str:
    """A cell in one line, long ones cut with a mark."""
    if isinstance(value, bytes):
        text = value.hex().upper()
        return f"X'{text if len(text) <= SAMPLE_CHARACTERS else text[:SAMPLE_CHARACTERS] + '…'}'"
    if isinstance(value, str):
        line = " ".join(value.split()) if any(character < " " for character in value) else value
        cut = line if len(line) <= SAMPLE_CHARACTERS else line[:SAMPLE_CHARACTERS] + "…"
        return "'" + cut.replace("'", "''") + "'"
    return str(value)


def _always_quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _read_table(connection: sqlite3.Connection, name: str) -> Table:
    rows = connection.execute("SELECT name, type, pk FROM pragma_table_info(?)", (name,)).fetchall()
    key = sorted((position, column) for column, _, position in rows if position)
    return Table(
        name, tuple(Column(column, declared) for column, declared, _ in rows), tuple(column for _, column in key)
    )


def _declared_foreign_keys(connection: sqlite3.Connection, tables: tuple[Table, ...]) -> tuple[ForeignKey, ...]:
    """Foreign keys of the CREATE TABLE statements; one that names no column means the other table's primary key."""
    keys = []
    by_name = {table.name.lower(): table for table in tables}
    for table in tables:
        for column, other, other_column, position in connection.execute(
            'SELECT "from", "table", "to", seq FROM pragma_foreign_key_list(?) ORDER BY id DESC, seq', (table.name,)
        ):
            target = by_name.get(other.lower())
            if other_column is None and target is not None and position < len(target.primary_key):
                other_column = target.primary_key[position]
            keys.append(ForeignKey(table.name, column, other, other_column or ""))
    return tuple(keys)


@dataclass(frozen=True)
class _Listed:
    """What an entry of tables.json says, as names."""

    columns: Mapping[str, frozenset[str]]  # table -> columns, all lower case
    primary_keys: Mapping[str, frozenset[str]]
    foreign_keys: tuple[ForeignKey, ...]

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "_Listed":
        tables: list[str] = entry["table_names_original"]
        columns: list[tuple[int, str]] = entry["column_names_original"]

        def name(number: int) -> tuple[str, str]:
            table, column = columns[number]
            return tables[table], column

        by_table: dict[str, set[str]] = {table.lower(): set() for table in tables}
        for table, column in columns:
            if table >= 0:
                by_table[tables[table].lower()].add(column.lower())
        keys: dict[str, set[str]] = {}
        for number in entry["primary_keys"]:  # [1, 7] or, for keys of several columns, [[1, 2], 7]
            for single in number if isinstance(number, list) else [number]:
                table_name, column = name(single)
                keys.setdefault(table_name.lower(), set()).add(column.lower())
        return cls(
            {table: frozenset(names) for table, names in by_table.items()},
            {table: frozenset(names) for table, names in keys.items()},
            tuple(ForeignKey(*name(here), *name(there)) for here, there in entry["foreign_keys"]),
        )


def _merge(
    tables: tuple[Table, ...], declared: tuple[ForeignKey, ...], listed: tuple[ForeignKey, ...]
) -> tuple[tuple[ForeignKey, ...], tuple[str, ...]]:
    """Foreign keys of both sources in the database's spelling, and a warning for each that names something unknown."""
    spelling = {
        (table.name.lower(), column.name.lower()): (table.name, column.name)
        for table in tables
        for column in table.columns
    }
    merged: dict[ForeignKey, None] = {}
    unknown = []
    for key in (*declared, *listed):
        here = spelling.get((key.table.lower(), key.column.lower()))
        there = spelling.get((key.other_table.lower(), key.other_column.lower()))
        if here and there:
            merged[ForeignKey(*here, *there)] = None
        else:
            unknown.append(f"foreign key {_arrow(key)} names a table or column that the database does not have")
    order = {table.name: position for position, table in enumerate(tables)}
    return tuple(sorted(merged, key=lambda key: order[key.table])), tuple(dict.fromkeys(unknown))


def _column_warnings(name: str, tables: tuple[Table, ...], listed: _Listed) -> Iterator[str]:
    found = {table.name.lower(): table for table in tables}
    for missing in sorted(set(listed.columns) - set(found) - {"sqlite_sequence"}):
        yield f"{name}.{missing}: in tables.json, not in the database"
    for key, table in found.items():
        if key not in listed.columns:
            yield f"{name}.{table.name}: in the database, not in tables.json"
            continue
        columns = {column.name.lower() for column in table.columns}
        if columns != listed.columns[key]:
            yield f"{name}.{table.name}: columns differ from tables.json ({', '.join(sorted(columns ^ listed.columns[key]))})"
        primary = {column.lower() for column in table.primary_key}
        in_json = listed.primary_keys.get(key, frozenset())
        if primary != in_json:
            yield (
                f"{name}.{table.name}: primary key ({', '.join(table.primary_key)}) in the database, "
                f"({', '.join(sorted(in_json))}) in tables.json"
            )


def _key_warnings(name: str, declared: tuple[ForeignKey, ...], listed: tuple[ForeignKey, ...]) -> Iterator[str]:
    in_database = {_arrow(key).lower(): _arrow(key) for key in declared}
    in_json = {_arrow(key).lower(): _arrow(key) for key in listed}
    for arrow in sorted(set(in_database) ^ set(in_json)):
        place = "the database" if arrow in in_database else "tables.json"
        yield f"{name}: foreign key {in_database.get(arrow) or in_json[arrow]} is in {place} only"


def _arrow(key: ForeignKey) -> str:
    return f"{key.table}.{key.column} -> {key.other_table}.{key.other_column}"
