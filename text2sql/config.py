"""
Profile: every setting of one experiment, read from `experiments/<name>.yaml`.

A profile is frozen and strict: an unknown key, a wrong type or an impossible value is a ProfileError that names the
file, the key and what would be valid. `extends: other` starts from another experiment and overrides keys one by one.
Wherever an experiment is named, `NAME@SEED` is the same one with another seed.
Settings that belong to a machine and not to an experiment (where the data lie, which MLflow server) are environment
variables, listed in `Settings`.
"""

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from text2sql.errors import ProfileError

REPOSITORY = Path(__file__).resolve().parents[1]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class BenchmarkSettings(Section):
    """
    Which dialogues. `name` demo is generated, as many dialogues over as many databases as these keys say; the others
    are read from `TEXT2SQL_DATA` in the releases' layout.
    """

    name: Literal["demo", "cosql", "sparc"] = "demo"
    train_dialogues: int | None = Field(None, ge=1, description="use only the first N train dialogues")
    dev_dialogues: int | None = Field(None, ge=1, description="use only the first N dev dialogues")
    databases: tuple[str, ...] | None = Field(None, description="use only dialogues over these databases")
    validation_share: float = Field(0.1, ge=0.0, le=0.5)
    split_by: Literal["database", "dialogue"] = "database"
    corrections: str | None = Field(None, description="YAML of corrections to gold, relative to the repository")
    demo_seed: int = 7
    intents: Literal["all", "common"] = Field(
        "all", description="what the demo's turns ask: all of it, or common things"
    )


class BootstrapSettings(Section):
    """
    Training of a scratch policy on part of train, the stand-in for pretraining. First language modelling of whole
    dialogues, so that it reads questions and writes SQL; then the same dialogues together with scripted episodes of
    `items` turns (all when left out; masked SFT), so that it knows the protocol.
    """

    share_of_train: float = Field(0.35, gt=0.0, le=1.0, description="share of the train dialogues that it may see")
    episode_share: float = Field(0.5, ge=0.0, le=1.0, description="of the dialogues read that end with an episode")
    other_tokens: float = Field(
        0.1, ge=0.0, le=1.0, description="share of the tokens that are neither SQL nor the model's and yet are learnt"
    )
    dialogue_epochs: float = Field(4.0, gt=0)
    dialogue_learning_rate: float = Field(4e-3, gt=0)
    dialogue_batch_size: int = Field(4, ge=1)
    items: int | None = Field(None, ge=1)
    mistakes_per_episode: float = Field(0.5, ge=0.0, le=2.0)
    episodes_per_item: int = Field(1, ge=1)
    epochs: float = Field(2.0, gt=0)
    learning_rate: float = Field(2e-3, gt=0)
    batch_size: int = Field(8, ge=1)


class ModelSettings(Section):
    """
    The policy to start from: a Hugging Face causal LM by name or path, or `init: scratch` (a small Qwen3 with a
    tokenizer trained on the benchmark), for machines without weights.
    """

    name: str | None = None
    init: Literal["pretrained", "scratch"] = "pretrained"
    vocabulary: int = Field(1024, ge=300)
    value_words: int = Field(
        0,
        ge=0,
        description="database values and numbers of a scratch tokenizer's texts that are one token each, at most",
    )
    layers: int = Field(4, ge=1)
    width: int = Field(192, ge=16)
    heads: int = Field(6, ge=1)
    key_value_heads: int = Field(2, ge=1)
    max_positions: int = Field(2048, ge=128)
    bootstrap: BootstrapSettings = BootstrapSettings()

    @model_validator(mode="after")
    def _named_or_scratch(self) -> "ModelSettings":
        if self.init == "pretrained" and not self.name:
            raise ValueError("give a model name or path, or set init: scratch")
        if self.heads % self.key_value_heads or self.width % self.heads:
            raise ValueError("width must be a multiple of heads, and heads of key_value_heads")
        return self


Tool = Literal["execute", "memory"]


class AgentSettings(Section):
    """
    The MDP of the paper. `max_tool_calls` counts executed tool calls (3 is what the authors' limit of four messages
    allows). `tools` can be cut for ablations. `horizon: short` asks for the SQL at once, without tools.
    """

    horizon: Literal["long", "short"] = "long"
    prompt: Literal["full", "compact"] = "full"
    schema_style: Literal["full", "compact", "name"] = Field(
        "full", description="how the prompt shows the database; `name` is for a policy that knows its few databases"
    )
    tools: tuple[Tool, ...] = ("execute", "memory")
    max_tool_calls: int = Field(3, ge=0)
    max_messages: int = Field(5, ge=1, description="the model's messages per episode, malformed ones included")
    max_prompt_tokens: int = Field(4000, ge=16)
    max_episode_tokens: int = Field(8000, ge=16, description="model and tool tokens after the prompt")
    max_message_tokens: int = Field(3000, ge=8, description="tokens of one message of the model")
    result_characters: int = Field(200, ge=20, description="how much of a result the model is shown")
    sample_values: int = Field(0, ge=0, description="example values per column in the schema text")


class VLLMSettings(Section):
    url: str | None = Field(None, description="use this server instead of starting one")
    dtype: str = "auto"
    max_model_len: int | None = None
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    start_timeout_seconds: float = Field(600.0, gt=0)
    arguments: tuple[str, ...] = Field((), description="further arguments for the server, passed as they are")


class EngineSettings(Section):
    kind: Literal["transformers", "vllm"] = "transformers"
    batch_size: int = Field(64, ge=1, description="requests generated together (transformers engine)")
    concurrency: int = Field(128, ge=1, description="episodes in flight")
    processes: int | None = Field(
        None, ge=1, description="that share a stage's shards (transformers engine on CPUs); one a core when left out"
    )
    vllm: VLLMSettings = VLLMSettings()


class ExecutorSettings(Section):
    timeout_seconds: float = Field(5.0, gt=0)
    gold_timeout_seconds: float = Field(30.0, gt=0)
    max_rows: int = Field(10_000, ge=1)
    workers: int = Field(2, ge=1)


class SamplingSettings(Section):
    """One pass of sampling. `max_items` bounds the items of a round (the first ones of a seeded shuffle)."""

    samples: int = Field(20, ge=1)
    temperature: float = Field(0.7, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_items: int | None = Field(None, ge=1)
    shard_items: int = Field(32, ge=1, description="items per shard; a finished shard is never sampled again")


class EmbeddingSettings(Section):
    """Embeddings of trajectories for clustering: Qwen3-Embedding by name, or `local`: the policy's own last token."""

    model: str = "local"
    max_tokens: int = Field(1024, ge=16)


class SelectionSettings(Section):
    """Which right trajectories become training rows (Algorithm 1, S2)."""

    exact_match: Literal["official", "sound"] = "official"
    easy_max_tool_calls: int = Field(2, ge=0)
    easy_keep: int = Field(2, ge=1)
    hard_min_tool_calls: int = Field(2, ge=0)
    hard_keep: int = Field(3, ge=1)
    strategy: Literal["difficulty_aware", "unclustered", "random"] = "difficulty_aware"
    embedding: EmbeddingSettings = EmbeddingSettings()


class SFTSettings(Section):
    """Masked supervised fine-tuning (TRL). `start_from`: the previous round's policy, or the base policy each time."""

    start_from: Literal["previous", "base"] = "previous"
    replay: float = Field(
        0.0, ge=0, description="rows of a scratch policy's bootstrap that a round trains again, per selected trajectory"
    )
    epochs: float = Field(2.0, gt=0)
    learning_rate: float = Field(5e-6, gt=0)
    scheduler: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_share: float = Field(0.03, ge=0, lt=1)
    batch_size: int = Field(2, ge=1)
    gradient_accumulation: int = Field(8, ge=1)
    max_tokens: int = Field(12_000, ge=32)
    save_steps: int = Field(200, ge=1)
    gradient_checkpointing: bool = False


class CurriculumSettings(Section):
    """Attempts of the warm-started policy on all of train, and the buckets (easy to hard) made from them."""

    samples: int = Field(20, ge=2)
    temperature: float = Field(0.7, gt=0)
    max_items: int | None = Field(None, ge=1)
    buckets: int = Field(3, ge=1)
    keep_unsolved: bool = True


class GRPOSettings(Section):
    """GRPO (TRL). A step takes `prompts_per_step` items with `group_size` samples each."""

    steps_per_bucket: tuple[int, ...] = (60, 60, 30)
    prompts_per_step: int = Field(256, ge=1)
    group_size: int = Field(5, ge=2)
    learning_rate: float = Field(1e-6, gt=0)
    scheduler: Literal["cosine", "linear", "constant"] = "constant"
    temperature: float = Field(1.0, gt=0)
    kl_coefficient: float = Field(0.0, ge=0)
    scale_rewards: Literal["group", "batch"] = Field(
        "group",
        description="advantages are divided by the spread of the group's rewards (the paper) or the whole step's",
    )
    clip_low: float = Field(0.2, gt=0)
    clip_high: float = Field(0.2, gt=0)
    micro_batch: int = Field(8, ge=1, description="episodes per forward pass")
    save_steps: int = Field(10, ge=1)
    warn_flat_groups_share: float = Field(0.9, gt=0, le=1)
    max_infrastructure_share: float = Field(0.5, gt=0, le=1)
    mask_truncated: bool = Field(False, description="leave episodes that a token limit ended out of the loss")
    stop_after_clipped_steps: int | None = Field(
        None, ge=1, description="stop after so many steps in a row in which every episode hit a token limit"
    )


class RewardSettings(Section):
    """Weights as published; `variant: authors_code` computes what the released code computes."""

    variant: Literal["paper", "authors_code"] = "paper"
    execution_match: float = 1.0
    exact_match: float = 1.0
    propose: float = 0.8
    e_verify: float = 0.1
    m_verify: float = 0.1


Candidates = Annotated[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], Field(min_length=1)]


class RewardGrid(Section):
    """Candidate weights per part of the reward; every combination is a row of the search, the profile's own is added."""

    execution_match: Candidates = (1.0,)
    exact_match: Candidates = (1.0,)
    propose: Candidates = (0.0, 0.2, 0.4, 0.8, 1.2)
    e_verify: Candidates = (0.0, 0.1, 0.3)
    m_verify: Candidates = (0.0, 0.1, 0.3)


class RewardSearchSettings(Section):
    """
    Grid search over the weights of `rewards`, on samples of the warm-started policy for the validation set. It advises:
    GRPO takes the weights in `rewards`. `temperature` should be the one that GRPO samples with.
    """

    enabled: bool = True
    samples: int = Field(8, ge=2)
    temperature: float = Field(1.0, gt=0)
    max_items: int | None = Field(None, ge=1)
    grid: RewardGrid = RewardGrid()
    margin: float = Field(
        0.005, ge=0, description="the profile's weights stay unless a row's process_auc is so much higher"
    )


class EvaluationSettings(Section):
    """
    Evaluation, greedy as the authors do unless said otherwise. Training always samples with gold prior. Of `splits`,
    `dev_phrasing` is dev in other words, and only the demo has it; `train` says what a policy makes of what it was trained
    on. `tools` and `max_episode_tokens` change the agent in use alone: what was trained with `agent` stays as it is.
    """

    splits: Annotated[tuple[Literal["dev", "dev_phrasing", "train"], ...], Field(min_length=1)] = ("dev",)

    policies: tuple[str, ...] | None = Field(
        None, description="policies to evaluate, and what they rest on to make; all when left out"
    )
    temperature: float = Field(0.0, ge=0)
    max_dialogues: int | None = Field(None, ge=1)
    prior: Literal["gold", "predicted"] = Field("gold", description="whose SQL of earlier turns the agent sees")
    tools: tuple[Tool, ...] | None = Field(None, description="those of agent.tools that are left; all when left out")
    max_episode_tokens: int | None = Field(None, ge=16, description="the agent's own when left out")
    suite_neighbours: int = Field(
        0,
        ge=0,
        description="report suite EX on so many generated neighbours of the database, beside EX; 0: leave it out",
    )


class Profile(Section):
    """All settings of one experiment. See experiments/README.md for a walk through the keys."""

    name: str
    description: str = ""
    seed: int = 0
    rounds: int = Field(3, ge=0, le=9, description="of the warm start; 0: GRPO starts from the base policy")
    baselines: bool = Field(True, description="also train the short-horizon baselines")
    controls: bool = Field(True, description="also train what shows how much of a gain is just more training")
    benchmark: BenchmarkSettings = BenchmarkSettings()
    model: ModelSettings
    agent: AgentSettings = AgentSettings()
    engine: EngineSettings = EngineSettings()
    executor: ExecutorSettings = ExecutorSettings()
    sampling: SamplingSettings = SamplingSettings()
    selection: SelectionSettings = SelectionSettings()
    sft: SFTSettings = SFTSettings()
    curriculum: CurriculumSettings = CurriculumSettings()
    grpo: GRPOSettings = GRPOSettings()
    rewards: RewardSettings = RewardSettings()
    reward_search: RewardSearchSettings = RewardSearchSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _settings_fit(self) -> "Profile":
        if not set(self.evaluation.tools or ()) <= set(self.agent.tools):
            raise ValueError("evaluation.tools can only leave out some of agent.tools")
        if self.sft.replay and self.model.init == "pretrained":
            raise ValueError("sft.replay trains rows of the bootstrap again, and a pretrained policy has none")
        if "dev_phrasing" in self.evaluation.splits and self.benchmark.name != "demo":
            raise ValueError("evaluation.splits names dev_phrasing, which only benchmark demo has")
        if self.curriculum.buckets != len(self.grpo.steps_per_bucket):
            raise ValueError(
                f"curriculum.buckets is {self.curriculum.buckets}, grpo.steps_per_bucket has "
                f"{len(self.grpo.steps_per_bucket)} entries: there must be one for each bucket"
            )
        return self


class Settings(BaseModel):
    """What belongs to the machine: read from environment variables, never part of a fingerprint."""

    model_config = ConfigDict(frozen=True)

    data: Path
    artifacts: Path
    experiments: Path
    dagster_home: Path
    mlflow_uri: str

    @classmethod
    def from_environment(cls) -> "Settings":
        """
        TEXT2SQL_DATA (default ../shared/data), TEXT2SQL_ARTIFACTS (artifacts), TEXT2SQL_EXPERIMENTS (experiments),
        DAGSTER_HOME (dagster_home) and MLFLOW_TRACKING_URI (sqlite:///mlflow.db); relative paths count from the
        repository, so that they mean the same from every folder.
        """

        def place(variable: str, default: str) -> Path:
            return (REPOSITORY / os.environ.get(variable, default)).resolve()

        return cls(
            data=place("TEXT2SQL_DATA", "../shared/data"),
            artifacts=place("TEXT2SQL_ARTIFACTS", "artifacts"),
            experiments=place("TEXT2SQL_EXPERIMENTS", "experiments"),
            dagster_home=place("DAGSTER_HOME", "dagster_home"),
            mlflow_uri=os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{REPOSITORY / 'mlflow.db'}"),
        )


def experiment_names(folder: Path) -> list[str]:
    """Names of all experiments: paths of the YAML files below `folder`, without their ending."""
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def load_profile(name: str, folder: Path | None = None) -> Profile:
    """
    The resolved profile of experiment `name`. `NAME@SEED` is experiment NAME with another seed, under its full name.
    Raises ProfileError.
    """
    folder = folder or Settings.from_environment().experiments
    experiment, at, seed = name.partition("@")
    values = _merged(experiment, folder, ())
    if at:
        if not re.fullmatch("0|[1-9][0-9]*", seed):  # one name for one seed: no @02 beside @2
            raise ProfileError(f"'{name}' names no seed: expected a whole number behind the @, like {experiment}@2.")
        values["seed"] = int(seed)
    try:
        return Profile.model_validate({**values, "name": name})
    except ValidationError as error:
        raise ProfileError(_explain(error, experiment, folder)) from None


def _merged(name: str, folder: Path, seen: tuple[str, ...]) -> dict[str, Any]:
    if name in seen:
        raise ProfileError(f"extends goes in a circle: {' -> '.join((*seen, name))}")
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = experiment_names(folder)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ProfileError(f"Unknown experiment '{name}'.{hint} Experiments in {folder.name}/: {', '.join(known)}.")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ProfileError(f"{path.name} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ProfileError(f"{path.name}: expected keys and values, found {type(values).__name__}.")
    _refuse_control_characters(values, path.name)
    parent = values.pop("extends", None)
    values.pop("name", None)
    base = _merged(str(parent), folder, (*seen, name)) if parent else {}
    return _override(base, _tuples(values))


def _override(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _override(merged[key], value)
        else:
            merged[key] = value
    return merged


def _tuples(value: Any) -> Any:
    """Lists as tuples: a strict, frozen profile accepts nothing that can be changed later."""
    if isinstance(value, dict):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value


def _refuse_control_characters(value: Any, file: str, key: str = "") -> None:
    if isinstance(value, dict):
        for inner_key, inner in value.items():
            _refuse_control_characters(inner, file, f"{key}.{inner_key}".lstrip("."))
    elif isinstance(value, str) and key != "description" and any(ord(character) < 32 for character in value):
        raise ProfileError(
            f"{file}: {key} holds a control character ({value!r}): in double quotes YAML reads \\n and \\t as line "
            "break and tab. Write a path in single quotes or with forward slashes."
        )


def _explain(error: ValidationError, name: str, folder: Path) -> str:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "(top level)"
        if problem["type"] == "extra_forbidden":
            valid = _valid_keys(problem["loc"])
            near = difflib.get_close_matches(str(problem["loc"][-1]), valid, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            lines.append(f"  {key}: unknown key.{hint} Valid keys here: {', '.join(valid)}.")
        else:
            lines.append(f"  {key}: {problem['msg']} (found {problem.get('input')!r}).")
    return f"{folder.name}/{name}.yaml (or a profile that it extends) cannot be used:\n" + "\n".join(lines)


def _valid_keys(location: tuple[int | str, ...]) -> list[str]:
    section: type[BaseModel] = Profile
    for part in location[:-1]:
        field = section.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            return []
        section = field.annotation
    return sorted(section.model_fields)
