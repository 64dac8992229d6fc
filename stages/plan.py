"""
The plan of an experiment: which stages there are, what each reads, and the fingerprint that follows.

    benchmark ─► turns ─► round_1/trajectories ─► round_1/selected ─► round_1/policy ─► round_2/… ─► round_3/policy
                   │                                                                                      │
    base_policy ───┘                                          curriculum/attempts ─► curriculum/buckets ─► grpo/policy
                                                     reward_search/attempts ─► reward_search/weights       (advice only)
    short_horizon/sft_policy, short_horizon/grpo_policy                     (baselines, from the base policy)
    control/sft_policy, control/grpo_policy       (as much training as the rounds, and as GRPO, without what they add)
    every policy ─► evaluation/<policy>/predictions ─► evaluation/<policy>/scores ─► report
              (─► evaluation/<policy>/dev_phrasing/predictions ─► …)              (where the profile asks for it)

The plan needs no torch and no Dagster: assets, the command line and tests all read the lineage from here.
"""

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.suite import SUITE_RULES
from evaluation.verdicts import METRIC_VERSION
from stages.context import StageContext, evaluation_name
from text2sql.artifacts import Artifact, ArtifactStore, State, file_digest, fingerprint
from text2sql.config import REPOSITORY, ExecutorSettings, Profile, Settings
from text2sql.datasets import load_benchmark, source_files
from text2sql.dialogue import Split
from text2sql.errors import ArtifactError
from text2sql.textfiles import write_whole


@dataclass(frozen=True)
class Stage:
    """
    One stage. `function` is `module:name` below `stages`, imported only where the stage runs, so that a plan can be
    read without torch. `reads` are the dotted keys of the profile that its result depends on. `version` is that of its
    code and part of its fingerprint; a stage that asks the judge has the judge's. `needs_model`: the stage loads a model
    and runs as its own process.
    """

    key: str
    function: str
    inputs: Mapping[str, str]
    reads: tuple[str, ...]
    version: str = "1"
    needs_model: bool = False
    kinds: tuple[str, ...] = ()
    description: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[[StageContext], dict[str, Any]]:
        module, name = self.function.split(":")
        function: Callable[[StageContext], dict[str, Any]] = getattr(importlib.import_module(f"stages.{module}"), name)
        return function


_AGENT = ("agent", "executor.timeout_seconds", "executor.max_rows", "engine.kind", "seed")
_EVALUATION = ("temperature", "max_dialogues", "prior", "tools", "max_episode_tokens")
_POOL = ("model.init", "model.bootstrap.share_of_train")  # which train items there are to practise on
_TRAINING_ROOM = ("benchmark", "turns")
_SCORE_COLUMNS = "2"  # which columns a table of scores has; where they change, scores are made again and nothing else


def policy_stages(profile: Profile) -> dict[str, str]:
    """Policies of an experiment by the name they are evaluated under, and the stage that makes each."""
    policies = {"base": "base_policy"}
    policies |= {f"round_{number}": f"round_{number}/policy" for number in range(1, profile.rounds + 1)}
    policies["grpo"] = "grpo/policy"
    if profile.baselines:
        policies |= {"short_horizon_sft": "short_horizon/sft_policy", "short_horizon_grpo": "short_horizon/grpo_policy"}
    if profile.controls and profile.rounds and profile.model.init == "scratch":  # of a pretrained base we have no data
        policies["control_sft"] = "control/sft_policy"
    if profile.controls:
        policies["control_grpo"] = "control/grpo_policy"
    return policies


def warm_started(rounds: int) -> str:
    """The stage of the policy after so many rounds of warm start: the one that GRPO starts from."""
    return f"round_{rounds}/policy" if rounds else "base_policy"


def evaluated_policies(profile: Profile) -> dict[str, str]:
    """The policies that the profile wants evaluated, in the order of the lineage; all when it names none."""
    policies = policy_stages(profile)
    wanted = profile.evaluation.policies
    if wanted is None:
        return policies
    unknown = [name for name in wanted if name not in policies]
    if unknown:
        raise ArtifactError(
            f"evaluation.policies names {', '.join(unknown)}; this experiment has {', '.join(policies)}."
        )
    return {name: key for name, key in policies.items() if name in wanted}


def build_plan(profile: Profile) -> dict[str, Stage]:
    """
    The stages of the experiment by key, each after the stages it reads: the report, the advice on reward weights, and
    what the two rest on. A policy that is not evaluated is made only where another stage needs it.
    """
    stages = [*_data_stages(profile), _base_stage(profile)]
    stages += [stage for number in range(1, profile.rounds + 1) for stage in _round_stages(number)]
    if profile.reward_search.enabled:
        stages += _reward_search_stages(profile.rounds)
    stages += _reinforcement_stages(profile.rounds)
    if profile.baselines:
        stages += _short_horizon_stages()
    stages += [stage for stage in _control_stages(profile.rounds) if stage.key in policy_stages(profile).values()]
    evaluated = evaluated_policies(profile)
    for split in profile.evaluation.splits:
        for name, key in evaluated.items():
            stages += _evaluation_stages(profile, name, key, split)
    stages.append(_report_stage(profile, list(evaluated)))
    by_key = {stage.key: stage for stage in stages}
    wanted = _upstream(by_key, {"report", "reward_search/weights"})
    return {key: stage for key, stage in by_key.items() if key in wanted}


def _upstream(stages: dict[str, Stage], keys: set[str]) -> set[str]:
    """`keys` and every stage that they rest on."""
    wanted = set(keys)
    for key, stage in reversed(stages.items()):  # a stage comes after all that it reads
        if key in wanted:
            wanted |= set(stage.inputs.values())
    return wanted


def _limits(profile: Profile, *names: str) -> list[str]:
    """
    Those of the executor's limits that are not at their default. A stage that began to read them after artifacts of it
    had been made leaves the others out, so that those artifacts stay valid.
    """
    default = ExecutorSettings()
    return [f"executor.{name}" for name in names if getattr(profile.executor, name) != getattr(default, name)]


def _data_stages(profile: Profile) -> list[Stage]:
    return [
        Stage(
            "benchmark",
            "data:make_benchmark",
            {},
            ("benchmark", *_limits(profile, "gold_timeout_seconds")),
            version="2",
            kinds=("json", "sqlite"),
            description="Dialogues and databases as released (or generated), and the audit of every gold query.",
        ),
        Stage(
            "turns",
            "data:make_turns",
            {"benchmark": "benchmark"},
            ("benchmark.validation_share", "benchmark.split_by", "agent.schema_style", "agent.sample_values", "seed"),
            kinds=("parquet", "polars"),
            description="One row per turn (item), with its history, schema text, hardness and split.",
        ),
    ]


def _base_stage(profile: Profile) -> Stage:
    """A model by name depends on its name alone; a scratch policy is bootstrapped on episodes of this agent."""
    bootstrapped = ("model", "agent", "seed", *_limits(profile, "timeout_seconds", "max_rows"))
    reads = bootstrapped if profile.model.init == "scratch" else ("model",)
    return Stage(
        "base_policy",
        "base_policy:make_base_policy",
        {"benchmark": "benchmark", "turns": "turns"},
        reads,
        version="2",
        needs_model=True,
        kinds=("pytorch", "huggingface"),
        description="The policy to start from: a model by name, or a scratch model after its bootstrap.",
    )


def _round_stages(number: int) -> list[Stage]:
    here, before = f"round_{number}", f"round_{number - 1}"
    previous_policy = f"{before}/policy" if number > 1 else "base_policy"
    earlier = {"previous": f"{before}/selected"} if number > 1 else {}
    return [
        Stage(
            f"{here}/trajectories",
            "sampling:make_trajectories",
            {"benchmark": "benchmark", "turns": "turns", "policy": previous_policy, **earlier},
            (*_AGENT, *_POOL, "sampling.samples", "sampling.temperature", "sampling.top_p", "sampling.max_items"),
            needs_model=True,
            kinds=("jsonl",),
            description=f"Round {number}: samples of the policy so far on every item that is not solved yet.",
            constants={"round": number},
        ),
        Stage(
            f"{here}/selected",
            "selection:make_selected",
            {
                "benchmark": "benchmark",
                "turns": "turns",
                "trajectories": f"{here}/trajectories",
                "policy": previous_policy,
                **earlier,
            },
            (*_POOL, "selection", "sampling.samples", "agent", "seed"),
            version=METRIC_VERSION,
            needs_model=True,
            kinds=("jsonl", "scikitlearn"),
            description=f"Round {number}: trajectories right by EX and EM, chosen by difficulty; all rounds so far.",
            constants={"round": number},
        ),
        Stage(
            f"{here}/policy",
            "policies:make_round_policy",
            {"selected": f"{here}/selected", "policy": previous_policy, "base": "base_policy"},
            ("sft", "seed"),
            needs_model=True,
            kinds=("pytorch", "huggingface"),
            description=f"Round {number}: masked SFT on the trajectories selected so far.",
            constants={"round": number},
        ),
    ]


def _reward_search_stages(rounds: int) -> list[Stage]:
    """Sampling apart from searching: another grid or other weights are judged by the samples that are there."""
    sampling = ("reward_search.samples", "reward_search.temperature", "reward_search.max_items")
    return [
        Stage(
            "reward_search/attempts",
            "sampling:make_validation_attempts",
            {"benchmark": "benchmark", "turns": "turns", "policy": warm_started(rounds)},
            (*_AGENT, *sampling),
            needs_model=True,
            kinds=("jsonl",),
            description="Attempts of the warm-started policy on validation, to judge reward weights by.",
        ),
        Stage(
            "reward_search/weights",
            "reward_search:make_weights",
            {"benchmark": "benchmark", "turns": "turns", "attempts": "reward_search/attempts"},
            ("rewards", "reward_search.grid", "reward_search.margin"),
            version=METRIC_VERSION,
            kinds=("parquet", "polars"),
            description="Every combination of reward weights in the grid, best first. Advice: GRPO takes the profile's.",
        ),
    ]


def _reinforcement_stages(rounds: int) -> list[Stage]:
    policy = warm_started(rounds)
    return [
        Stage(
            "curriculum/attempts",
            "sampling:make_attempts",
            {"benchmark": "benchmark", "turns": "turns", "policy": policy},
            (*_AGENT, *_POOL, "curriculum.samples", "curriculum.temperature", "curriculum.max_items"),
            needs_model=True,
            kinds=("jsonl",),
            description="Attempts of the warm-started policy on train: how often it solves each item.",
        ),
        Stage(
            "curriculum/buckets",
            "selection:make_buckets",
            {"benchmark": "benchmark", "turns": "turns", "attempts": "curriculum/attempts"},
            ("curriculum.buckets", "curriculum.keep_unsolved", "seed"),
            version=METRIC_VERSION,
            kinds=("json",),
            description="Train items from easy to hard by success rate; items always solved are left out.",
        ),
        Stage(
            "grpo/policy",
            "policies:make_grpo_policy",
            {"benchmark": "benchmark", "turns": "turns", "policy": policy, "buckets": "curriculum/buckets"},
            (*_AGENT, "grpo", "rewards"),
            version=METRIC_VERSION,
            needs_model=True,
            kinds=("pytorch", "huggingface"),
            description="Curriculum GRPO with outcome and process rewards from the environment's events.",
        ),
    ]


def _short_horizon_stages() -> list[Stage]:
    room = {role: role for role in _TRAINING_ROOM}
    return [
        Stage(
            "short_horizon/sft_policy",
            "policies:make_short_horizon_sft_policy",
            {**room, "policy": "base_policy"},
            (*_POOL, "agent", "sft", "sampling.max_items", "seed"),
            needs_model=True,
            kinds=("pytorch", "huggingface"),
            description="Baseline: SFT of the base policy on gold SQL, answered at once without tools.",
        ),
        Stage(
            "short_horizon/grpo_policy",
            "policies:make_short_horizon_grpo_policy",
            {**room, "policy": "base_policy"},
            (*_AGENT, *_POOL, "grpo", "rewards", "sampling.max_items"),
            version=METRIC_VERSION,
            needs_model=True,
            kinds=("pytorch", "huggingface"),
            description="Baseline: direct RL of the base policy on the outcome reward, answered at once without tools.",
        ),
    ]


def _control_stages(rounds: int) -> list[Stage]:
    """The rounds' policies and GRPO's are read for what they took to train, not for their weights."""
    policies = {f"round_{number}": f"round_{number}/policy" for number in range(1, rounds + 1)}
    return [
        Stage(
            "control/sft_policy",
            "controls:make_sft_control",
            {"policy": "base_policy", **policies},
            ("sft", "seed"),
            needs_model=True,
            kinds=("pytorch", "huggingface"),
            description="Control of the warm start: as much more of the base policy's own bootstrap.",
        ),
        Stage(
            "control/grpo_policy",
            "controls:make_grpo_control",
            {
                "policy": warm_started(rounds),
                "base": "base_policy",
                "attempts": "curriculum/attempts",
                "buckets": "curriculum/buckets",
                "grpo": "grpo/policy",
            },
            ("sft", "seed"),
            needs_model=True,
            kinds=("pytorch", "huggingface"),
            description="Control of GRPO: as much SFT of the last round's policy on right attempts at the same items.",
        ),
    ]


def _evaluation_stages(profile: Profile, name: str, policy: str, split: Split) -> list[Stage]:
    """Suite EX counts only where it is asked for: scores without it are the same whatever becomes of its rules."""
    here = f"evaluation/{evaluation_name(name, split)}"
    suite = bool(profile.evaluation.suite_neighbours)
    constants = {"policy": name} if split == "dev" else {"policy": name, "split": split}
    return [
        Stage(
            f"{here}/predictions",
            "sampling:make_predictions",
            {"benchmark": "benchmark", "turns": "turns", "policy": policy},
            (*_AGENT, *(f"evaluation.{key}" for key in _EVALUATION)),
            needs_model=True,
            kinds=("jsonl",),
            description=f"Trajectories of policy {name} on {split}.",
            constants=constants,
        ),
        Stage(
            f"{here}/scores",
            "scoring:make_scores",
            {"benchmark": "benchmark", "turns": "turns", "predictions": f"{here}/predictions"},
            ("rewards", *(["evaluation.suite_neighbours"] if suite else [])),
            version=METRIC_VERSION,
            kinds=("parquet", "polars"),
            description=f"EX and EM of policy {name} on {split}, by turn and hardness; verdicts and rewards per item.",
            constants={**constants, "columns": _SCORE_COLUMNS, **({"suite_rules": SUITE_RULES} if suite else {})},
        ),
    ]


def _report_stage(profile: Profile, names: list[str]) -> Stage:
    evaluations = [evaluation_name(name, split) for split in profile.evaluation.splits for name in names]
    inputs = {name: f"evaluation/{name}/scores" for name in evaluations}
    inputs |= {f"coverage_{number}": f"round_{number}/selected" for number in range(1, profile.rounds + 1)}
    return Stage(
        "report",
        "report:make_report",
        inputs,
        ("evaluation.prior", "evaluation.splits"),
        kinds=("markdown",),
        description="All policies side by side, and coverage over rounds.",
    )


def stage_slice(profile: Profile, stage: Stage) -> dict[str, Any]:
    """The part of the profile that the stage reads, by dotted key."""
    values = profile.model_dump(mode="json")
    part: dict[str, Any] = {}
    for key in stage.reads:
        value: Any = values
        for name in key.split("."):
            value = value[name]
        part[key] = value
    return {**part, **stage.constants}


class Plan:
    """The stages of one profile with their fingerprints, and what of them exists in a store."""

    def __init__(self, profile: Profile, settings: Settings) -> None:
        self.profile = profile
        self.settings = settings
        self.stages = build_plan(profile)
        self.store = ArtifactStore(settings.artifacts)
        self.fingerprints: dict[str, str] = {}
        for key, stage in self.stages.items():
            self.fingerprints[key] = fingerprint(
                {
                    "stage": key,
                    "profile": stage_slice(profile, stage),
                    "inputs": {role: self.fingerprints[source] for role, source in stage.inputs.items()},
                    "version": stage.version,
                    "sources": self._sources(stage),
                }
            )

    def _sources(self, stage: Stage) -> Any:
        """Digests of what a stage reads besides its inputs: prompts, and files outside the store."""
        if stage.key == "benchmark" and self.profile.benchmark.name != "demo":
            return source_digests(self.profile, self.settings)
        if stage.key == "base_policy" and self.profile.model.name and Path(self.profile.model.name).is_dir():
            folder = Path(self.profile.model.name)
            return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(folder.iterdir())}
        return wording_digest(self.profile.agent.prompt) if "agent" in stage.reads else None

    def upstream(self, key: str) -> list[str]:
        """Every stage that `key` rests on, itself included, in the order of the plan."""
        wanted = _upstream(self.stages, {key})
        return [name for name in self.stages if name in wanted]

    def find(self, key: str) -> Artifact | None:
        return self.store.find(key, self.fingerprints[key])

    def input_builds(self, key: str) -> dict[str, str | None]:
        """For each role the build of the artifact that is there now, None where there is none."""
        found = {role: self.find(source) for role, source in self.stages[key].inputs.items()}
        return {role: artifact.build if artifact else None for role, artifact in found.items()}

    def state(self, key: str) -> State:
        """The state of one stage beside its inputs as they are there now; whether those are complete is not asked."""
        return self.store.state(key, self.fingerprints[key], self.input_builds(key))

    def states(self) -> dict[str, State]:
        """The state of every stage; one is `complete` only if everything upstream is complete as well."""
        states: dict[str, State] = {}
        for key, stage in self.stages.items():
            state = self.state(key)
            if state == "complete" and any(states[source] != "complete" for source in stage.inputs.values()):
                state = "stale"
            states[key] = state
        return states


_AGENT_FOLDER = REPOSITORY / "agents" / "mtsql"
# Of the code as this process and those forked off it have it, however the file is edited while they run.
_WORDING = file_digest(_AGENT_FOLDER / "wording.py")


def wording_digest(style: str) -> dict[str, str]:
    """Digests of all that puts the environment's words together: a changed prompt is a changed experiment."""
    prompts = sorted((_AGENT_FOLDER / "prompts" / style).glob("*.txt"))
    return {"wording.py": _WORDING, **{path.name: file_digest(path) for path in prompts}}


def source_digests(profile: Profile, settings: Settings) -> dict[str, str]:
    """
    SHA-256 of every file that the benchmark is read from, by name. Digests are remembered by size and time of the
    file, since a benchmark can be tens of gigabytes.
    """
    benchmark = load_benchmark(profile.benchmark, settings.data)
    memory_path = settings.artifacts / "source_digests.json"
    memory = _remembered(memory_path)
    digests: dict[str, str] = {}
    fresh = False
    for path in source_files(benchmark):
        stat = path.stat()
        name = f"{path}:{stat.st_size}:{stat.st_mtime_ns}"
        if name not in memory:
            memory[name] = file_digest(path)
            fresh = True
        digests[f"{path.parent.name}/{path.name}"] = memory[name]
    if fresh:
        memory_path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(memory_path, json.dumps(memory))
    return digests


def _remembered(path: Path) -> dict[str, str]:
    """Empty where nothing is remembered, or where what is there cannot be read: digests can be made again."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}
