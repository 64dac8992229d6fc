"""Corrections to gold: off by default, applied only where they fit, and never in silence."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from text2sql.config import BenchmarkSettings
from text2sql.datasets import load_benchmark, source_files
from text2sql.errors import DataError

FITTING = "- {split: dev, dialogue: 1, turn: 2, old: SELECT a FROM t, new: SELECT b FROM t, reason: asks for b}"


@pytest.fixture
def root(make_release: Callable[..., Path]) -> Path:
    turns = [("first", "SELECT 1"), ("second", "SELECT a FROM t"), ("third", "SELECT a FROM t WHERE a > = 1")]
    return make_release(dev=[("d", [("q", "SELECT 0")]), ("d", turns)])


def corrected(tmp_path: Path, *entries: str) -> BenchmarkSettings:
    path = tmp_path / "corrections.yaml"
    path.write_text("corrections:\n" + "\n".join(f"  {entry}" for entry in entries), encoding="utf-8")
    return BenchmarkSettings(name="demo", corrections=str(path))


def test_corrections_are_off_by_default(root: Path) -> None:
    """Case data-wrong-gold-corrections: without a file the gold is the released one and the hash says none."""
    benchmark = load_benchmark(BenchmarkSettings(name="demo"), root)

    assert "SELECT a FROM t" == benchmark.dev[1].turns[1].gold
    assert "none" == benchmark.corrections.digest


def test_fitting_entry_replaces_the_gold_and_keeps_the_released_text(root: Path, tmp_path: Path) -> None:
    """Case data-wrong-gold-corrections: `new` becomes the gold; the file's hash is recorded and it is a source file."""
    settings = corrected(tmp_path, FITTING)

    benchmark = load_benchmark(settings, root)
    turn = benchmark.dev[1].turns[1]

    assert "SELECT b FROM t" == turn.gold
    assert "SELECT a FROM t" == turn.gold_as_released
    path = tmp_path / "corrections.yaml"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == benchmark.corrections.digest
    assert path in source_files(benchmark)


def test_old_text_may_be_given_as_released_or_with_operators_joined(root: Path, tmp_path: Path) -> None:
    """Either spelling of a split operator names the gold."""
    for old in ("SELECT a FROM t WHERE a > = 1", "SELECT a FROM t WHERE a >= 1"):
        settings = corrected(
            tmp_path, f"- {{split: dev, dialogue: 1, turn: 3, old: {old}, new: SELECT 3, reason: better}}"
        )

        assert "SELECT 3" == load_benchmark(settings, root).dev[1].turns[2].gold


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (FITTING.replace("turn: 2", "turn: 9"), "turn 9 cannot be applied: there is no such turn"),
        (FITTING.replace("dialogue: 1", "dialogue: 7"), "dialogue 7, turn 2 cannot be applied: there is no such"),
        (FITTING.replace("old: SELECT a", "old: SELECT z"), "`old` does not match; the gold is 'SELECT a FROM t'"),
        (FITTING.replace(", reason: asks for b", ""), "reason: Field required"),
        (FITTING.replace("split: dev", "split: test"), r"corrections\.0\.split: Input should be 'train' or 'dev'"),
        (FITTING.replace("turn: 2", "turn: 2, who: me"), "who: Extra inputs are not permitted"),
        (f"{FITTING}\n  {FITTING}", "two entries for dev dialogue 1, turn 2"),
    ],
)
def test_entry_that_does_not_fit_is_an_error(root: Path, tmp_path: Path, entry: str, message: str) -> None:
    """Case data-wrong-gold-corrections: no such turn, another old text or a broken entry stops the load."""
    with pytest.raises(DataError, match=message):
        load_benchmark(corrected(tmp_path, entry), root)


def test_correction_counts_dialogues_of_the_whole_file(root: Path, tmp_path: Path) -> None:
    """A cut or a filter changes neither which dialogue is meant nor whether an entry fits."""
    settings = corrected(tmp_path, FITTING).model_copy(update={"dev_dialogues": 1})

    assert ["dev/0"] == [dialogue.dialogue_id for dialogue in load_benchmark(settings, root).dev]
