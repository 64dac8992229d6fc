"""Judge every claim by what the experiments of the family have left in the store."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from evaluation.findings import Claim, Number, Share, Source, Verdict, effect_of, verdict_on
from evaluation.paired import Effect
from stages.claims import CLAIMS, LINEAGE
from stages.context import evaluation_name
from stages.plan import Plan
from text2sql.artifacts import Artifact, State
from text2sql.config import Settings, load_profile
from text2sql.errors import DataError


@dataclass(frozen=True)
class Finding:
    """`reasons` say why a claim is not measured; `seconds` is what all stages behind it took, over all seeds."""

    claim: Claim
    verdict: Verdict
    effect: Effect | None = None
    seconds: float = 0.0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One experiment with one seed: its plan, and the state of its stages when it was looked at."""

    plan: Plan

    @cached_property
    def states(self) -> dict[str, State]:
        return self.plan.states()

    def find(self, stage: str) -> Artifact | None:
        """The complete artifact of `stage`."""
        return self.plan.find(stage) if self.states.get(stage) == "complete" else None

    def artifact(self, stage: str) -> Artifact:
        """The same, where it is known to be there."""
        found = self.find(stage)
        assert found is not None
        return found

    def lacks(self, stage: str) -> str | None:
        """Why there is no complete artifact of `stage`, with the first stage that has to be made; None if there is."""
        name = self.plan.profile.name
        if stage not in self.plan.stages:
            return f"{name} has no {stage}"
        first = next((key for key in self.plan.upstream(stage) if self.states[key] != "complete"), stage)
        state = self.states[first]
        if state == "complete":
            return None
        return f"{name}: {stage} " + (f"is {state}" if first == stage else f"waits for {first}, which is {state}")


@dataclass(frozen=True)
class Family:
    """All experiments that `claims` name, each with all `seeds`; `lineage` is the one whose rounds are drawn."""

    settings: Settings
    seeds: Sequence[int]
    claims: Sequence[Claim] = CLAIMS
    lineage: str = LINEAGE
    _runs: dict[str, Run] = field(default_factory=dict)

    @property
    def experiments(self) -> list[str]:
        """In the order in which the claims name them."""
        return list(dict.fromkeys(source.experiment for claim in self.claims for _, source in claim.terms))

    def run(self, experiment: str, seed: int) -> Run:
        name = f"{experiment}@{seed}"
        if name not in self._runs:
            self._runs[name] = Run(Plan(load_profile(name, self.settings.experiments), self.settings))
        return self._runs[name]

    @property
    def names(self) -> list[str]:
        """Every experiment with every seed, as `pipelines run` takes it."""
        return [f"{experiment}@{seed}" for experiment in self.experiments for seed in self.seeds]

    def runs(self, experiment: str) -> list[Run]:
        return [self.run(experiment, seed) for seed in self.seeds]

    def tables(self, share: Share) -> list[pl.DataFrame]:
        """The score table of each seed."""
        artifacts = (run.artifact(stage_of(share)) for run in self.runs(share.experiment))
        return [pl.read_parquet(artifact.path / "scores.parquet") for artifact in artifacts]

    def numbers(self, number: Number) -> list[float]:
        """The number of each seed; raises DataError when the stage recorded no such number."""
        artifacts = [run.artifact(number.stage) for run in self.runs(number.experiment)]
        recorded = [{**one.metrics, "seconds": one.manifest["seconds"]} for one in artifacts]
        if not all(number.key in figures for figures in recorded):
            raise DataError(f"{number.stage} has no number '{number.key}'. It has: {', '.join(recorded[0])}.")
        return [float(figures[number.key]) for figures in recorded]

    def judge(self, claim: Claim) -> Finding:
        """Never raises for what is missing or does not fit: that is a reason, and the claim is not measured."""
        stages = [
            (run, stage_of(source))
            for source in dict.fromkeys(source for _, source in claim.terms)
            for run in self.runs(source.experiment)
        ]
        reasons = [reason for run, stage in stages if (reason := run.lacks(stage))]
        if reasons:
            return Finding(claim, "not measured", reasons=tuple(dict.fromkeys(reasons)))
        try:
            effect = effect_of(claim, self.tables, self.numbers)
        except DataError as error:
            return Finding(claim, "not measured", reasons=(str(error),))
        if effect is None:
            return Finding(claim, "not measured", reasons=("no turn is left to compare",))
        behind = [run.artifact(key) for run, stage in stages for key in run.plan.upstream(stage)]
        return Finding(claim, verdict_on(claim, effect), effect, seconds_of(behind))


def stage_of(source: Source) -> str:
    """The stage whose artifact holds what the source reads."""
    if isinstance(source, Number):
        return source.stage
    return f"evaluation/{evaluation_name(source.policy, source.split)}/scores"


def seeds_text(seeds: Sequence[int]) -> str:
    """As it stands on the page: `seeds 1, 2, 3`."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def seconds_of(artifacts: Iterable[Artifact]) -> float:
    """What their stages took; an artifact that is named more than once counts once."""
    return sum({one.path: float(one.manifest["seconds"]) for one in artifacts}.values())
