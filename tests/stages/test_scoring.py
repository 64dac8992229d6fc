"""Scores of one policy, from its trajectories and what the machine lost of them."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl

from evaluation.findings import Share, with_measures
from stages.claims import CLAIMS
from stages.report import make_report
from stages.scoring import make_scores
from text2sql.artifacts import Artifact
from text2sql.trajectory import Event, write_trajectories

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


def test_the_first_proposal_is_judged_beside_the_answer(make_context, dialogue, episode, tmp_path):
    """Mended: the first SQL was wrong and the final one is right; broken: the reverse. No answer is wrong."""
    wrong, broken_sql = "SELECT name FROM staff", "SELECT nothing FROM staff"
    items = dialogue("d/0", "dev", *[GOLD] * 4)
    answers = [(broken_sql, GOLD), (wrong, GOLD), (GOLD, None), (GOLD, GOLD)]
    trajectories = []
    for item, (first, final) in zip(items, answers, strict=True):
        played = episode(item, 0, final)
        trajectories.append(replace(played, events=(Event("propose", 0, sql=first), *played.events)))
    context = make_context("evaluation/base/scores", items, predictions=predictions(tmp_path, trajectories))
    metrics = make_scores(context)
    rows = pl.read_parquet(context.out / "scores.parquet").to_dicts()

    assert [(False, True), (False, True), (True, False), (True, True)] == [(row["first_ex"], row["ex"]) for row in rows]
    assert (2, 1) == (metrics["mended"], metrics["broken"])
    assert 2 == json.loads((context.out / "totals.json").read_text(encoding="utf-8"))["mended"]


def test_calls_are_counted_by_tool_and_wrong_answers_have_a_class(make_context, dialogue, episode, tmp_path):
    """What the findings say of abilities and errors is read from the rows; a right answer has no class."""
    items = dialogue("d/0", "dev", GOLD, "SELECT name FROM staff WHERE city = 'Graz' AND id < 3", GOLD)
    answers = [GOLD, "SELECT name FROM staff WHERE id < 3", None]
    trajectories = [episode(item, 0, answer, [GOLD]) for item, answer in zip(items, answers, strict=True)]
    recalled = replace(trajectories[1], events=(Event("recall", 0, sql=GOLD), *trajectories[1].events))
    trajectories[1] = recalled
    context = make_context("evaluation/base/scores", items, predictions=predictions(tmp_path, trajectories))
    make_scores(context)
    rows = pl.read_parquet(context.out / "scores.parquet").to_dicts()

    assert [None, "constraint_coherence", "execution"] == [row["error"] for row in rows]
    assert [(1, 0), (1, 1), (1, 0)] == [(row["executions"], row["recalls"]) for row in rows]


def test_the_agents_own_verdicts_are_counted_and_judged(make_context, dialogue, episode, tmp_path):
    """
    Pass is right on an execution that answers and, for coherence, on SQL that is right; a call without a verdict counts
    in neither.
    """
    items = dialogue("d/0", "dev", GOLD)
    checked = (
        *(Event("execute", 0, sql=GOLD, status="ok"), Event("e_verify", 1, verdict="pass")),
        *(Event("execute", 1, sql="SELECT", status="error"), Event("e_verify", 2, verdict="pass")),
        *(Event("recall", 2, sql="SELECT city FROM staff"), Event("m_verify", 3, verdict="pass")),
        *(Event("recall", 3, sql=GOLD), Event("m_verify", 4, verdict="pass")),
        Event("recall", 4, sql=GOLD),
        Event("finalize", 5, sql=GOLD),
    )
    trajectory = replace(episode(items[0], 0, GOLD), events=checked)
    context = make_context("evaluation/base/scores", items, predictions=predictions(tmp_path, [trajectory]))
    make_scores(context)
    row = pl.read_parquet(context.out / "scores.parquet").to_dicts()[0]

    assert (2, 1) == (row["e_verdicts"], row["e_verdicts_right"])
    assert (2, 1) == (row["m_verdicts"], row["m_verdicts_right"])


def test_scores_hold_every_measure_that_a_claim_asks_for(make_context, dialogue, episode, tmp_path):
    """The findings are means of these columns and of what is made of them, and of nothing else."""
    items = dialogue("d/0", "dev", GOLD)
    context = make_context(
        "evaluation/base/scores", items, predictions=predictions(tmp_path, [episode(items[0], 0, GOLD, [GOLD])])
    )
    make_scores(context)
    columns = with_measures(pl.read_parquet(context.out / "scores.parquet")).columns
    asked = {source.measure for claim in CLAIMS for _, source in claim.terms if isinstance(source, Share)}

    assert {measure.removeprefix("interaction_") for measure in asked} <= set(columns)


def test_ex_is_given_apart_for_golds_that_training_never_held(make_context, dialogue, episode, tmp_path):
    """
    A gold of train or validation on the same database is seen, in whichever dialogue it stood; the share of the others
    stands beside their EX.
    """
    other, elsewhere = "SELECT count(*) FROM staff", "SELECT city FROM staff"
    items = dialogue("d/0", "dev", GOLD, other, elsewhere, "SELECT id FROM staff")
    known = [*dialogue("t/0", "train", GOLD), *dialogue("t/1", "validation", other)]
    known += dialogue("t/2", "train", elsewhere, db_id="school")
    answers = [GOLD, other, elsewhere, "SELECT 7"]
    trajectories = [episode(item, 0, answer) for item, answer in zip(items, answers, strict=True)]
    context = make_context("evaluation/base/scores", [*items, *known], predictions=predictions(tmp_path, trajectories))
    metrics = make_scores(context)
    rows = pl.read_parquet(context.out / "scores.parquet")

    assert [False, False, True, True] == rows["unseen_gold"].to_list()
    assert (0.75, 0.5, 0.5) == (metrics["ex"], metrics["unseen_gold"], metrics["ex_unseen_gold"])


def test_scores_on_held_out_phrasing_are_those_of_its_own_items(make_context, dialogue, episode, tmp_path):
    """The stage's key says which split it is about."""
    items = dialogue("d/0", "dev_phrasing", GOLD, GOLD)
    made = predictions(tmp_path, [episode(item, 0, GOLD) for item in items])
    everything = [*dialogue("d/1", "dev", GOLD), *items]
    metrics = make_scores(make_context("evaluation/base/dev_phrasing/scores", everything, predictions=made))

    assert (2, 1.0) == (metrics["turns"], metrics["ex"])


def test_scores_on_train_say_that_no_gold_is_unseen(make_context, dialogue, episode, tmp_path):
    """Accuracy on train is told from accuracy on what a policy has not met."""
    items = dialogue("d/0", "train", GOLD, GOLD)
    made = predictions(tmp_path, [episode(item, 0, GOLD) for item in items])
    metrics = make_scores(make_context("evaluation/base/train/scores", items, predictions=made))

    assert (2, 1.0, 0.0) == (metrics["turns"], metrics["ex"], metrics["unseen_gold"])


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
