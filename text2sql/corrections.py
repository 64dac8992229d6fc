"""
Corrections to gold SQL, kept in a file of their own.

The released files are never edited. A corrections file names every change, and its hash is part of every report, so
that it stays known which numbers rest on corrected gold:

    corrections:
      - split: dev            # train or dev
        dialogue: 12          # position in its file, from 0, as in the dialogue id dev/12
        turn: 2               # from 1
        old: SELECT a FROM t  # the gold as released, or as released with split operators joined
        new: SELECT b FROM t
        reason: asks for b

An entry whose dialogue or turn does not exist, or whose `old` no longer matches, is an error: it was written for
another release. Off unless a profile names a file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from text2sql.artifacts import file_digest
from text2sql.dialogue import Dialogue
from text2sql.errors import DataError
from text2sql.textfiles import read_text


class Correction(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    split: Literal["train", "dev"]
    dialogue: int = Field(ge=0)
    turn: int = Field(ge=1)
    old: str
    new: str = Field(min_length=1)
    reason: str = Field(min_length=1)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    corrections: list[Correction]


@dataclass(frozen=True)
class Corrections:
    """The entries of one file. `digest` is its SHA-256, `none` when corrections are off."""

    entries: tuple[Correction, ...] = ()
    digest: str = "none"
    path: Path | None = None


def read_corrections(path: Path) -> Corrections:
    """Raises DataError for a file that cannot be read, an unknown key, a wrong type or two entries for one turn."""
    if not path.is_file():
        raise DataError(f"There is no corrections file {path}. Give another path, or leave out `corrections`.")
    try:
        entries = _File.model_validate(yaml.safe_load(read_text(path))).corrections
    except yaml.YAMLError as error:
        raise DataError(f"{path} is not valid YAML: {error}") from None
    except ValidationError as error:
        lines = [
            f"  {'.'.join(str(part) for part in problem['loc'])}: {problem['msg']} (found {problem['input']!r})"
            for problem in error.errors()
        ]
        raise DataError(f"{path} is no corrections file (entries counted from 0):\n" + "\n".join(lines)) from None
    seen = set()
    for entry in entries:
        place = (entry.split, entry.dialogue, entry.turn)
        if place in seen:
            raise DataError(f"{path}: two entries for {_place(entry)}. Keep one.")
        seen.add(place)
    return Corrections(tuple(entries), file_digest(path), path)


def apply_corrections(
    corrections: Corrections, splits: Mapping[str, tuple[Dialogue, ...]]
) -> dict[str, tuple[Dialogue, ...]]:
    """New dialogues with corrected `gold`; `gold_as_released` stays. `splits` holds whole files, in file order."""
    corrected = {split: list(dialogues) for split, dialogues in splits.items()}
    for entry in corrections.entries:
        dialogues = corrected.get(entry.split, [])
        if entry.dialogue >= len(dialogues):
            raise _unfit(corrections, entry, f"there is no such dialogue ({len(dialogues)} in {entry.split})")
        dialogue = dialogues[entry.dialogue]
        if entry.turn > len(dialogue.turns):
            raise _unfit(corrections, entry, f"there is no such turn (the dialogue has {len(dialogue.turns)})")
        turns = list(dialogue.turns)
        turn = turns[entry.turn - 1]
        if entry.old not in (turn.gold_as_released, turn.gold):
            raise _unfit(corrections, entry, f"`old` does not match; the gold is {turn.gold_as_released!r}")
        turns[entry.turn - 1] = replace(turn, gold=entry.new)
        dialogues[entry.dialogue] = replace(dialogue, turns=tuple(turns))
    return {split: tuple(dialogues) for split, dialogues in corrected.items()}


def _place(entry: Correction) -> str:
    return f"{entry.split} dialogue {entry.dialogue}, turn {entry.turn}"


def _unfit(corrections: Corrections, entry: Correction, found: str) -> DataError:
    return DataError(
        f"{corrections.path}: the correction for {_place(entry)} cannot be applied: {found}. "
        "It was written for another release; correct or remove the entry."
    )
