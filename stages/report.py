"""The report: every policy of an experiment side by side, and coverage over the rounds."""

from dataclasses import asdict
from typing import Any

from stages.context import StageContext
from stages.gains import gain_figures, gains, gains_table
from text2sql.errors import ArtifactError


def make_report(context: StageContext) -> dict[str, Any]:
    """Writes report.json and report.md; returns the headline figures of each policy for the lineage run."""
    policies = [role for role in context.inputs if not role.startswith("coverage_")]
    rounds = [role for role in context.inputs if role.startswith("coverage_")]
    coverage = {role.replace("coverage", "round"): context.json(role, "coverage.json") for role in rounds}
    metric_version = _one_metric_version({name: str(context.inputs[name].manifest["version"]) for name in policies})
    rows = [_row(name, context.inputs[name].metrics, coverage.get(name)) for name in policies]
    suite = any("ex_suite" in row for row in rows)
    breakdown = {name: context.json(name, "totals.json") for name in policies}
    compared = gains(context)
    report: dict[str, Any] = {"metric_version": metric_version, "policies": rows, "coverage": coverage}
    report |= {"totals": breakdown, "gains": [asdict(gain) for gain in compared]}
    context.write_json("report.json", report)
    text = "\n".join(
        [
            f"# {context.profile.name}",
            "",
            f"Benchmark {context.profile.benchmark.name}, prior {context.profile.evaluation.prior}; EX and EM as the "
            f"official evaluator computes them (version {metric_version} of the rules), on the turns that can be "
            "graded, of dev unless a policy's name says otherwise."
            + (" Suite EX: right on generated neighbours of the database, too (docs/rules.md)." if suite else ""),
            "",
            *_markdown(rows, suite),
            "",
            "Unseen gold: turns whose SQL no turn of train or validation has. Mended: turns whose first proposal was "
            "wrong and whose answer is right; broken: the reverse.",
            "",
            "## Gains",
            "",
            *gains_table(compared),
            "",
            "## EX by turn",
            "",
            *_breakdown(breakdown, "by_turn", "ex"),
            "",
            "## EX by hardness",
            "",
            *_breakdown(breakdown, "by_hardness", "ex"),
            "",
            *(["## Suite EX by hardness", "", *_breakdown(breakdown, "by_hardness", "ex_suite"), ""] if suite else []),
        ]
    )
    (context.out / "report.md").write_text(text, encoding="utf-8")
    context.say(f"{len(rows)} policies compared in report.md")
    keys = ("ex", "ex_suite", "em", "interaction_ex", "tool_calls")
    figures = {row["policy"]: {key: row[key] for key in keys if key in row} for row in rows}
    shares = {name: values["coverage"] for name, values in coverage.items()}
    return {**figures, "coverage": shares, "gains": gain_figures(compared)}


def _one_metric_version(versions: dict[str, str]) -> str:
    """The plan gives scores of one version only; whoever puts scores together by hand gets an error, not a table."""
    if len(set(versions.values())) > 1:
        raise ArtifactError(f"Scores by different versions of the metric do not go into one table: {versions}.")
    return next(iter(versions.values()), "")


def _row(name: str, metrics: Any, coverage: Any) -> dict[str, Any]:
    keys = (
        *("ex", "em", "em_sound", "interaction_ex", "interaction_em", "answered", "tool_calls", "turns"),
        *("unseen_gold", "ex_unseen_gold", "mended", "broken"),
    )
    suite = [key for key in ("ex_suite", "ex_unmasked") if key in metrics]
    solved = coverage and f"{coverage['solved_now']} of {coverage['tried']}"
    figures = {key: metrics[key] for key in (*keys, *suite)}
    return {"policy": name, **figures, "solved": solved, "coverage": coverage and coverage["coverage"]}


def _markdown(rows: list[dict[str, Any]], suite: bool) -> list[str]:
    shares = {
        "ex": "EX",
        **({"ex_suite": "suite EX"} if suite else {}),
        "em": "EM",
        "em_sound": "EM sound",
        "interaction_ex": "interaction EX",
        "interaction_em": "interaction EM",
        "answered": "answered",
    }
    training = ("unseen gold", "EX on it", "mended, broken", "solved", "coverage")
    columns = ("policy", *shares.values(), "tool calls", *training)

    def cells(row: dict[str, Any]) -> list[str]:
        coverage = "" if row["coverage"] is None else f"{row['coverage']:.1%}"
        return [
            row["policy"],
            *(_share(row.get(key)) for key in shares),
            f"{row['tool_calls']:.2f}",
            *(_share(row[key]) for key in ("unseen_gold", "ex_unseen_gold")),
            f"{row['mended']}, {row['broken']}",
            row["solved"] or "",
            coverage,
        ]

    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    return lines + [f"| {' | '.join(cells(row))} |" for row in rows]


def _breakdown(totals: dict[str, Any], part: str, measure: str) -> list[str]:
    """
    A table for each split, with the policies as rows and the groups (turns, hardness) as columns; group sizes in the
    header.
    """
    splits: dict[str, dict[str, Any]] = {}
    for evaluation, total in totals.items():
        splits.setdefault(evaluation.partition("/")[2], {})[evaluation] = total
    tables = [_groups(own, part, measure) for own in splits.values()]
    return [line for table in tables for line in (*table, "")][:-1]


def _groups(totals: dict[str, Any], part: str, measure: str) -> list[str]:
    groups: dict[str, int] = {}
    for total in totals.values():
        groups |= {name: values["turns"] for name, values in total[part].items()}
    header = ["policy", *(f"{name} ({count})" for name, count in groups.items())]
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    for policy, total in totals.items():
        cells = [_share(total[part].get(name, {}).get(measure)) for name in groups]
        lines.append(f"| {' | '.join([policy, *cells])} |")
    return lines


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
