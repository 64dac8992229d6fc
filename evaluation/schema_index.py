"""What exact match knows of a database: tables and columns from the SQLite file, foreign keys from tables.json."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from text2sql.errors import DatabaseError, DataError


@dataclass(frozen=True, eq=False)
class EvaluatorSchema:
    """
    `columns`: table to its columns, in the order of the file, all in lower case. `representatives`: "table.column" to
    the column that stands for its group of columns joined by foreign keys. Compared and hashed by identity: load once
    per database and keep it, since parsed golds are cached by (schema, text).
    """

    db_id: str
    columns: Mapping[str, frozenset[str]]
    ordered_columns: Mapping[str, tuple[str, ...]]
    representatives: Mapping[str, str] = field(default_factory=dict)


def load_schema(database: Path, tables_entry: Mapping[str, Any] | None) -> EvaluatorSchema:
    """
    Read a SQLite file's tables and columns, and the foreign keys of its tables.json entry (None: no foreign keys).
    Raises DatabaseError when the file is missing or no database, DataError for an entry that is not formed as tables.json
    is.
    """
    if not database.is_file():
        raise DatabaseError(f"no database file at {database}; expected <root>/<db_id>/<db_id>.sqlite")
    try:
        connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            ordered = {
                name.lower(): tuple(
                    row[0].lower() for row in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))
                )
                for name in names
            }
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise DatabaseError(f"{database} is not a readable SQLite database: {error}") from error
    columns = {table: frozenset(listed) for table, listed in ordered.items()}
    db_id = str(tables_entry["db_id"]) if tables_entry and "db_id" in tables_entry else database.stem
    try:
        representatives = _representatives(tables_entry) if tables_entry else {}
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(
            f"tables.json, entry {db_id!r}: {type(error).__name__} {error}. Expected table_names_original, "
            "column_names_original and foreign_keys as in the release."
        ) from None
    return EvaluatorSchema(db_id, columns, ordered, representatives)


def _representatives(entry: Mapping[str, Any]) -> dict[str, str]:
    """
    Groups of columns joined by foreign keys, as the official evaluator forms them: a pair joins the first group that
    has either end, groups are never merged, and a column of two groups takes the later one.
    """
    tables = [str(name).lower() for name in entry["table_names_original"]]
    names = [
        f"{tables[table]}.{str(column).lower()}" if table >= 0 else "*"
        for table, column in entry["column_names_original"]
    ]
    groups: list[set[int]] = []
    for first, second in entry["foreign_keys"]:
        group = next((group for group in groups if first in group or second in group), None)
        if group is None:
            groups.append(group := set())
        group.update((first, second))
    return {names[index]: names[min(group)] for group in groups for index in sorted(group)}
