"""
Puts golds and predictions together by id, and says by name what does not fit.

Files that are read:

    JSON Lines    one object a line: {"id", "dialogue", "turn", "db_id", "gold", "pred"}; with golds in a file of their
                  own, {"id", "pred"} is enough. `turn` counts from 1; `dialogue` and `turn` may be null
    JSON object   {id: SQL, ...}, with golds in a file of their own
    plain lines   the official evaluator's input: one query a line, an empty line between dialogues, golds as
                  `query<TAB>db_id`; paired by place, so both files must have the same dialogues with as many lines
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from text2sql.errors import DataError
from text2sql.textfiles import read_text


@dataclass(frozen=True)
class AskedTurn:
    """One turn with its gold SQL, and the prediction for it (None: there is none)."""

    id: str
    dialogue_id: str
    turn: int | None
    db_id: str
    gold: str
    pred: str | None = None


@dataclass(frozen=True)
class Pairing:
    """
    All turns that were asked. `missing`: ids without any prediction (they are wrong). `unknown`: ids of predictions
    that nobody asked for (left out). `repeated`: ids that occur more than once (the first one counts).
    """

    turns: tuple[AskedTurn, ...]
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    repeated: tuple[str, ...] = field(default=())


def read_pairing(predictions: Path, golds: Path | None = None) -> Pairing:
    """Raises DataError: names the file, the line and what is wrong with it."""
    text = read_text(predictions)
    if golds is None:
        if text.strip() and not text.lstrip().startswith("{"):
            raise DataError(f"{predictions} has no golds: expected JSON Lines with the key gold, or a file for --gold.")
        turns, repeated = _first_of_each(_turn(line, predictions, at) for at, line in _objects(text, predictions))
        missing = tuple(turn.id for turn in turns.values() if turn.pred is None)
        return Pairing(tuple(turns.values()), missing, repeated=repeated)
    gold_text = read_text(golds)
    if not gold_text.lstrip().startswith("{"):
        return _paired_by_place(gold_text, golds, text, predictions)
    turns, repeated_golds = _first_of_each(_turn(line, golds, at) for at, line in _objects(gold_text, golds))
    if repeated_golds:
        raise DataError(f"{golds}: {', '.join(repeated_golds[:5])} occurs twice; every gold needs an id of its own.")
    found, repeated = _predictions(text, predictions)
    return Pairing(
        tuple(_with_prediction(turn, found.get(id_)) for id_, turn in turns.items()),
        missing=tuple(id_ for id_ in turns if id_ not in found),
        unknown=tuple(id_ for id_ in found if id_ not in turns),
        repeated=repeated,
    )


def _objects(text: str, path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path} line {number} is no JSON ({error}); expected one object a line.") from None
            if not isinstance(value, dict):
                raise DataError(f"{path} line {number} is no JSON object.")
            yield number, value


def _turn(line: Mapping[str, Any], path: Path, number: int) -> AskedTurn:
    place = f"{path} line {number}"
    dialogue, turn = line.get("dialogue"), line.get("turn")
    if turn is not None and (not isinstance(turn, int) or isinstance(turn, bool) or turn < 1):
        raise DataError(f"{place}: turn is {turn!r}; expected a whole number from 1, or null.")
    return AskedTurn(
        _id(line, place),
        "" if dialogue is None else str(dialogue),
        None if dialogue is None else turn,
        _text(line, "db_id", place),
        _text(line, "gold", place),
        _prediction(line, place) if "pred" in line else None,
    )


def _id(line: Mapping[str, Any], place: str) -> str:
    value = line.get("id")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise DataError(f"{place}: id is {value!r}; expected a text or a whole number.")
    return str(value)


def _text(line: Mapping[str, Any], key: str, place: str) -> str:
    value = line.get(key)
    if not isinstance(value, str):
        raise DataError(f"{place}: {key} is {line.get(key, 'missing')!r}; expected a text.")
    return value


def _prediction(line: Mapping[str, Any], place: str) -> str | None:
    return None if line.get("pred") is None and "pred" in line else _text(line, "pred", place)


def _first_of_each(turns: Iterable[AskedTurn]) -> tuple[dict[str, AskedTurn], tuple[str, ...]]:
    found: dict[str, AskedTurn] = {}
    repeated: dict[str, None] = {}
    for turn in turns:
        if turn.id in found:
            repeated[turn.id] = None
        else:
            found[turn.id] = turn
    return found, tuple(repeated)


def _predictions(text: str, path: Path) -> tuple[dict[str, str | None], tuple[str, ...]]:
    found: dict[str, str | None] = {}
    repeated: dict[str, None] = {}
    for id_, pred in _named_predictions(text, path):
        if id_ in found:
            repeated[id_] = None
        else:
            found[id_] = pred
    return found, tuple(repeated)


def _named_predictions(text: str, path: Path) -> Iterable[tuple[str, str | None]]:
    if not text.lstrip().startswith("{"):
        raise DataError(f"{path} is neither JSON Lines nor a JSON object, while the golds have ids.")
    try:
        named = json.loads(text, object_pairs_hook=list)
    except ValueError:  # several objects: one a line
        named = []
    if named and not {"id", "pred"} <= {key for key, _ in named}:
        for id_, pred in named:
            yield id_, _prediction({"pred": pred}, f"{path}, id {id_!r}")
        return
    for number, line in _objects(text, path):
        place = f"{path} line {number}"
        yield _id(line, place), _prediction(line, place)


def _with_prediction(turn: AskedTurn, pred: str | None) -> AskedTurn:
    return AskedTurn(turn.id, turn.dialogue_id, turn.turn, turn.db_id, turn.gold, pred)


def _paired_by_place(gold_text: str, golds: Path, text: str, predictions: Path) -> Pairing:
    asked, answered = _blocks(gold_text), _blocks(text)
    counts = [len(block) for block in asked], [len(block) for block in answered]
    if counts[0] != counts[1]:
        raise DataError(
            f"{golds} has {sum(counts[0])} lines in {len(asked)} dialogues, {predictions} {sum(counts[1])} in "
            f"{len(answered)}; plain lines are paired by place and must match. Use JSON Lines with ids instead."
        )
    turns = []
    for dialogue, block in enumerate(asked):
        for turn, line in enumerate(block, start=1):
            gold, tab, db_id = line.partition("\t")
            if not tab:
                raise DataError(f"{golds}: no tab in {line[:80]!r}; expected query<TAB>db_id.")
            pred = answered[dialogue][turn - 1].partition("\t")[0]
            turns.append(AskedTurn(f"{dialogue}/{turn}", str(dialogue), turn, db_id.strip(), gold, pred))
    return Pairing(tuple(turns))


def _blocks(text: str) -> list[list[str]]:
    blocks: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip():
            blocks[-1].append(line.strip())
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]
