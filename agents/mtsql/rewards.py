"""
Rewards of MTSQL-R1: R = w1 (R_EX + R_EM) + w2 (R_propose/self-correct + R_E-verify + R_M-verify).

Pure functions over the events of a trajectory; no text of the model is read here. Variant `paper` is this file, each
rule with the paper's wording beside it (section 7 of the method); `authors_code` is `agents.mtsql.authors_code`.
The weights are `RewardSettings`: the published code's 1, 1, 0.8, 0.1, 0.1, since the paper states no values.

    part             value
    execution_match  1 if the final SQL is right by EX, else 0
    exact_match      1 if it is right by EM, else 0
    propose          mean over the distinct executed SQL of the mean clause F1 against gold
    e_verify         mean over executions of the verdict's score (table below)
    m_verify         mean over memory calls: F if the verdict is pass, 1 - F if no_pass, F the clause F1 of that SQL

    execution status       gold's result   pass   no_pass   no verdict
    ok                     any             1      0         0
    error, timeout,
    too_large              any             0      1         0
    empty                  empty           1      0         0
    empty                  not empty       0      0.1       0

Where this departs from the released code (which `authors_code` reproduces), and why:

1. "Average clause F1 over SELECT, WHERE, JOIN, GROUP, ORDER" is a true F1 over elements (`evaluation.clauses`); the
   code compares whole clauses as text, over ten keys.
2. "Only count identical SQL once" is a comment in the code; here it holds: distinct by clause view, so that neither
   repeating a good call nor respelling it pays. SQL of memory calls and of calls that never ran does not count.
3. The coherence verdict is the one in <memory_verify>; the code reads <exec_verify> after a memory call.
4. A missing verdict earns nothing; in the code it counts as pass.
5. The status is the executor's own; the code searches the tool's reply for four phrases.
6. An empty result is judged against gold's, as the code's docstring says. 0.1 is the paper's value and the code's;
   the docstring's 0.5 is not used.

    python -m agents.mtsql.rewards TRAJECTORIES.jsonl --variant paper --database DIR --tables tables.json

scores stored episodes (see `agents.mtsql.reward_command`). Three outcomes are told apart (`Reward.status`): `ok`; `ungradable`, gold cannot be run or read, which says nothing
about the model; `infrastructure`, the machine failed three times. In the last two the total is None and the sample
is set aside: None is never a 0.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agents.mtsql.authors_code import AuthorsJudge, authors_score, decoded_text
from text2sql.config import RewardSettings
from text2sql.errors import InfrastructureError, TrainingError
from text2sql.trajectory import Event, Trajectory, Verdict

PARTS = ("execution_match", "exact_match", "propose", "e_verify", "m_verify")
EMPTY_NO_PASS = 0.1
ATTEMPTS = 3

Parts = dict[str, float | None]


class Outcome(Protocol):
    """What a judge says about one final SQL; `hardness` is None when exact match cannot read gold."""

    @property
    def em(self) -> bool | None: ...
    @property
    def ex(self) -> bool | None: ...
    @property
    def hardness(self) -> str | None: ...
    @property
    def status(self) -> str: ...


class GoldExecution(Protocol):
    @property
    def status(self) -> str: ...
    @property
    def message(self) -> str | None: ...


class Judge(AuthorsJudge, Protocol):
    """What rewards ask of `evaluation.verdicts.Scorer`, which reports and selection use too."""

    def outcome(self, db_id: str, gold: str, pred: str | None) -> Outcome: ...
    def gold_execution(self, db_id: str, gold: str) -> GoldExecution: ...
    def clause_f1(self, db_id: str, gold: str, pred: str) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Reward:
    """
    `total` is the weighted sum of `parts` (each between 0 and 1, unweighted), None unless `status` is ok.
    `reason` says why a sample is set aside.
    """

    total: float | None
    parts: Parts = field(default_factory=dict)
    status: Literal["ok", "ungradable", "infrastructure"] = "ok"
    reason: str = ""


def reward(trajectory: Trajectory, gold: str, judge: Judge, settings: RewardSettings) -> Reward:
    """
    The reward of one episode. InfrastructureError is tried again, then reported as such; every other error of the
    judge (a missing database, say) is the caller's to see.
    """
    where = f"item {trajectory.item_id} sample {trajectory.sample}"
    failure = ""
    for _ in range(ATTEMPTS):
        try:
            if settings.variant == "authors_code":
                return _authors_reward(trajectory, gold, judge, settings)
            return _reward(trajectory, gold, judge, settings, where)
        except InfrastructureError as error:
            failure = str(error)
    return Reward(None, dict.fromkeys(PARTS), "infrastructure", f"{where}: {failure}")


def _reward(trajectory: Trajectory, gold: str, judge: Judge, settings: RewardSettings, where: str) -> Reward:
    gold_execution = judge.gold_execution(trajectory.db_id, gold)
    if gold_execution.status not in ("ok", "empty"):
        return _ungradable(where, f"gold does not run ({gold_execution.status}): {gold_execution.message}")
    outcome = judge.outcome(trajectory.db_id, gold, final_sql(trajectory.events))
    if outcome.ex is None:
        return _ungradable(where, f"no execution verdict ({outcome.status})")
    if outcome.em is None and outcome.hardness is None:
        return _ungradable(where, "exact match cannot read gold")
    if not judge.clause_f1(trajectory.db_id, gold, gold):
        return _ungradable(where, "gold has no clause view")

    def similarity(sql: str) -> float:
        scores = judge.clause_f1(trajectory.db_id, gold, sql)
        return sum(scores.values()) / len(scores)

    def same(sql: str, other: str) -> bool:
        scores = judge.clause_f1(trajectory.db_id, sql, other)
        return bool(scores) and min(scores.values()) == 1.0

    executed = distinct_executed(trajectory.events, same)
    parts: Parts = {
        "execution_match": float(outcome.ex),
        "exact_match": float(bool(outcome.em)),  # None: the official evaluator raises on this prediction
        "propose": _mean([similarity(sql) for sql in executed]),
        "e_verify": _mean(
            [e_verify(call, said, gold_execution.status) for call, said in executions(trajectory.events)]
        ),
        "m_verify": _mean([m_verify(similarity(call.sql or ""), said) for call, said in recalls(trajectory.events)]),
    }
    return Reward(total(parts, settings, where), parts)


def _authors_reward(trajectory: Trajectory, gold: str, judge: Judge, settings: RewardSettings) -> Reward:
    """As the released code: from text, and with 0 for the outcome where gold fails."""
    parts: Parts = dict(vars(authors_score(decoded_text(trajectory.segments), gold, trajectory.db_id, judge)))
    return Reward(total(parts, settings), parts)


def final_sql(events: Sequence[Event]) -> str | None:
    """The one rule for the final SQL: that of the last `finalize` event; an empty one is no answer."""
    finals = [event.sql for event in events if event.kind == "finalize"]
    return (finals[-1] or "").strip() or None if finals else None


def distinct_executed(events: Sequence[Event], same: Callable[[str, str], bool]) -> list[str]:
    """SQL that the environment ran, each once; `same` says whether two texts have the same elements in all clauses."""
    found: list[str] = []
    for sql in (event.sql for event in events if event.kind == "execute" and event.sql is not None):
        if not any(sql.split() == other.split() or same(sql, other) for other in found):
            found.append(sql)
    return found


def executions(events: Sequence[Event]) -> list[tuple[Event, Verdict | None]]:
    """Each execution with the first verdict on it: an e_verify before the next execution."""
    return _with_verdict(events, "execute", "e_verify", ended_by=("execute",))


def recalls(events: Sequence[Event]) -> list[tuple[Event, Verdict | None]]:
    """Each memory call with the first verdict on it: an m_verify before the next call of either tool."""
    return _with_verdict(events, "recall", "m_verify", ended_by=("execute", "recall"))


def e_verify(call: Event, verdict: Verdict | None, gold_status: str) -> float:
    """The score of a verdict on an execution, by the table in this file's header."""
    if verdict is None:
        return 0.0
    if call.status == "ok":
        return float(verdict == "pass")
    if call.status != "empty":
        return float(verdict == "no_pass")
    if gold_status == "empty":
        return float(verdict == "pass")
    return EMPTY_NO_PASS if verdict == "no_pass" else 0.0


def m_verify(similarity: float, verdict: Verdict | None) -> float:
    """The score of a verdict on coherence, given the clause F1 of the SQL that was checked."""
    if verdict is None:
        return 0.0
    return similarity if verdict == "pass" else 1.0 - similarity


def total(parts: Mapping[str, float | None], settings: RewardSettings, where: str = "a sample") -> float | None:
    """
    The weighted sum, or None when a part is missing or NaN: such a sample leaves its group, it is not a 0.
    Raises TrainingError when every part is missing, which no trajectory can cause.
    """
    missing = [name for name in PARTS if (value := parts.get(name)) is None or math.isnan(value)]
    if len(missing) == len(PARTS):
        raise TrainingError(f"{where}: every part of the reward is missing; a judge that answers nothing is broken")
    if missing:
        return None
    return math.fsum(getattr(settings, name) * (parts[name] or 0.0) for name in PARTS)


def _with_verdict(
    events: Sequence[Event], call: str, verdict: str, ended_by: tuple[str, ...]
) -> list[tuple[Event, Verdict | None]]:
    found: list[tuple[Event, Verdict | None]] = []
    waiting = False
    for event in events:
        if event.kind == verdict and waiting:
            found[-1] = (found[-1][0], event.verdict)
            waiting = False
        elif event.kind in ended_by:
            waiting = event.kind == call
            if waiting:
                found.append((event, None))
    return found


def _mean(scores: Sequence[float]) -> float:
    """The mean; an action that was never taken earns 0."""
    return math.fsum(scores) / len(scores) if scores else 0.0


def _ungradable(where: str, reason: str) -> Reward:
    return Reward(None, dict.fromkeys(PARTS), "ungradable", f"{where}: {reason}")


if __name__ == "__main__":
    from agents.mtsql.reward_command import main

    sys.exit(main())
