"""The figures of the findings, as SVG: the same data give the same bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.findings import Number, Share, over_seeds
from evaluation.paired import Effect, Mean, contrast
from stages.findings import Family, Finding, seeds_text, stage_of
from stages.plan import policy_stages

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"shown": "#0072B2", "opposite": "#D55E00", "not shown": "#888888"}
_STYLE: Any = {
    "svg.hashsalt": "findings",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}
_MINUS, _PLUS = "\N{MINUS SIGN}", "+"


def draw_figures(family: Family, findings: Sequence[Finding], folder: Path, kind: str = "svg") -> list[str]:
    """
    Writes the figures for which there are numbers, one file each; returns their names. One that was drawn before and
    cannot be drawn now is deleted, so that no page shows an old one.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, draw in (("ex_by_round", _ex_by_round), ("coverage_by_round", _coverage), ("effects", _effects)):
        path = folder / f"{name}.{kind}"
        with rc_context(_STYLE):
            figure = Figure(layout="constrained")
            if draw(family, findings, figure):
                figure.savefig(path, dpi=110, metadata={"Date": None} if kind == "svg" else None)
                drawn.append(name)
            else:
                path.unlink(missing_ok=True)
    return drawn


def _ex_by_round(family: Family, findings: Sequence[Finding], figure: "Figure") -> bool:
    """Levels, not gains: their intervals hold what makes items hard for all, so they are wider than the effects'."""
    policies = policy_stages(family.run(family.lineage, family.seeds[0]).plan.profile)
    line = [name for name in policies if name in ("base", "grpo") or name.startswith("round_")]
    places = {name: float(number) for number, name in enumerate(line)}
    axes = figure.subplots()
    series = {
        "EX": ("ex", line, "#0072B2", "o"),
        "interaction EX": ("interaction_ex", line, "#009E73", "s"),
        "EX of the control": ("ex", [name for name in policies if name.startswith("control_")], "#888888", "D"),
    }
    places |= {"control_sft": len(line) - 2 + 0.12, "control_grpo": len(line) - 1 + 0.12}
    for label, (measure, names, colour, marker) in series.items():
        levels = {name: level for name in names if (level := _level(family, name, measure))}
        if levels:
            _points(axes, [places[name] for name in levels], list(levels.values()), label, colour, marker)
    axes.set_xticks(range(len(line)), [name.replace("_", " ").replace("grpo", "GRPO") for name in line])
    axes.set_ylabel("right on dev, %")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_title(f"EX by round, 95 % intervals ({seeds_text(family.seeds)})", loc="left")
    if axes.has_data():
        axes.legend(frameon=False)
    return axes.has_data()


def _level(family: Family, policy: str, measure: str) -> Effect | None:
    share = Share(family.lineage, policy, measure)
    if any(run.lacks(stage_of(share)) for run in family.runs(family.lineage)):
        return None
    return contrast([(100, Mean(family.tables(share), measure))])


def _points(axes: "Axes", at: list[float], levels: list[Effect], label: str, colour: str, marker: str) -> None:
    middle = [level.effect for level in levels]
    around = [[level.effect - level.low for level in levels], [level.high - level.effect for level in levels]]
    joined = "" if label.endswith("control") else "-"
    axes.errorbar(
        at, middle, around, label=label, color=colour, marker=marker, linestyle=joined, capsize=3, markersize=5
    )


def _coverage(family: Family, findings: Sequence[Finding], figure: "Figure") -> bool:
    """A thin line per seed, and their mean."""
    rounds = range(1, family.run(family.lineage, family.seeds[0]).plan.profile.rounds + 1)
    numbers = [Number(family.lineage, f"round_{number}/selected", "coverage") for number in rounds]
    if any(run.lacks(number.stage) for number in numbers for run in family.runs(family.lineage)):
        return False
    shares = [[100 * share for share in family.numbers(number)] for number in numbers]  # (rounds, seeds)
    axes = figure.subplots()
    for number, values in enumerate(zip(*shares, strict=True)):
        axes.plot(rounds, values, color="#888888", linewidth=0.8, marker=".", label="" if number else "each seed")
    axes.plot(rounds, [over_seeds(values).effect for values in shares], color="#0072B2", marker="o", label="mean")
    axes.set_xticks(list(rounds), [f"round {number}" for number in rounds])
    axes.set_ylabel("train items solved so far, %")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_title(f"Coverage by round ({seeds_text(family.seeds)})", loc="left")
    axes.legend(frameon=False)
    return True


def _effects(family: Family, findings: Sequence[Finding], figure: "Figure") -> bool:
    """A forest plot: claims in points, group by group; a label ends in the sign that its claim expects."""
    shown = [one for one in findings if one.effect and one.claim.unit == "points"]
    if not shown:
        return False
    rows: list[Finding | str] = []
    for finding in shown:
        if finding.claim.group not in rows:
            rows.append(finding.claim.group)
        rows.append(finding)
    labels = []
    axes = figure.subplots()
    for place, row in enumerate(rows):
        if isinstance(row, str):
            labels.append(row)
            continue
        effect, colour = row.effect, _COLOURS[row.verdict]
        assert effect is not None
        labels.append(f"{row.claim.sentence.rstrip('.')}  ({_PLUS if row.claim.sign > 0 else _MINUS})")
        axes.plot([effect.low, effect.high], [place, place], color=colour, linewidth=1.6)
        axes.plot(effect.effect, place, "o", color=colour, markersize=4.5)
        if row.claim.paper is not None:
            axes.plot(row.claim.paper, place, "D", markerfacecolor="none", markeredgecolor="black", markersize=4)
    for verdict, colour in _COLOURS.items():
        axes.plot([], [], "o-", color=colour, label=verdict)
    axes.plot([], [], "D", markerfacecolor="none", markeredgecolor="black", label="paper (Qwen3-4B, CoSQL)")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), labels)
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if isinstance(row, str) else "normal")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(
        "effect in points, with its 95 % interval; (+) or (\N{MINUS SIGN}): the sign that the claim expects"
    )
    axes.grid(axis="x", alpha=0.3)
    axes.tick_params(axis="y", length=0)
    figure.set_size_inches(12, 1.5 + 0.22 * len(rows))
    figure.legend(loc="outside upper right", ncols=4, frameon=False)
    return True
