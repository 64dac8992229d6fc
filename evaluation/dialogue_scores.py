"""
Totals over scored turns: question match, interaction match, by turn, by hardness, partial averages.

As the official totals count: a null verdict (the official evaluator would have stopped) is wrong in `ex` and `em`, an
interaction is right when all its turns are, turn buckets are 1, 2, 3, 4 and >4. Beside them stand the figures that the
official program does not give: sound EM, EX without the turns whose gold failed, EX over turns whose gold returns
something, and how many matches are two empty results.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluation.verdicts import Verdict

TURN_BUCKETS = ("1", "2", "3", "4", ">4")
HARDNESS = ("easy", "medium", "hard", "extra")


@dataclass(frozen=True)
class ScoredTurn:
    """A turn (numbered from 1) of a dialogue with the verdict on its prediction."""

    dialogue_id: str
    turn: int
    db_id: str
    verdict: Verdict

    @classmethod
    def from_verdict(cls, dialogue_id: str, turn: int, db_id: str, verdict: Verdict) -> "ScoredTurn":
        return cls(dialogue_id, turn, db_id, verdict)

    @property
    def bucket(self) -> str:
        return str(self.turn) if self.turn <= 4 else ">4"


def totals(turns: Iterable[ScoredTurn]) -> dict[str, Any]:
    """All totals as plain JSON values; shares lie between 0 and 1 and are 0.0 for an empty group."""
    scored = list(turns)
    dialogues: dict[str, list[ScoredTurn]] = defaultdict(list)
    for turn in scored:
        dialogues[turn.dialogue_id].append(turn)
    verdicts = [turn.verdict for turn in scored]
    gradable = [verdict for verdict in verdicts if verdict.ex is not None]
    not_empty = [verdict for verdict in gradable if not verdict.gold_empty]
    return {
        **_rates(verdicts),
        "dialogues": len(dialogues),
        "interaction_ex": _share(all(turn.verdict.ex is True for turn in own) for own in dialogues.values()),
        "interaction_em": _share(all(turn.verdict.em is True for turn in own) for own in dialogues.values()),
        "ex_gold_runs": _share(verdict.ex is True for verdict in gradable),
        "gold_failed": len(verdicts) - len(gradable),
        "ex_gold_not_empty": _share(verdict.ex is True for verdict in not_empty),
        "both_empty": sum(verdict.both_empty for verdict in verdicts),
        "em_raised": sum(verdict.em is None for verdict in verdicts),
        "by_turn": _groups(scored, lambda turn: turn.bucket, TURN_BUCKETS),
        "by_hardness": _groups(scored, lambda turn: turn.verdict.hardness or "unknown", (*HARDNESS, "unknown")),
        "partial": partial_averages(verdicts),
    }


def _groups(turns: Sequence[ScoredTurn], name: Any, order: Sequence[str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Verdict]] = defaultdict(list)
    for turn in turns:
        groups[name(turn)].append(turn.verdict)
    return {group: _rates(groups[group]) for group in order if group in groups}


def _rates(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "turns": len(verdicts),
        "ex": _share(verdict.ex is True for verdict in verdicts),
        "em": _share(verdict.em is True for verdict in verdicts),
        "em_sound": _share(verdict.em_sound is True for verdict in verdicts),
    }


def _share(values: Iterable[bool]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def partial_averages(verdicts: Iterable[Verdict]) -> dict[str, dict[str, float]]:
    """
    Per clause: `acc` over pairs whose prediction has the clause, `rec` over pairs whose gold has it, `f1` of the two
    averages (1.0 when both are 0, as the official program says).
    """
    acc: dict[str, list[int]] = defaultdict(list)
    rec: dict[str, list[int]] = defaultdict(list)
    for verdict in verdicts:
        partial: Mapping[str, list[int]] = verdict.partial or {}
        for clause, (right, _, _, gold_count, pred_count) in partial.items():
            acc[clause] += [right] if pred_count > 0 else []
            rec[clause] += [right] if gold_count > 0 else []
    return {clause: _averages(acc[clause], rec[clause]) for clause in dict.fromkeys([*acc, *rec])}


def _averages(acc: Sequence[int], rec: Sequence[int]) -> dict[str, float]:
    precision = sum(acc) / len(acc) if acc else 0.0
    recall = sum(rec) / len(rec) if rec else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 1.0
    return {"acc": precision, "rec": recall, "f1": f1}
