"""The report of an experiment: what stands beside the scores."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluation.paired import Effect
from stages.context import StageContext
from stages.gains import Gain, comparisons, gains_table
from stages.report import make_report
from stages.scoring import make_scores
from text2sql.artifacts import Artifact
from text2sql.trajectory import write_trajectories

GOLD = "SELECT name FROM staff"
WRONG = "SELECT city FROM staff"


@pytest.fixture
def report(make_context, dialogue, episode, tmp_path: Path) -> Callable[..., tuple[str, dict[str, Any]]]:
    """
    `report({evaluation: answers}, profile)`: report.md and the metrics of a report over policies that answered eight
    dialogues of one turn like this (True: right). Scores are made by the stage that makes them. An evaluation is named
    as in the plan: `base`, or `base/dev_phrasing`.
    """

    def make(
        policies: Mapping[str, list[bool]], profile: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        items = [
            item
            for split in ("dev", "dev_phrasing")
            for d in range(8)
            for item in dialogue(f"{split}/{d}", split, GOLD)
        ]
        inputs = {}
        for name, answers in policies.items():
            split = name.partition("/")[2] or "dev"
            mine = [item for item in items if item.split == split]
            shards = tmp_path / "predictions" / name / "shards"
            shards.mkdir(parents=True)
            said = [episode(item, 0, GOLD if right else WRONG) for item, right in zip(mine, answers, strict=True)]
            write_trajectories(said, shards / "00000-00007.jsonl")
            context = make_context(f"evaluation/{name}/scores", items, predictions=shards.parent)
            context = replace(context, out=tmp_path / "scores" / name)
            context.out.mkdir(parents=True)
            manifest = {"version": "1", "metrics": make_scores(context)}
            inputs[name] = Artifact(f"evaluation/{name}/scores", "0" * 16, context.out, manifest)
        context: StageContext = replace(make_context("report", items, profile), inputs=inputs)
        metrics = make_report(context)
        json.loads((context.out / "report.json").read_text(encoding="utf-8"))
        return (context.out / "report.md").read_text(encoding="utf-8"), metrics

    return make


NONE, MOST, ALL = [False] * 8, [True] * 6 + [False] * 2, [True] * 8


def test_every_gain_stands_beside_its_control_with_an_interval(report):
    """All over base is as sure as can be; over a control that did as well there is none, and the page says both."""
    text, metrics = report({"base": NONE, "round_1": ALL, "control_sft": ALL})

    assert "| round_1 | base | +100.0 [+100.0, +100.0] | +100.0 [+100.0, +100.0] |" in text
    assert "| round_1 | control_sft | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |" in text
    assert "gains in EX of round_1 over base, interaction EX of round_1 over base. Not shown: all else" in text
    assert (1.0, 0.0) == tuple(metrics["gains"][f"round_1_over_{name}"]["ex_low"] for name in ("base", "control_sft"))


def test_held_out_phrasing_has_its_own_rows_and_gains(report):
    """Each split is compared within itself."""
    policies = {"base": NONE, "grpo": ALL, "round_1": ALL}
    both = {**policies, **{f"{name}/dev_phrasing": NONE for name in policies}}
    text, _ = report(both, {"evaluation": {"splits": ("dev", "dev_phrasing")}})

    assert "| grpo/dev_phrasing | 0.0% |" in text
    assert "| round_1/dev_phrasing | base/dev_phrasing | +0.0 [+0.0, +0.0] |" in text
    assert "| round_1 | base | +100.0 [+100.0, +100.0] |" in text


def test_each_split_has_its_own_table_by_turn(report):
    """Group sizes stand in the header, so two splits do not share one."""
    both = {"base": MOST, "base/dev_phrasing": NONE}
    text, _ = report(both, {"evaluation": {"splits": ("dev", "dev_phrasing")}})
    by_turn = text.partition("## EX by turn")[2].partition("##")[0].split()

    assert 2 == by_turn.count("(8)")
    assert ["base", "|", "75.0%"] == by_turn[by_turn.index("base") :][:3]
    assert ["base/dev_phrasing", "|", "0.0%"] == by_turn[by_turn.index("base/dev_phrasing") :][:3]


def test_the_share_of_unseen_gold_stands_with_every_score(report):
    """In the table of policies, with EX on these turns alone."""
    text, _ = report({"base": MOST})
    header, row = (
        next(line for line in text.splitlines() if line.startswith(f"| {word}")) for word in ("policy", "base")
    )
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))

    assert ("100.0%", "75.0%", "0, 0") == tuple(cells[name] for name in ("unseen gold", "EX on it", "mended, broken"))


def test_comparisons_follow_the_lineage_and_leave_out_what_is_not_evaluated():
    """The last round over base and control, GRPO over that round and its control, each round over the one before."""
    whole = ["base", "round_1", "round_2", "grpo", "short_horizon_sft", "control_sft", "control_grpo"]

    assert [
        *(("round_2", "base"), ("round_2", "control_sft"), ("grpo", "round_2"), ("grpo", "control_grpo")),
        *(("round_1", "base"), ("round_2", "round_1")),
    ] == comparisons(whole)
    assert [("round_1", "base")] == comparisons(["base", "round_1"])
    assert [] == comparisons(["base", "grpo"])


def test_a_loss_and_a_doubt_are_said_like_a_gain():
    """An interval below zero is a loss; one that holds zero shows nothing; where nothing is shown the page says so."""
    loss, doubt = Effect(-0.1, -0.2, -0.05, 8, 8, 1), Effect(0.1, -0.1, 0.3, 8, 8, 1)

    assert "losses in EX of grpo over round_1. Not shown" in gains_table([Gain("grpo", "round_1", {"ex": loss})])[-1]
    assert gains_table([Gain("grpo", "round_1", {"ex": doubt})])[-1].startswith("No gain and no loss is shown")
    assert ["No two policies that belong side by side are evaluated here."] == gains_table([])
