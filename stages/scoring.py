"""Scores of one policy: a verdict and a reward per item, and the totals made of them."""

from typing import Any

import polars as pl

from agents.mtsql.rewards import reward
from evaluation.dialogue_scores import ScoredTurn, totals
from evaluation.suite import SuiteVerdict
from evaluation.verdicts import METRIC_VERSION
from stages.context import StageContext, run_ahead, write_table
from stages.sampling import lost, sampled
from text2sql.dialogue import Item
from text2sql.trajectory import Trajectory


def make_scores(context: StageContext) -> dict[str, Any]:
    """
    Score predictions without a model. Writes scores.parquet (one row per dev item: verdicts, reward parts, what the
    agent did) and totals.json (EX and EM, and suite EX where the profile asks for it; question and interaction match; by
    turn, by hardness; the version of the rules they follow). An item that the machine lost (status `infrastructure`) has
    no verdict: it is ungraded, like one whose gold cannot run.
    """
    items = {item.item_id: item for item in context.items("dev", gradable_only=False)}
    golds = {item_id: item.gold for item_id, item in items.items()}
    trajectories = sampled(context, "predictions")
    rows = []
    scored = []
    with context.scorer() as scorer, context.suite(scorer.executor) as suite:
        for trajectory in run_ahead(scorer, trajectories, golds):
            item = items[trajectory.item_id]
            verdict = scorer.verdict(item.db_id, item.gold, trajectory.final_sql)
            paid = reward(trajectory, item.gold, scorer, context.profile.rewards)
            pair = (item.gold, trajectory.final_sql)
            on_neighbours = suite.verdict(scorer.structure(item.db_id), *pair, verdict.ex) if suite else None
            scored.append(
                ScoredTurn.from_verdict(item.dialogue_id, item.turn, item.db_id, verdict, *pair, on_neighbours)
            )
            rows.append(
                {
                    **_what_was_asked(item),
                    "final_sql": trajectory.final_sql,
                    "ex": verdict.ex,
                    "em": verdict.em,
                    "em_sound": verdict.em_sound,
                    "status": verdict.status,
                    "reason": verdict.reason,
                    **(_what_neighbours_say(on_neighbours) if on_neighbours else {}),
                    "reward": paid.total,
                    **{f"reward_{part}": value for part, value in paid.parts.items()},
                    **_what_was_done(trajectory),
                }
            )
    for failure in lost(context, "predictions"):
        item = items[failure.item_id]
        scored.append(
            ScoredTurn(
                *(item.dialogue_id, item.turn, item.db_id),
                em=None,
                ex=None,
                hardness=item.hardness,
                status="infrastructure",
                gold=item.gold,
            )
        )
        rows.append({**_what_was_asked(item), "status": "infrastructure", "reason": failure.message})
    write_table(pl.DataFrame(rows, infer_schema_length=None), context.out / "scores.parquet")
    result = totals(scored)
    context.write_json("totals.json", {"metric_version": METRIC_VERSION, **result})
    answered = sum(trajectory.final_sql is not None for trajectory in trajectories) / max(len(trajectories), 1)
    calls = sum(trajectory.tool_calls for trajectory in trajectories) / max(len(trajectories), 1)
    suite_ex = f", suite EX {_percent(result['ex_suite'])}" if "ex_suite" in result else ""
    context.say(
        f"{context.key}: EX {_percent(result['ex'])}{suite_ex}, EM {_percent(result['em'])}, interactions EX "
        f"{_percent(result['interaction_ex'])}, {len(rows)} turns"
    )
    return {**result, "answered": answered, "tool_calls": calls}


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share:.1%}"


def _what_neighbours_say(verdict: SuiteVerdict) -> dict[str, Any]:
    return {
        "ex_suite": verdict.ex_suite,
        "suite_status": verdict.status,
        "suite_gold": verdict.gold,
        "suite_reason": verdict.reason,
    }


def _what_was_asked(item: Item) -> dict[str, Any]:
    return {
        "item_id": item.item_id,
        "dialogue_id": item.dialogue_id,
        "turn": item.turn,
        "db_id": item.db_id,
        "hardness": item.hardness,
        "utterance": item.utterance,
        "gold": item.gold,
        "fault": item.fault,
    }


def _what_was_done(trajectory: Trajectory) -> dict[str, Any]:
    proposed = trajectory.events_of("propose")
    return {
        "first_sql": proposed[0].sql if proposed else None,
        "tool_calls": trajectory.tool_calls,
        "corrections": len(trajectory.events_of("self_correct")),
        "malformed": len(trajectory.events_of("malformed")),
        "tokens": trajectory.completion_tokens,
        "stop_reason": trajectory.stop_reason,
    }
