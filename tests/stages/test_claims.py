"""The claims: each asks for something that an experiment makes."""

from pathlib import Path

import pytest

from evaluation.findings import SUBSETS, Number, Share
from stages.claims import CLAIMS, FAMILY
from stages.findings import stage_of
from stages.plan import Plan
from text2sql.config import Settings, experiment_names, load_profile

SETTINGS = Settings.from_environment()
EXPERIMENTS = [name for name in experiment_names(SETTINGS.experiments) if name.startswith(f"{FAMILY}/")]
SOURCES = list(dict.fromkeys(source for claim in CLAIMS for _, source in claim.terms))


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    settings = SETTINGS.model_copy(update={"artifacts": tmp_path_factory.mktemp("artifacts")})
    return {name: Plan(load_profile(name, settings.experiments), settings) for name in EXPERIMENTS}


def test_claims_have_names_of_their_own():
    """A name points to one row of the page."""
    assert len(CLAIMS) == len({claim.name for claim in CLAIMS})


def test_what_a_claim_reads_is_made_by_its_experiment(plans: dict[str, Plan]):
    """The policy is evaluated there, on that split; the stage with the number is in the plan."""
    assert [] == [source for source in SOURCES if stage_of(source) not in plans[source.experiment].stages]
    assert {source.subset for source in SOURCES if isinstance(source, Share)} <= SUBSETS.keys()


def test_no_experiment_of_the_family_is_run_for_nothing():
    """Each is read by a claim."""
    assert set(EXPERIMENTS) == {source.experiment for source in SOURCES}


def test_an_ablation_evaluates_only_what_a_claim_reads(plans: dict[str, Plan]):
    """Its evaluations are the ones that are compared, so that the family stays cheap."""
    read = {(source.experiment, stage_of(source)) for source in SOURCES}
    made = {
        (name, stage)
        for name, plan in plans.items()
        for stage in plan.stages
        if name != f"{FAMILY}/full" and stage.startswith("evaluation/") and stage.endswith("/scores")
    }

    assert made <= read


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_a_claim_compares_and_says_which_way(claim):
    """Its weights cancel out, so that no effect is zero; a published effect has the sign that the claim expects."""
    assert 0 == sum(weight for weight, _ in claim.terms)
    assert claim.paper is None or claim.sign * claim.paper > 0
    assert 1 == len({isinstance(source, Number) for _, source in claim.terms})


def test_seeds_are_judged_on_the_same_dev(tmp_path: Path):
    """Everything that decides on which turns a policy is scored is the same for two seeds: the benchmark, that is."""
    settings = SETTINGS.model_copy(update={"artifacts": tmp_path})
    one, two = (Plan(load_profile(f"{FAMILY}/full@{seed}", settings.experiments), settings) for seed in (1, 2))

    assert one.fingerprints["benchmark"] == two.fingerprints["benchmark"]
    assert one.fingerprints["base_policy"] != two.fingerprints["base_policy"]
