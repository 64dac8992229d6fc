"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """
    The folder with the real dialogues, databases and verdicts: TEXT2SQL_SHARED, or `shared` beside the repository.
    Missing in CI is a failure; elsewhere the test is skipped with the reason.
    """
    folder = Path(os.environ.get("TEXT2SQL_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "data" / "tables.json").is_file():
        message = f"the shared data are not at {folder}: set TEXT2SQL_SHARED to the folder that holds data/ and peer/"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder
