"""What each part of the training gained: over what it started from, and over its control."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from evaluation.paired import Effect, paired_effect
from stages.context import StageContext, evaluation_name

MEASURES = {"ex": "EX", "interaction_ex": "interaction EX"}


@dataclass(frozen=True)
class Gain:
    """The effect of one policy over another on the same items, for each of MEASURES; None where no turn is graded."""

    policy: str
    over: str
    effects: Mapping[str, Effect | None]


def gains(context: StageContext) -> list[Gain]:
    """Every comparison that the inputs of the report allow, split by split."""
    found = []
    for split in context.profile.evaluation.splits:
        policies = dict.fromkeys(role.partition("/")[0] for role in context.inputs)
        scored = [policy for policy in policies if evaluation_name(policy, split) in context.inputs]
        for pair in comparisons(scored):
            policy, over = (evaluation_name(name, split) for name in pair)
            before, after = ([pl.read_parquet(context.path(name, "scores.parquet"))] for name in (over, policy))
            found.append(Gain(policy, over, {measure: paired_effect(before, after, measure) for measure in MEASURES}))
    return found


def comparisons(policies: Sequence[str]) -> list[tuple[str, str]]:
    """Which of these policies is compared with which, in the order of the lineage."""
    rounds = [name for name in policies if name.startswith("round_")]
    last = rounds[-1] if rounds else ""
    wanted = [
        *((last, "base"), (last, "control_sft"), ("grpo", last), ("grpo", "control_grpo")),
        *zip(rounds, ["base", *rounds], strict=False),
    ]
    return [pair for pair in dict.fromkeys(wanted) if set(pair) <= set(policies)]


def gains_table(found: Sequence[Gain]) -> list[str]:
    """Markdown: a line a comparison, in points, and a sentence that says what is shown."""
    if not found:
        return ["No two policies that belong side by side are evaluated here."]
    header = ("gain of", "over", *MEASURES.values())
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    for gain in found:
        lines.append(f"| {' | '.join([gain.policy, gain.over, *map(_points, gain.effects.values())])} |")
    return [*lines, "", verdict(found)]


def verdict(found: Sequence[Gain]) -> str:
    """What the intervals say, in words."""
    named = {
        f"{MEASURES[measure]} of {gain.policy} over {gain.over}": effect
        for gain in found
        for measure, effect in gain.effects.items()
        if effect
    }
    up = [name for name, effect in named.items() if effect.low > 0]
    down = [name for name, effect in named.items() if effect.high < 0]
    shown = [f"gains in {', '.join(up)}"] * bool(up) + [f"losses in {', '.join(down)}"] * bool(down)
    said = f"Shown, by an interval on one side of zero: {'; '.join(shown)}. Not shown: all else in this table."
    if not shown:
        said = "No gain and no loss is shown: every interval holds zero."
    return f"{said} Points, with 95 % intervals over dialogues, of this one training: other seeds can differ."


def gain_figures(found: Sequence[Gain]) -> dict[str, dict[str, float]]:
    """Effects and bounds as flat numbers by `<policy>_over_<other>`, for the lineage run."""
    return {
        f"{gain.policy}_over_{gain.over}": {
            f"{measure}_{part}": getattr(effect, part)
            for measure, effect in gain.effects.items()
            if effect
            for part in ("effect", "low", "high")
        }
        for gain in found
    }


def _points(effect: Effect | None) -> str:
    if effect is None:
        return ""
    return f"{100 * effect.effect:+.1f} [{100 * effect.low:+.1f}, {100 * effect.high:+.1f}]"
