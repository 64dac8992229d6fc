"""The page of findings: what is shown and what not, and the way from each number to the trajectories behind it."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from evaluation.findings import VERDICTS, Claim
from evaluation.paired import Effect
from stages.claims import CONTROLS, FAMILY
from stages.figures import draw_figures
from stages.findings import Family, Finding, seconds_of, seeds_text
from stages.plan import evaluated_policies
from text2sql.artifacts import Artifact
from text2sql.errors import ArtifactError

_FIGURE_TEXTS = {
    "ex_by_round": "EX on dev after each round and after GRPO, with the controls beside it",
    "coverage_by_round": "Share of the train items that the rounds so far have solved",
    "effects": "Effect of every claim with its interval",
}


def write_findings(family: Family, out: Path) -> list[Finding]:
    """
    Judges all claims; writes `out`/findings.md and the figures that can be drawn to `out`/figures. Raises ArtifactError
    where nothing is measured and a page is there already: it would be lost for one that says nothing.
    """
    findings = [family.judge(claim) for claim in family.claims]
    if (out / "findings.md").exists() and all(finding.verdict == "not measured" for finding in findings):
        raise ArtifactError(
            f"No claim is measured by the artifacts that are here, so {out / 'findings.md'} stays as it is. Run "
            "`make findings`, or name another folder with --out to see what is missing."
        )
    drawn = draw_figures(family, findings, out / "figures")
    (out / "findings.md").write_text(page(family, findings, drawn), encoding="utf-8")
    return findings


def page(family: Family, findings: Sequence[Finding], figures: Iterable[str] = ()) -> str:
    """Markdown; `figures` are the names of those that were drawn."""
    groups = list(dict.fromkeys(finding.claim.group for finding in findings))
    sections = [
        "# Findings in miniature",
        "Written by `make findings` (`python -m pipelines findings`); a change by hand is lost with the next.",
        head(family, findings),
        *(f"![{_FIGURE_TEXTS[name]}](figures/{name}.svg)" for name in figures),
        _LEGEND,
        *(_group(group, findings) for group in groups),
        _explained(findings),
        _missing(findings),
        _carried_over(family),
        _OPENED,
        _experiments(family),
        _evaluations(family),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


_LEGEND = """\
## How to read this

The **effect** is what the claim names first minus what it compares with: points (hundredths) of EX unless the claim
says otherwise, on the turns of dev that can be graded, answered greedily. Its **interval** holds 95 % of a bootstrap that
draws dialogues and seeds, paired on the same items (docs/decisions/0010); for coverage and seconds, of which there is one
number per seed, it is Student's. Seconds are those of the last attempt where a stage was stopped and gone on with.

- **shown**: the whole interval is on the side of zero that the claim expects.
- **opposite**: the whole interval is on the other side.
- **not shown**: the interval holds zero. There may be no effect, or one too small for so many turns and seeds.
- **not measured**: something that the claim rests on has not been made; it is named in a list below.

**Paper**: the same difference between published scores of Qwen3-4B on CoSQL; those by turn and hardness are read off
bars whose warm start is another checkpoint than in the main table. A small model made from scratch, on generated
dialogues, can share its sign and hardly its size. **Behind it**: the time of all stages that the number rests on,
training included, over all seeds; claims share most of them. The **sister benchmark** is dev in other words
(`dev_phrasing`): the same databases and intents in phrasing that training never joins.

**The untrained agent** is the base policy (for a model made from scratch: after its bootstrap), **the warm start** the
policy after round 3, **the agent** that after GRPO; **training** is all between the base policy and the agent. **Train
items** that rounds solve are those that the bootstrap has not read. **As much**: the control of the warm start takes the
optimizer steps of all rounds and, as nearly as whole rows allow, their trained tokens; that of GRPO as many tokens through
the model, in many more steps of smaller batches (docs/decisions/0009)."""

_OPENED = """\
## How each number is opened

On the machine where the experiments were run. Elsewhere they are run first: fingerprints stay, ids of MLflow runs do not.

1. `make ui`, then MLflow on port 5000: in the experiment `demo` each stage is a run of its own, found by
   `tags.fingerprint = '...'` with a fingerprint from the last table. Runs are named like their stage
   (`evaluation/grpo/scores`) and tagged with `experiment`, and with `artifact`, their folder.
2. The folder of a score run holds `scores.parquet`, a row per turn: `item_id`, gold, final and first SQL, verdicts,
   parts of the reward, calls, class of error. Every effect is a mean of its columns (`stages/claims.py` says which).
3. Its dataset `evaluation/<policy>/predictions` has the fingerprint of the trajectories as digest, and their folder as
   source. There `shards/*.jsonl` has a line per trajectory: by `item_id`, every message, call, reply and verdict.
4. The datasets of that run lead on to the policy, and from there to what it was trained on."""


def head(family: Family, findings: Sequence[Finding]) -> str:
    """What the counts of verdicts say, without a word that they do not carry."""
    counts = Counter(finding.verdict for finding in findings)
    measured = [finding for finding in findings if finding.effect]
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    text = f"**{len(findings)} claims: {said}**, with {seeds_text(family.seeds)}."
    if not measured:
        return text
    turns = max(finding.effect.turns for finding in measured if finding.effect)
    by_luck = len(measured) / 20
    text += f" The largest comparisons are over {turns} turns."
    if len(family.seeds) == 1:
        text += " One seed is one training: nothing here says that another would do the same."
    text += (
        f" Where there is no effect, one interval in twenty still misses zero: about {by_luck:.0f} of {len(measured)}, and "
        "more where few seeds lie far apart (docs/decisions/0010), so a single verdict at the edge of zero is not to be "
        "leaned on."
    )
    lists = {
        "Gains over the controls, which are what counts as evidence for the method": [
            f"{_name(finding.claim)} {finding.verdict}" for finding in findings if finding.claim.group == CONTROLS
        ],
        "Opposite to the claim": [_name(finding.claim) for finding in findings if finding.verdict == "opposite"],
        "Not shown, although published": [
            _name(finding.claim)
            for finding in findings
            if finding.verdict == "not shown" and finding.claim.paper is not None
        ],
        "Both sides are the same in every turn and seed, so nothing was compared": [
            _name(finding.claim)
            for finding in measured
            if finding.effect and finding.effect.low == finding.effect.high == 0
        ],
    }
    return "\n\n".join([text, *(f"{title}: {', '.join(names)}." for title, names in lists.items() if names)])


def _group(group: str, findings: Sequence[Finding]) -> str:
    rows = [
        [
            f"{_name(finding.claim)} {finding.claim.sentence}",
            effect_text(finding.effect, finding.claim),
            _paper(finding.claim),
            f"**{finding.verdict}**" if finding.verdict != "not shown" else finding.verdict,
            _basis(finding.effect),
            _duration(finding.seconds) if finding.effect else "",
            ", ".join(_short(name) for name in _experiments_of(finding.claim)),
        ]
        for finding in findings
        if finding.claim.group == group
    ]
    header = ("claim", "effect", "paper", "verdict", "turns, seeds", "behind it", "experiments")
    return f"## {group}\n\n{_table(header, rows)}"


def _explained(findings: Sequence[Finding]) -> str:
    otherwise = [
        (finding.claim.otherwise, f"{_name(finding.claim)} ({finding.verdict})")
        for finding in findings
        if finding.verdict in ("opposite", "not shown") and finding.claim.otherwise
    ]
    return _reasons("## Not as claimed: the best explanations at hand", otherwise)


def _missing(findings: Sequence[Finding]) -> str:
    waiting = [
        ("; ".join(finding.reasons), _name(finding.claim)) for finding in findings if finding.verdict == "not measured"
    ]
    return _reasons("## Not measured, and why", waiting)


def _reasons(title: str, named: Iterable[tuple[str, str]]) -> str:
    """A list of reasons, each with the names of all that it holds for; nothing where there is none."""
    names: dict[str, list[str]] = {}
    for reason, name in named:
        names.setdefault(reason, []).append(name)
    lines = [f"- {', '.join(held)}: {reason}" for reason, held in names.items()]
    return "\n".join([title, "", *lines]) if lines else ""


def _carried_over(family: Family) -> str:
    """Trainings that had nothing to train on: an effect of exactly zero then says nothing of the method."""
    lines = dict.fromkeys(
        f"- {artifact.manifest['experiment']}: `{artifact.stage}`"
        for experiment in family.experiments
        for artifact in _made(family, experiment)
        if artifact.metrics.get("carried_over")
    )
    title = "## Policies carried over\n\nThese stages had nothing to train on and pass on the policy before them:\n"
    return "\n".join([title, *lines]) if lines else ""


def _experiments(family: Family) -> str:
    """Each experiment with the command that makes it, and the time of the stages that no experiment above has."""
    counted: set[tuple[str, str]] = set()
    rows = []
    for experiment in family.experiments:
        own = {(one.stage, one.fingerprint): one for one in _made(family, experiment)}
        fresh = own.keys() - counted
        counted |= own.keys()
        profile = family.run(experiment, family.seeds[0]).plan.profile
        command = f"`python -m pipelines run {experiment}@SEED`"
        took = _duration(seconds_of(own[key] for key in fresh)) if fresh else "not made"
        rows.append([_short(experiment), profile.description, command, took])
    header = (
        "experiment",
        "what it is",
        f"made by, for SEED {', '.join(map(str, family.seeds))}",
        "stages that no row above has, all seeds",
    )
    return (
        f"{_table(header, rows)}\n\n`make findings` runs them all, one after the other, and goes on where it stopped."
    )


def _evaluations(family: Family) -> str:
    rows = []
    for experiment in family.experiments:
        for run in family.runs(experiment):
            for policy in evaluated_policies(run.plan.profile):
                for stage in (f"evaluation/{policy}/scores", f"evaluation/{policy}/dev_phrasing/scores"):
                    if artifact := run.find(stage):
                        rows.append(_evaluation(run.plan.profile.name, stage, artifact))
    header = ("experiment", "scores of", "EX", "turns", "unseen gold", "fingerprint", "trajectories", "MLflow run")
    table = _table(header, rows)
    return f"<details><summary>All scores and their trajectories</summary>\n\n{table}\n\n</details>" if rows else ""


def _evaluation(name: str, stage: str, artifact: Artifact) -> list[str]:
    metrics = artifact.metrics
    shown = [f"{metrics['ex']:.1%}", str(metrics["turns"]), f"{metrics['unseen_gold']:.0%}"]
    _, predictions = artifact.manifest["input_stages"]["predictions"]
    of = stage.removeprefix("evaluation/").removesuffix("/scores")
    run_id = artifact.manifest["mlflow"]["run_id"]
    return [_short(name), of, *shown, *(f"`{value}`" for value in (artifact.fingerprint, predictions, run_id))]


def _made(family: Family, experiment: str) -> list[Artifact]:
    found = [run.find(key) for run in family.runs(experiment) for key in run.plan.stages]
    return [artifact for artifact in found if artifact]


def _experiments_of(claim: Claim) -> list[str]:
    return list(dict.fromkeys(source.experiment for _, source in claim.terms))


def effect_text(effect: Effect | None, claim: Claim) -> str:
    if effect is None:
        return ""
    unit = "" if claim.unit == "points" else f" {claim.unit}"
    if math.isinf(effect.low):
        return f"{effect.effect:+.1f}{unit} (one seed: no interval)"
    return f"{effect.effect:+.1f} [{effect.low:+.1f}, {effect.high:+.1f}]{unit}"


def _paper(claim: Claim) -> str:
    return claim.place if claim.paper is None else f"{claim.paper:+.1f} ({claim.place})"


def _basis(effect: Effect | None) -> str:
    if effect is None:
        return ""
    return f"{effect.turns}, {effect.seeds}" if effect.turns else f"{effect.seeds} seeds"


def _name(claim: Claim) -> str:
    return f"`{claim.name}`"


def _short(experiment: str) -> str:
    return experiment.removeprefix(f"{FAMILY}/")


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.0f} min"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}", *lines])
