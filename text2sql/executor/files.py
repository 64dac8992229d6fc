"""Database files: is it one, and has it changed?"""

import os
from functools import lru_cache
from pathlib import Path

from text2sql.errors import DatabaseError

SQLITE_HEADER = b"SQLite format 3\x00"


def file_version(database: str) -> tuple[int, ...]:
    """
    Changes whenever the file does: device, inode, size, times of change. The first look at a version also checks that
    it is a database; raises DatabaseError.
    """
    try:
        status = os.stat(database)  # noqa: PTH116 - on the path of every statement; a Path costs more than the call
    except (OSError, ValueError) as error:
        raise DatabaseError(
            f"Database file {database} is missing ({error}). Check the folder of databases that the profile or "
            "TEXT2SQL_DATA names."
        ) from None
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    _check(database, version)
    return version


@lru_cache(maxsize=4096)
def _check(database: str, version: tuple[int, ...]) -> None:
    if not database.endswith(".duckdb"):
        check_sqlite_file(Path(database))


def is_sqlite_file(path: Path) -> bool:
    """Starts with SQLite's header. Archive litter (`._shop.sqlite`) and empty files do not."""
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER
    except OSError:
        return False


def check_sqlite_file(path: Path) -> None:
    """Raises DatabaseError for what is no SQLite database, or is one whose latest changes lie in another file."""
    if not path.is_file():
        raise DatabaseError(f"Database file {path} is missing or is a folder; an SQLite file was expected.")
    if not is_sqlite_file(path):
        raise DatabaseError(
            f"{path} ({path.stat().st_size:,} bytes) is no SQLite database: it does not start with SQLite's header. "
            "Archive stubs and empty files look like this; unpack the release again."
        )
    log = path.with_name(path.name + "-wal")
    if log.is_file() and log.stat().st_size:
        raise DatabaseError(
            f"{path} has changes in {log.name} that were never merged. Close the program that writes to it, or run "
            'sqlite3 FILE "PRAGMA wal_checkpoint(TRUNCATE)" once on a copy that you own.'
        )
