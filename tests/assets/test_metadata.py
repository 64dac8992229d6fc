"""Metadata: any figure can be stored and shown."""

import json
from pathlib import Path

import dagster as dg
import numpy as np

from assets.metadata import metadata_of, storable, table


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_nan_and_infinity_become_text_at_any_depth():
    """Case da-nan-in-metadata: what is stored parses as strict JSON, in nested values and tables too."""
    figures = {"loss": float("nan"), "ex": float("inf"), "table": [{"bucket": "extra", "ex": float("nan")}]}

    stored = json.loads(json.dumps(storable(figures)), parse_constant=refuse)

    assert {"loss": "n/a", "ex": "inf", "table": [{"bucket": "extra", "ex": "n/a"}]} == stored


def test_numpy_numbers_paths_odd_keys_and_any_script_are_stored():
    """Case da-metadata-not-serialisable: number, text, JSON with text keys, text unchanged."""
    figures = {
        "ex": np.float32(0.5),
        "path": Path("out/é.jsonl"),
        "by_turn": {1: 0.5, "> 4": None},
        "sql": "SELECT 'naïve 日本'",
    }

    stored = storable(figures)

    assert {
        "ex": 0.5,
        "path": "out/é.jsonl",
        "by_turn": {"1": 0.5, "> 4": None},
        "sql": "SELECT 'naïve 日本'",
    } == stored


def test_a_value_that_cannot_be_stored_is_shown_as_its_repr():
    """Metadata never fails a finished training."""

    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    assert "<odd>" == storable(Odd())
    assert isinstance(metadata_of({"odd": Odd()})["odd"], dg.TextMetadataValue)


def test_an_asset_with_such_metadata_materializes():
    """The real Dagster accepts what comes out."""

    @dg.asset
    def scores() -> dg.MaterializeResult:
        rows = [{"bucket": "extra", "ex": float("nan"), "parts": {"a": 1}}]
        return dg.MaterializeResult(
            metadata={**metadata_of({"loss": float("nan"), "n": np.int64(3), "by_turn": {1: 0.5}}), "rows": table(rows)}
        )

    result = dg.materialize([scores])

    assert result.success
    metadata = result.asset_materializations_for_node("scores")[0].metadata
    assert (3, "n/a") == (metadata["n"].value, metadata["loss"].value)
