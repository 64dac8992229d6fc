"""
What must hold between artifacts, as plain functions over a plan.

In the order in which they save time: gold that runs, splits that share nothing, trained tokens that are the agent's own.
These block. Inputs that are not current and comparisons of policies warn: a negative result is a result.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from evaluation.items import shared_between_splits
from stages.plan import Plan
from text2sql.artifacts import Artifact

_GOLD_FAULT_SHARE = 0.05


@dataclass(frozen=True)
class CheckResult:
    passed: bool
    description: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """`stage` is the artifact that is looked at; a blocking check that fails keeps later stages from running."""

    name: str
    stage: str
    function: Callable[[Plan, Artifact], CheckResult]
    blocking: bool
    description: str


def gold_sql_executes(plan: Plan, artifact: Artifact) -> CheckResult:
    """Of the turns whose database is there, at most 5 % have gold that fails; each is listed."""
    table = pl.read_parquet(artifact.path / "audit.parquet").filter(~pl.col("fault").str.starts_with("database"))
    failing = table.filter(pl.col("fault") != "")
    share = failing.height / max(table.height, 1)
    return CheckResult(
        share <= _GOLD_FAULT_SHARE,
        f"{failing.height} of {table.height} gold queries with a database cannot be graded ({share:.2%}).",
        {"failing": failing.height, "turns": table.height},
    )


def splits_share_nothing(plan: Plan, artifact: Artifact) -> CheckResult:
    """Train, validation and dev have no dialogue in common and, when split by database, no database either."""
    by = "db_id" if plan.profile.benchmark.split_by == "database" else "dialogue_id"
    shared = shared_between_splits(pl.read_parquet(artifact.path / "turns.parquet", columns=["split", by]), by)
    figures = {f"{first} and {second}": values[:20] for (first, second), values in shared.items()}
    return CheckResult(not shared, f"{sum(map(len, shared.values()))} shared ({by}).", figures)


def trained_tokens_are_the_agents_own(plan: Plan, artifact: Artifact) -> CheckResult:
    """
    In the trajectories chosen for training, the prompt's and the environment's tokens are exactly what comes out when
    the model's own messages are replayed through the environment: nothing else is left for the loss mask to mark. The
    replay needs the tokenizer, so the stage does it and this reads the result.
    """
    differences = json.loads((artifact.path / "replay.json").read_text(encoding="utf-8"))
    replayed = artifact.metrics["kept_now"]
    text = f"{replayed} trajectories replayed, {len(differences)} come out differently."
    return CheckResult(not differences, text, {"replayed": replayed, "differences": differences[:10]})


def inputs_are_current(plan: Plan, artifact: Artifact) -> CheckResult:
    """The artifact, and each that it rests on, was made from the builds of its inputs that are there now."""
    stale = {}
    for key in plan.upstream(artifact.stage):
        made = plan.find(key)
        recorded = made.manifest["inputs"] if made else {}
        current = plan.input_builds(key)
        if roles := [role for role, build in recorded.items() if current.get(role) != build]:
            stale[key] = [plan.stages[key].inputs.get(role, role) for role in roles]
    found = "; ".join(f"{key} was made from earlier builds of {', '.join(inputs)}" for key, inputs in stale.items())
    text = f"{found}." if stale else "All inputs are the ones that are there now."
    return CheckResult(not stale, text, {"stale_inputs": stale})


WARM_START = "warm start"
"""Stands for the policy after the experiment's last round: base, if it has none."""


def beats(better: str, worse: str) -> Callable[[Plan, Artifact], CheckResult]:
    """A check that policy `better` is not below `worse` in EX on dev; it says so where the interval holds zero."""

    def compare(plan: Plan, artifact: Artifact) -> CheckResult:
        rounds = plan.profile.rounds
        last = f"round_{rounds}" if rounds else "base"
        one, other = (last if name == WARM_START else name for name in (better, worse))
        high, low = (artifact.metrics.get(name, {}).get("ex") for name in (one, other))
        if high is None or low is None or one == other:
            return CheckResult(True, f"This experiment does not compare {one} with {other}.")
        said = f"EX of {one} {high:.1%}, of {other} {low:.1%}{_interval(artifact, one, other)}."
        return CheckResult(high >= low, said, {"difference": high - low})

    return compare


def _interval(report: Artifact, one: str, other: str) -> str:
    """The gain as the report has it, in points."""
    gain = report.metrics.get("gains", {}).get(f"{one}_over_{other}", {})
    if "ex_effect" not in gain:
        return ""
    effect, low, high = (100 * gain[f"ex_{part}"] for part in ("effect", "low", "high"))
    chance = ", which may be chance" if low <= 0 <= high else ""
    return f": {effect:+.1f} points [{low:+.1f}, {high:+.1f}]{chance}"


def lineage_check_list(rounds: int) -> list[Check]:
    """All checks of a lineage with up to that many rounds."""
    checks = [
        Check("gold_sql_executes", "benchmark", gold_sql_executes, True, gold_sql_executes.__doc__ or ""),
        Check("splits_share_nothing", "turns", splits_share_nothing, True, splits_share_nothing.__doc__ or ""),
    ]
    checks += [
        Check(
            "trained_tokens_are_the_agents_own",
            f"round_{number}/selected",
            trained_tokens_are_the_agents_own,
            True,
            trained_tokens_are_the_agents_own.__doc__ or "",
        )
        for number in range(1, rounds + 1)
    ]
    checks += [
        Check("inputs_are_current", "report", inputs_are_current, False, inputs_are_current.__doc__ or ""),
        Check(
            "sft_beats_base",
            "report",
            beats(WARM_START, "base"),
            False,
            "EX of the last round is not below the base's.",
        ),
        Check(
            "grpo_beats_sft", "report", beats("grpo", WARM_START), False, "EX after GRPO is not below the last round's."
        ),
        Check(
            "sft_beats_control",
            "report",
            beats(WARM_START, "control_sft"),
            False,
            "EX of the last round is not below that after as much more training on the base's own data.",
        ),
        Check(
            "grpo_beats_control",
            "report",
            beats("grpo", "control_grpo"),
            False,
            "EX after GRPO is not below that after as much SFT on right attempts at the same items.",
        ),
    ]
    return checks
