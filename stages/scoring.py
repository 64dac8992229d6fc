"""Scores of one policy: a verdict and a reward per item, and the totals made of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from agents.mtsql.rewards import e_verify, executions, recalls, reward
from evaluation.dialogue_scores import ScoredTurn, totals
from evaluation.error_taxonomy import ErrorClass, classify_error
from evaluation.suite import SuiteVerdict
from evaluation.verdicts import METRIC_VERSION, Scorer, Verdict
from stages.context import StageContext, policy_and_split, run_ahead, write_table
from stages.sampling import lost, sampled
from text2sql.dialogue import Item
from text2sql.trajectory import Trajectory


def make_scores(context: StageContext) -> dict[str, Any]:
    """
    Score predictions without a model. Writes scores.parquet (one row per item of the split: verdicts, reward parts,
    class of error, what the agent did) and totals.json (EX and EM, and suite EX where the profile asks for it; question
    and interaction match; by turn, by hardness; the version of the rules they follow; what `_of_rows` adds). An item that
    the machine lost (status `infrastructure`) has no verdict: it is ungraded, like one whose gold cannot run.
    """
    items = {item.item_id: item for item in context.items(policy_and_split(context.key)[1], gradable_only=False)}
    golds = {item_id: item.gold for item_id, item in items.items()}
    seen = _golds_of_train(context)
    trajectories = sampled(context, "predictions")
    rows = []
    scored = []
    with context.scorer() as scorer, context.suite(scorer.executor) as suite:
        first_ex = _first_ex(trajectories, items, scorer)
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
                    **_what_was_asked(item, seen),
                    "final_sql": trajectory.final_sql,
                    "ex": verdict.ex,
                    "first_ex": first_ex.get(item.item_id, verdict.ex),
                    "em": verdict.em,
                    "em_sound": verdict.em_sound,
                    "status": verdict.status,
                    "reason": verdict.reason,
                    "error": _error(item, trajectory, verdict, scorer),
                    **(_what_neighbours_say(on_neighbours) if on_neighbours else {}),
                    "reward": paid.total,
                    **{f"reward_{part}": value for part, value in paid.parts.items()},
                    **_what_was_done(trajectory),
                    **_what_was_judged(trajectory, item, scorer),
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
        rows.append({**_what_was_asked(item, seen), "status": "infrastructure", "reason": failure.message})
    write_table(pl.DataFrame(rows, infer_schema_length=None), context.out / "scores.parquet")
    result = {**totals(scored), **_of_rows(rows)}
    context.write_json("totals.json", {"metric_version": METRIC_VERSION, **result})
    answered = sum(trajectory.final_sql is not None for trajectory in trajectories) / max(len(trajectories), 1)
    calls = sum(trajectory.tool_calls for trajectory in trajectories) / max(len(trajectories), 1)
    suite_ex = f", suite EX {_percent(result['ex_suite'])}" if "ex_suite" in result else ""
    context.say(
        f"{context.key}: EX {_percent(result['ex'])}{suite_ex}, EM {_percent(result['em'])}, interactions EX "
        f"{_percent(result['interaction_ex'])}, {len(rows)} turns, {_percent(result['unseen_gold'])} with unseen gold"
    )
    return {**result, "answered": answered, "tool_calls": calls}


def _golds_of_train(context: StageContext) -> set[tuple[str, str]]:
    """(database, gold) of every turn of train, validation and set-aside ones included."""
    turns = pl.read_parquet(context.path("turns", "turns.parquet"), columns=["split", "db_id", "gold"])
    return set(turns.filter(pl.col("split").is_in(["train", "validation"])).select("db_id", "gold").iter_rows())


def _first_ex(trajectories: Sequence[Trajectory], items: Mapping[str, Item], scorer: Scorer) -> dict[str, bool | None]:
    """EX of the first SQL of each trajectory that answers with another one, by item."""
    changed = [(one, first) for one in trajectories if (first := _first_sql(one)) not in (None, one.final_sql)]
    judged = scorer.ahead(changed, lambda pair: (pair[0].db_id, items[pair[0].item_id].gold, pair[1]))
    return {one.item_id: scorer.verdict(one.db_id, items[one.item_id].gold, first).ex for one, first in judged}


def _error(item: Item, trajectory: Trajectory, verdict: Verdict, scorer: Scorer) -> ErrorClass | None:
    """The class of an answer that is wrong by EX; the golds of the earlier turns are the history, whatever was seen."""
    if verdict.ex is not False:
        return None
    history = [turn.sql for turn in item.history]
    return classify_error(item.gold, trajectory.final_sql, history, scorer.schema(item.db_id), verdict.status)


def _of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """
    `unseen_gold`: share of the turns whose gold no turn of train has, and `ex_unseen_gold`: EX on these alone.
    `mended`, `broken`: turns whose first proposed SQL was wrong and whose final one is right, and the reverse (by EX).
    """
    unseen = [row for row in rows if row["unseen_gold"]]
    graded = [row["ex"] for row in unseen if row.get("ex") is not None]
    changes = [(row.get("first_ex"), row.get("ex")) for row in rows]
    return {
        "unseen_gold": len(unseen) / len(rows) if rows else None,
        "ex_unseen_gold": sum(graded) / len(graded) if graded else None,
        "mended": changes.count((False, True)),
        "broken": changes.count((True, False)),
    }


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share:.1%}"


def _what_neighbours_say(verdict: SuiteVerdict) -> dict[str, Any]:
    return {
        "ex_suite": verdict.ex_suite,
        "suite_status": verdict.status,
        "suite_gold": verdict.gold,
        "suite_reason": verdict.reason,
    }


def _what_was_asked(item: Item, seen: set[tuple[str, str]]) -> dict[str, Any]:
    return {
        "item_id": item.item_id,
        "dialogue_id": item.dialogue_id,
        "turn": item.turn,
        "db_id": item.db_id,
        "hardness": item.hardness,
        "utterance": item.utterance,
        "gold": item.gold,
        "unseen_gold": (item.db_id, item.gold) not in seen,
        "fault": item.fault,
    }


def _first_sql(trajectory: Trajectory) -> str | None:
    proposed = trajectory.events_of("propose")
    return proposed[0].sql if proposed else None


def _what_was_done(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "first_sql": _first_sql(trajectory),
        "tool_calls": trajectory.tool_calls,
        "executions": len(trajectory.events_of("execute")),
        "recalls": len(trajectory.events_of("recall")),
        "corrections": len(trajectory.events_of("self_correct")),
        "malformed": len(trajectory.events_of("malformed")),
        "tokens": trajectory.completion_tokens,
        "stop_reason": trajectory.stop_reason,
    }


def _what_was_judged(trajectory: Trajectory, item: Item, scorer: Scorer) -> dict[str, int]:
    """
    The verdicts that the agent gave, and how many of them are right: on an execution as the reward has it; on
    coherence, pass where the SQL that was checked is right by EX.
    """
    gold_status = scorer.gold_execution(item.db_id, item.gold).status
    on_executions = [
        e_verify(call, said, gold_status) > 0 for call, said in executions(trajectory.events) if said is not None
    ]
    on_coherence = [
        (said == "pass") == bool(scorer.verdict(item.db_id, item.gold, call.sql).ex)
        for call, said in recalls(trajectory.events)
        if said is not None
    ]
    return {
        "e_verdicts": len(on_executions),
        "e_verdicts_right": sum(on_executions),
        "m_verdicts": len(on_coherence),
        "m_verdicts_right": sum(on_coherence),
    }
