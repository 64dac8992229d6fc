"""
Scores over dialogues, made of verdicts on single turns.

Question match is the share of turns that are right, interaction match the share of dialogues all of whose turns are;
each by EX (`ex`, `interaction_ex`) and by EM (`em`, `interaction_em`), as the official evaluator counts them.

A turn on which the official evaluator stops (its gold does not run, or cannot be read) is no wrong answer: `ex` and
`em` leave such turns out. Beside them `ex_all` and `em_all` count them as wrong, over all turns. The counts are there
too, so that either can be checked. A share of nothing is None, never 0.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.set_match import PARTS
from evaluation.suite import SuiteVerdict
from evaluation.verdicts import Verdict

TURNS = ("1", "2", "3", "4", ">4")
LEVELS = ("easy", "medium", "hard", "extra")


@dataclass(frozen=True)
class ScoredTurn:
    """
    One turn and what is said of its prediction (fields of `evaluation.verdicts.Verdict` and `evaluation.suite`). `turn`
    counts from 1; None for a turn of which only the pair is known: it counts neither by turn nor towards an interaction.
    """

    dialogue_id: str
    turn: int | None
    db_id: str
    em: bool | None
    ex: bool | None
    em_sound: bool | None = None
    ex_keep_distinct: bool | None = None
    hardness: str | None = None
    partial: Mapping[str, list[int]] | None = None
    status: str = ""
    both_empty: bool = False
    gold_empty: bool = False
    gold: str = ""
    pred: str | None = None
    ex_suite: bool | None = None
    suite_status: str = ""  # empty: nobody asked for suite EX
    suite_gold: str = ""

    @classmethod
    def from_verdict(
        cls,
        dialogue_id: str,
        turn: int | None,
        db_id: str,
        verdict: Verdict,
        gold: str = "",
        pred: str | None = None,
        suite: SuiteVerdict | None = None,
    ) -> "ScoredTurn":
        return cls(
            dialogue_id,
            turn,
            db_id,
            em=verdict.em,
            ex=verdict.ex,
            em_sound=verdict.em_sound,
            ex_keep_distinct=verdict.ex_keep_distinct,
            hardness=verdict.hardness,
            partial=verdict.partial,
            status=verdict.status,
            both_empty=verdict.both_empty,
            gold_empty=verdict.gold_empty,
            gold=gold,
            pred=pred,
            ex_suite=suite.ex_suite if suite else None,
            suite_status=suite.status if suite else "",
            suite_gold=suite.gold if suite else "",
        )


def totals(scored: Iterable[ScoredTurn]) -> dict[str, Any]:
    """
    All totals, as plain JSON values: the keys of `question_match` and `interaction_match`; `by_turn` and `by_hardness`,
    group to `question_match` (groups that occur); `partial`, "all" and each level to `partial_averages`; `statuses`,
    how many turns have each.
    """
    turns = list(scored)
    by_hardness = _groups(turns, LEVELS, lambda turn: turn.hardness)
    return {
        **question_match(turns),
        **interaction_match(turns),
        "by_turn": {name: question_match(group) for name, group in _groups(turns, TURNS, _bucket).items()},
        "by_hardness": {name: question_match(group) for name, group in by_hardness.items()},
        "partial": {name: partial_averages(group) for name, group in {"all": turns, **by_hardness}.items()},
        "statuses": dict(sorted(Counter(turn.status for turn in turns).items())),
    }


def question_match(turns: Sequence[ScoredTurn]) -> dict[str, Any]:
    """
    Shares of turns. `ex`, `em`: of the turns that can be graded; `ex_all`, `em_all`: of all turns; `ex_right`,
    `em_right`: the counts; `ex_ungraded`, `em_ungraded`: turns left out. `em_sound`, `ex_keep_distinct`: as their names
    say. `both_empty`: matches in which both results are empty; `gold_empty`: turns whose gold returns nothing, and
    `ex_gold_not_empty` is EX without them. `no_answer`: turns without a prediction (wrong). Where turns carry suite EX:
    `ex_suite` and the like, as for EX; `ex_unmasked`: right by EX, wrong on a neighbour; `suite_gold_empty`,
    `suite_gold_constant`: turns whose gold returns nothing, or the same, on all neighbours.
    """
    not_empty = [turn for turn in turns if not turn.gold_empty]
    return {
        "turns": len(turns),
        **_match("ex", [turn.ex for turn in turns]),
        **_match("em", [turn.em for turn in turns]),
        "em_sound": _share([turn.em_sound for turn in turns]),
        "ex_keep_distinct": _share([turn.ex_keep_distinct for turn in turns]),
        "ex_gold_not_empty": _share([turn.ex for turn in not_empty]),
        "gold_empty": len(turns) - len(not_empty),
        "both_empty": sum(turn.both_empty and turn.ex is True for turn in turns),
        "no_answer": sum(turn.status == "no_answer" for turn in turns),
        **_suite_match(turns),
    }


def _suite_match(turns: Sequence[ScoredTurn]) -> dict[str, Any]:
    if not any(turn.suite_status for turn in turns):
        return {}
    return {
        **_match("ex_suite", [turn.ex_suite for turn in turns]),
        "ex_unmasked": sum(turn.ex is True and turn.ex_suite is False for turn in turns),
        "suite_gold_empty": sum(turn.suite_gold == "empty" for turn in turns),
        "suite_gold_constant": sum(turn.suite_gold == "constant" for turn in turns),
    }


def interaction_match(turns: Sequence[ScoredTurn]) -> dict[str, Any]:
    """
    Shares of dialogues whose turns are all right. `interaction_ex`, `interaction_em`: turns that cannot be graded are
    left out, and dialogues that have no other turn; with `_all` they count as wrong, as in the official totals. Where
    turns carry suite EX, `interaction_ex_suite` likewise.
    """
    dialogues: dict[str, list[ScoredTurn]] = {}
    for turn in turns:
        if turn.turn is not None:
            dialogues.setdefault(turn.dialogue_id, []).append(turn)
    result: dict[str, Any] = {"dialogues": len(dialogues)}
    carried = any(turn.suite_status for turn in turns)
    for name in ("ex", "em", *(["ex_suite"] if carried else [])):
        verdicts = [[getattr(turn, name) for turn in group] for group in dialogues.values()]
        graded = [[verdict for verdict in group if verdict is not None] for group in verdicts]
        result[f"interaction_{name}"] = _share([all(group) for group in graded if group])
        result[f"interaction_{name}_all"] = _share([all(group) for group in verdicts])
        result[f"interaction_{name}_right"] = sum(all(group) for group in verdicts)
    return result


def partial_averages(turns: Iterable[ScoredTurn]) -> dict[str, dict[str, Any]]:
    """
    Per part of EM: `accuracy` over pairs whose prediction has the clause (`accuracy_count` of them), `recall` over
    pairs whose gold has it (`recall_count`), 0 where there is none; `f1` of the two averages, 1 if both are 0. These
    conventions are the official evaluator's.
    """
    scores = [turn.partial for turn in turns if turn.partial is not None]
    averages = {}
    for part in PARTS:
        predicted = [score[part][0] for score in scores if score[part][4] > 0]
        asked = [score[part][1] for score in scores if score[part][3] > 0]
        accuracy = sum(predicted) / len(predicted) if predicted else 0.0
        recall = sum(asked) / len(asked) if asked else 0.0
        f1 = 2.0 * accuracy * recall / (accuracy + recall) if accuracy or recall else 1.0
        averages[part] = {
            "accuracy": accuracy,
            "recall": recall,
            "f1": f1,
            "accuracy_count": len(predicted),
            "recall_count": len(asked),
        }
    return averages


def _match(name: str, verdicts: Sequence[bool | None]) -> dict[str, Any]:
    right = sum(verdict is True for verdict in verdicts)
    return {
        name: _share(verdicts),
        f"{name}_all": right / len(verdicts) if verdicts else None,
        f"{name}_right": right,
        f"{name}_ungraded": sum(verdict is None for verdict in verdicts),
    }


def _share(verdicts: Sequence[bool | None]) -> float | None:
    graded = [verdict for verdict in verdicts if verdict is not None]
    return sum(graded) / len(graded) if graded else None


def _bucket(turn: ScoredTurn) -> str | None:
    if turn.turn is None:
        return None
    return str(turn.turn) if turn.turn <= 4 else ">4"


def _groups(
    turns: Iterable[ScoredTurn], names: Sequence[str], name_of: Callable[[ScoredTurn], str | None]
) -> dict[str, list[ScoredTurn]]:
    groups: dict[str, list[ScoredTurn]] = {name: [] for name in names}
    for turn in turns:
        name = name_of(turn)
        if name in groups:
            groups[name].append(turn)
    return {name: group for name, group in groups.items() if group}
