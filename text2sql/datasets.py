"""
Benchmarks: dialogues, and where their databases and schema file lie.

Layouts that are read as they are (ROOT is TEXT2SQL_DATA, or the generated folder for the demo):

    cosql   ROOT/sql_state_tracking/cosql_{train,dev}.json   the release, ROOT being cosql_dataset (or the folder above)
            ROOT/cosql/{train,dev}.json
    sparc   ROOT/sparc/{train,dev}.json                      the release beside others
            ROOT/{train,dev}.json                            ROOT being the release
    demo    ROOT/{train,dev}.json, and dev_phrasing.json where it exists

`tables.json` and `database/<db>/<db>.sqlite` are looked for beside the dialogues, then in the folders above, up to the
one above ROOT. A dialogue file is a list of `{"database_id", "interaction": [{"utterance", "query"}, ...]}`; other keys
(token lists, parsed `sql`, `final`) are not needed and not read.

Dialogues whose database file is missing are kept: the audit (`evaluation.audit`) sets their turns aside and lists them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from text2sql.config import REPOSITORY, BenchmarkSettings
from text2sql.corrections import Corrections, apply_corrections, read_corrections
from text2sql.dialogue import Dialogue, Turn
from text2sql.errors import DataError
from text2sql.textfiles import read_json

LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "cosql": (
        "sql_state_tracking/cosql_{split}.json",
        "cosql_dataset/sql_state_tracking/cosql_{split}.json",
        "cosql/sql_state_tracking/cosql_{split}.json",
        "cosql/{split}.json",
    ),
    "sparc": ("sparc/{split}.json", "{split}.json"),
    "demo": ("{split}.json",),
}
RESTORED = "train_restored_utterances.json"

_DATABASE_ID = r"^[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*$"  # a folder's name, never a path
_OPERATORS = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\] | --[^\n]* | /\*.*?\*/ | ([<>!])\s+=""",
    re.VERBOSE | re.DOTALL,
)


class _Released(BaseModel):
    """Part of a release: unknown keys are left alone, types are not converted."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _ReleasedTurn(_Released):
    utterance: str
    query: str


class _ReleasedDialogue(_Released):
    database_id: Annotated[str, Field(pattern=_DATABASE_ID)]
    interaction: list[_ReleasedTurn]


class _RestoredTurn(_Released):
    dialogue: int
    turn: int


_DIALOGUES = TypeAdapter(list[_ReleasedDialogue])
_RESTORED_TURNS = TypeAdapter(list[_RestoredTurn])


@dataclass(frozen=True)
class Benchmark:
    """
    A loaded benchmark. `absent` gives, for a split whose file is not there, what was looked for. `restored` holds the
    (dialogue_id, turn) whose utterance was restored from another copy. `notes` are remarks for the data report.
    """

    name: str
    splits: Mapping[str, tuple[Dialogue, ...]]
    database_root: Path
    tables_json: Path
    files: tuple[Path, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    restored: frozenset[tuple[str, int]] = frozenset()
    corrections: Corrections = field(default_factory=Corrections)
    notes: tuple[str, ...] = ()

    @property
    def train(self) -> tuple[Dialogue, ...]:
        """Raises DataError when the release has no train file here."""
        return self.dialogues("train")

    @property
    def dev(self) -> tuple[Dialogue, ...]:
        """Raises DataError when the release has no dev file here."""
        return self.dialogues("dev")

    def dialogues(self, split: str) -> tuple[Dialogue, ...]:
        if split in self.absent:
            raise DataError(self.absent[split])
        return self.splits[split]

    def database(self, db_id: str) -> Path:
        """Where the file of a database belongs; it may be missing."""
        return self.database_root / db_id / f"{db_id}.sqlite"

    @property
    def db_ids(self) -> list[str]:
        """Every database that a dialogue uses, sorted."""
        return sorted({dialogue.db_id for dialogues in self.splits.values() for dialogue in dialogues})


def load_benchmark(settings: BenchmarkSettings, root: Path) -> Benchmark:
    """
    Read a benchmark. `databases` filters, then `train_dialogues` and `dev_dialogues` keep the first N in file order;
    a dialogue keeps the id of its place in the file. A split without a file raises only when it is asked for.

    Raises DataError, naming file, dialogue (from 0) and turn (from 1), for anything that cannot be read.
    """
    files, absent = _dialogue_files(settings.name, root)
    whole = {split: read_dialogues(path, split) for split, path in files.items()}
    corrections = Corrections()
    if settings.corrections is not None:
        corrections = read_corrections(REPOSITORY / settings.corrections)
        whole = apply_corrections(corrections, whole)
    limits = {"train": settings.train_dialogues}
    splits = {
        split: _cut(dialogues, settings.databases, limits.get(split, settings.dev_dialogues))
        for split, dialogues in whole.items()
    }
    _check_databases_known(settings, whole, root)

    folder = next(iter(files.values())).parent
    tables_json = _nearest(folder, root, "tables.json")
    database_root = _nearest(folder, root, "database")
    restored, restored_files = _restored_turns(files)
    empty = [d.dialogue_id for dialogues in splits.values() for d in dialogues if not d.turns]
    return Benchmark(
        name=settings.name,
        splits=splits,
        database_root=database_root,
        tables_json=tables_json,
        files=(*files.values(), *restored_files, tables_json),
        absent=absent,
        restored=restored,
        corrections=corrections,
        notes=tuple(f"dialogue {dialogue_id} has no turns" for dialogue_id in empty),
    )


def source_files(benchmark: Benchmark) -> list[Path]:
    """
    Every file that the benchmark is read from, for digests: databases too, and the test suites beside them, by which EX
    is judged as well. Missing databases are left out.
    """
    folders = [benchmark.database(db_id).parent for db_id in benchmark.db_ids]
    databases = [path for folder in folders for path in sorted(folder.glob("*.sqlite")) if path.is_file()]
    corrections = [benchmark.corrections.path] if benchmark.corrections.path else []
    return [*benchmark.files, *corrections, *databases]


def read_dialogues(path: Path, split: str) -> tuple[Dialogue, ...]:
    """All dialogues of one file in the releases' format. Raises DataError."""
    data = read_json(path)
    try:
        released = _DIALOGUES.validate_python(data)
    except ValidationError as error:
        raise DataError(_explain(path, error)) from None
    return tuple(
        Dialogue(
            f"{split}/{position}",
            dialogue.database_id,
            tuple(Turn(t.utterance, join_split_operators(t.query), t.query) for t in dialogue.interaction),
        )
        for position, dialogue in enumerate(released)
    )


def read_tables(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of a `tables.json` by database id. Raises DataError."""
    data = read_json(path)
    if not isinstance(data, list):
        raise DataError(f"{path}: expected a list of databases, found {type(data).__name__}.")
    for position, entry in enumerate(data):
        if not isinstance(entry, dict) or not isinstance(entry.get("db_id"), str):
            raise DataError(f"{path}: entry {position} (from 0) has no `db_id`; expected an object that has one.")
    return {entry["db_id"]: entry for entry in data}


def join_split_operators(sql: str) -> str:
    """
    `> =`, `< =`, `! =` (any white space between) as one operator, which is what SQLite reads. Strings, quoted names
    and comments are left as they are. The official evaluator joins by text, with one blank and inside strings too.
    """
    return _OPERATORS.sub(lambda match: f"{match[1]}=" if match[1] else match[0], sql)


def _dialogue_files(name: str, root: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """The dialogue file of each split, and what to say for a split that has none. The first layout with a file wins."""
    if not root.is_dir():
        raise DataError(
            f"The data folder {root} does not exist. Set TEXT2SQL_DATA to the folder of the {name} release "
            "(see text2sql/datasets.py for the layouts)."
        )
    for layout in LAYOUTS[name]:
        places = {split: root / layout.format(split=split) for split in ("train", "dev")}
        files = {split: path for split, path in places.items() if path.is_file()}
        if files:
            absent = {
                split: f"The {name} benchmark has no {split} set here: {path} does not exist. Add the release's file, "
                "or set TEXT2SQL_DATA to a folder that has it."
                for split, path in places.items()
                if split not in files
            }
            other_words = root / "dev_phrasing.json"
            if name == "demo" and other_words.is_file():
                files["dev_phrasing"] = other_words
            return files, absent
    wanted = ", ".join(layout.format(split="dev") for layout in LAYOUTS[name])
    raise DataError(
        f"No {name} dialogues in {root}: none of {wanted} exists (nor the train files beside them). "
        "Set TEXT2SQL_DATA to the folder of the release."
    )


def _nearest(folder: Path, root: Path, wanted: str) -> Path:
    """`wanted` in `folder` or the nearest folder above it, up to the one above `root`."""
    top = root.absolute().parent
    start = folder.absolute()
    places = [place for place in (start, *start.parents) if place.is_relative_to(top)]
    for place in places:
        if (place / wanted).exists():
            return place / wanted
    listed = ", ".join(str(place) for place in places)
    raise DataError(f"No {wanted} was found in {listed}. The release has it beside its dialogues; put it there.")


def _cut(dialogues: tuple[Dialogue, ...], databases: Sequence[str] | None, first: int | None) -> tuple[Dialogue, ...]:
    if databases is not None:
        dialogues = tuple(dialogue for dialogue in dialogues if dialogue.db_id in databases)
    return dialogues[:first]


def _check_databases_known(settings: BenchmarkSettings, whole: Mapping[str, tuple[Dialogue, ...]], root: Path) -> None:
    known = {dialogue.db_id for dialogues in whole.values() for dialogue in dialogues}
    unknown = sorted(set(settings.databases or ()) - known)
    if unknown:
        raise DataError(
            f"benchmark.databases names {', '.join(unknown)}, which no {settings.name} dialogue in {root} uses. "
            f"Databases there: {', '.join(sorted(known))}."
        )


def _restored_turns(files: Mapping[str, Path]) -> tuple[frozenset[tuple[str, int]], list[Path]]:
    """Turns (numbered from 1) that a list beside the train file names; that list counts turns from 0."""
    path = files["train"].with_name(RESTORED) if "train" in files else None
    if path is None or not path.is_file():
        return frozenset(), []
    try:
        turns = _RESTORED_TURNS.validate_python(read_json(path))
    except ValidationError as error:
        problem = error.errors()[0]
        raise DataError(f"{path}: {problem['loc']}: {problem['msg']}; expected dialogue and turn as numbers.") from None
    return frozenset((f"train/{entry.dialogue}", entry.turn + 1) for entry in turns), [path]


def _explain(path: Path, error: ValidationError) -> str:
    """The first problem of a dialogue file in words: file, dialogue, turn, what was expected and what was found."""
    problems = error.errors()
    problem = problems[0]
    location = list(problem["loc"])
    place = [str(path)]
    if location:
        place.append(f"dialogue {location.pop(0)} (from 0)")
    if len(location) > 1 and location[0] == "interaction":
        place.append(f"turn {int(location[1]) + 1} (from 1)")
        location = location[2:]
    key = f"`{location[0]}` " if location else ""
    expected = {
        "missing": "is missing",
        "string_type": "should be text",
        "list_type": "should be a list",
        "string_pattern_mismatch": "should be the name of a database folder",
    }.get(problem["type"], "should be an object with the release's keys")
    found = "" if problem["type"] == "missing" else f", found {_shortened(problem['input'])}"
    more = f" {len(problems) - 1} more like it follow." if len(problems) > 1 else ""
    return (
        f"{', '.join(place)}: {key}{expected}{found}. Expected a list of "
        '{"database_id", "interaction": [{"utterance", "query"}, ...]}.' + more
    )


def _shortened(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
