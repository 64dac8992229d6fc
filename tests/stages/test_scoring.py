"""Scores of one policy, from its trajectories and what the machine lost of them."""

import json
from pathlib import Path

import polars as pl

from stages.scoring import make_scores
from text2sql.trajectory import write_trajectories

GOLD = "SELECT name FROM staff WHERE city = 'Graz'"


def predictions(folder: Path, trajectories, lost: list[str] = ()) -> Path:
    (folder / "predictions" / "shards").mkdir(parents=True)
    write_trajectories(trajectories, folder / "predictions" / "shards" / "00000-00002.jsonl")
    if lost:
        (folder / "predictions" / "failures").mkdir()
        lines = [json.dumps({"item_id": item_id, "sample": 0, "message": "disk full"}) for item_id in lost]
        (folder / "predictions" / "failures" / "00000-00002.jsonl").write_text(
            "\n".join(lines) + "\n", encoding="utf-8"
        )
    return folder / "predictions"


def test_an_item_that_the_machine_lost_is_ungraded_and_not_wrong(make_context, dialogue, episode, tmp_path):
    """
    Case rw-infrastructure-is-not-zero: it has a row with the reason and no verdict, EX is over the other turns, and the
    share over all turns stands beside it.
    """
    items = dialogue("d/0", "dev", GOLD, GOLD, GOLD)
    trajectories = [episode(items[0], 0, GOLD, [GOLD]), episode(items[1], 0, "SELECT name FROM staff")]
    inputs = {"predictions": predictions(tmp_path, trajectories, lost=["d/0/3"])}
    context = make_context("evaluation/base/scores", items, **inputs)
    metrics = make_scores(context)
    rows = pl.read_parquet(context.out / "scores.parquet").to_dicts()

    assert [True, False, None] == [row["ex"] for row in rows]
    assert ("infrastructure", "disk full") == (rows[2]["status"], rows[2]["reason"])
    assert (0.5, 1 / 3, 1) == (metrics["ex"], metrics["ex_all"], metrics["ex_ungraded"])
    assert 1 == metrics["statuses"]["infrastructure"]


def test_every_dev_item_has_a_row_with_verdicts_parts_and_what_the_agent_did(make_context, dialogue, episode, tmp_path):
    """A score can be traced to its trajectory without a model."""
    items = dialogue("d/0", "dev", GOLD)
    context = make_context(
        "evaluation/base/scores", items, predictions=predictions(tmp_path, [episode(items[0], 0, GOLD, [GOLD])])
    )
    make_scores(context)
    row = pl.read_parquet(context.out / "scores.parquet").row(0, named=True)

    assert (True, True, "right", GOLD) == (row["ex"], row["em"], row["status"], row["final_sql"])
    assert (1.0, 1.0, 1) == (row["reward_propose"], row["reward_e_verify"], row["tool_calls"])
