"""Scores of one policy, from its trajectories and what the machine lost of them."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl

from stages.report import make_report
from stages.scoring import make_scores
from text2sql.artifacts import Artifact
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


def test_suite_ex_goes_from_the_profile_into_scores_and_report(make_context, dialogue, episode, tmp_path):
    """
    A prediction that is right by luck is right by EX and wrong by suite EX: in its row, in the totals, in the metrics
    and in the report; items that the machine lost have neither.
    """
    items = dialogue("d/0", "dev", GOLD, GOLD, GOLD)
    by_luck = "SELECT name FROM staff WHERE id <> 2"
    trajectories = [episode(items[0], 0, GOLD), episode(items[1], 0, by_luck)]
    profile = {"evaluation": {"suite_neighbours": 4}}
    inputs = {"predictions": predictions(tmp_path, trajectories, lost=["d/0/3"])}
    context = make_context("evaluation/base/scores", items, profile, **inputs)
    metrics = make_scores(context)
    rows = pl.read_parquet(context.out / "scores.parquet").to_dicts()

    assert [(True, True), (True, False), (None, None)] == [(row["ex"], row["ex_suite"]) for row in rows]
    assert ["right", "wrong", None] == [row["suite_status"] for row in rows]
    assert ["varies", "varies", None] == [row["suite_gold"] for row in rows]
    assert "neighbour" in rows[1]["suite_reason"]
    assert (1.0, 0.5, 1) == (metrics["ex"], metrics["ex_suite"], metrics["ex_unmasked"])

    scores = Artifact("evaluation/base/scores", "0" * 16, context.out, {"metrics": metrics, "version": "1"})
    out = tmp_path / "report"
    out.mkdir()
    figures = make_report(replace(context, key="report", inputs={"base": scores}, out=out))
    text = (out / "report.md").read_text(encoding="utf-8")

    assert 0.5 == figures["base"]["ex_suite"]
    assert "| policy | EX | suite EX | EM |" in text
    assert "| base | 100.0% | 50.0% | 50.0% |" in text
    assert "## Suite EX by hardness" in text


def test_without_neighbours_nothing_speaks_of_a_suite(make_context, dialogue, episode, tmp_path):
    """The default: no column, no figure."""
    items = dialogue("d/0", "dev", GOLD)
    context = make_context(
        "evaluation/base/scores", items, predictions=predictions(tmp_path, [episode(items[0], 0, GOLD)])
    )
    metrics = make_scores(context)

    assert not [name for name in metrics if "suite" in name]
    assert not [name for name in pl.read_parquet(context.out / "scores.parquet").columns if "suite" in name]
