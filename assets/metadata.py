"""Turn any figures into metadata that Dagster can store and show."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

_TABLE_ROWS = 50


def storable(value: Any) -> Any:
    """
    `value` as plain JSON: numpy numbers become numbers, paths and other objects text, keys text; NaN becomes "n/a" and
    infinities "inf" and "-inf", since the asset page cannot read them. Never raises: the last resort is repr.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return _finite(value)
    if isinstance(value, Mapping):
        return {str(key): storable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [storable(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):  # numpy's scalars
        try:
            return storable(value.item())
        except (TypeError, ValueError):
            return repr(value)
    return repr(value)


def _finite(value: float) -> float | str:
    if isinstance(value, float) and not math.isfinite(value):
        return "n/a" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def metadata_of(figures: Mapping[str, Any]) -> dict[str, dg.MetadataValue[Any]]:
    """Each figure as the kind of metadata that reads best: numbers as numbers, mappings as JSON, rows as a table."""
    metadata: dict[str, dg.MetadataValue[Any]] = {}
    for key, raw in figures.items():
        value = storable(raw)
        if isinstance(value, bool):
            metadata[key] = dg.MetadataValue.bool(value)
        elif isinstance(value, int):
            metadata[key] = dg.MetadataValue.int(value)
        elif isinstance(value, float):
            metadata[key] = dg.MetadataValue.float(value)
        elif isinstance(value, dict | list):
            metadata[key] = dg.MetadataValue.json(value)
        else:
            metadata[key] = dg.MetadataValue.text(str(value))
    return metadata


def table(rows: list[dict[str, Any]]) -> dg.MetadataValue[Any]:
    """Rows as a table on the asset page; the first ones when there are many."""
    records = [dg.TableRecord({str(key): _cell(value) for key, value in row.items()}) for row in rows[:_TABLE_ROWS]]
    return dg.MetadataValue.table(records) if records else dg.MetadataValue.text("no rows")


def _cell(value: Any) -> Any:
    stored = storable(value)
    return json.dumps(stored, ensure_ascii=False) if isinstance(stored, dict | list) else stored
