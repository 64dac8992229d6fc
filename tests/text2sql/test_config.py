"""Profiles: strict, frozen, and errors that say what to do."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from text2sql.config import REPOSITORY, Settings, experiment_names, load_profile
from text2sql.errors import ProfileError

MINIMAL = "model: {init: scratch}\n"


@pytest.fixture
def experiments(tmp_path: Path) -> Path:
    (tmp_path / "parent.yaml").write_text(MINIMAL + "sampling: {samples: 8, temperature: 0.5}\n", encoding="utf-8")
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    path = folder / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_child_overrides_single_keys_of_the_profile_it_extends(experiments: Path):
    """`extends` keeps every key of the parent that the child does not name, inside sections too."""
    write(experiments, "child", "extends: parent\nsampling: {temperature: 0.9}\n")

    profile = load_profile("child", experiments)

    assert (8, 0.9) == (profile.sampling.samples, profile.sampling.temperature)
    assert "child" == profile.name


def test_an_unknown_key_names_file_key_and_valid_choices(experiments: Path):
    """A misspelt key is an error with the file, the dotted key, a suggestion and the keys that exist there."""
    write(experiments, "typo", MINIMAL + "sampling: {sampels: 3}\n")

    with pytest.raises(ProfileError) as caught:
        load_profile("typo", experiments)

    message = str(caught.value)
    assert "typo.yaml" in message
    assert "sampling.sampels: unknown key. Did you mean 'samples'?" in message
    assert "temperature" in message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("sampling: {samples: twenty}", "sampling.samples"),
        ("sampling: {samples: 0}", "sampling.samples"),
        ("sampling: {samples: '20'}", "sampling.samples"),
        ("evaluation: {prior: silver}", "evaluation.prior"),
        ("agent: {tools: [execute, telescope]}", "agent.tools.1"),
        ("grpo: {clip_low: -0.1}", "grpo.clip_low"),
        ("reward_search: {grid: {propose: []}}", "reward_search.grid.propose"),
        ("reward_search: {grid: {propose: [0.1, -0.1]}}", "reward_search.grid.propose.1"),
    ],
)
def test_a_wrong_type_or_impossible_value_names_its_key_and_what_was_found(experiments: Path, text: str, key: str):
    """Nothing is coerced: a number in quotes is refused like any other wrong type."""
    write(experiments, "wrong", MINIMAL + text + "\n")

    with pytest.raises(ProfileError, match="found") as caught:
        load_profile("wrong", experiments)

    assert f"{key}:" in str(caught.value)


def test_the_evaluation_can_only_take_tools_away(experiments: Path):
    """A tool that the agent does not have cannot be switched on for the evaluation."""
    write(experiments, "more", MINIMAL + "agent: {tools: [execute]}\nevaluation: {tools: [memory]}\n")

    with pytest.raises(ProfileError, match=r"evaluation.tools can only leave out some of agent.tools"):
        load_profile("more", experiments)


def test_only_the_demo_can_be_evaluated_on_held_out_phrasing(experiments: Path):
    """A release has no such split, and the error says so before anything runs."""
    write(experiments, "real", MINIMAL + "benchmark: {name: cosql}\nevaluation: {splits: [dev, dev_phrasing]}\n")

    with pytest.raises(ProfileError, match=r"dev_phrasing, which only benchmark demo has"):
        load_profile("real", experiments)


def test_every_bucket_needs_its_steps(experiments: Path):
    """Else GRPO would refuse, after everything before it has been made."""
    write(experiments, "buckets", MINIMAL + "curriculum: {buckets: 2}\n")

    with pytest.raises(ProfileError, match=r"curriculum.buckets is 2, grpo.steps_per_bucket has 3 entries"):
        load_profile("buckets", experiments)


def test_a_pretrained_model_needs_a_name(experiments: Path):
    """Without a name and without `init: scratch` there is nothing to start from, and the error says both ways out."""
    write(experiments, "nameless", "model: {layers: 2}\n")

    with pytest.raises(ProfileError, match="give a model name or path, or set init: scratch"):
        load_profile("nameless", experiments)


def test_an_unknown_experiment_lists_those_that_exist(experiments: Path):
    """The nearest name is suggested."""
    with pytest.raises(ProfileError, match=r"Unknown experiment 'parnet'. Did you mean 'parent'\?"):
        load_profile("parnet", experiments)


def test_a_seed_behind_the_name_is_the_same_experiment_with_that_seed(experiments: Path):
    """The profile has the full name and the other seed, whatever the file says; the list of experiments is of files."""
    write(experiments, "family/small", "extends: parent\nseed: 1\n")

    profile = load_profile("family/small@12", experiments)

    assert ("family/small@12", 12, 8) == (profile.name, profile.seed, profile.sampling.samples)
    assert load_profile("family/small", experiments).seed == 1
    assert ["family/small", "parent"] == experiment_names(experiments)


@pytest.mark.parametrize("name", ["parent@", "parent@two", "parent@-1", "parent@02", "parent@1@2"])
def test_what_is_no_seed_is_refused_with_an_example(experiments: Path, name: str):
    """One name for one seed: leading zeros are refused too."""
    with pytest.raises(ProfileError, match="whole number behind the @, like parent@2"):
        load_profile(name, experiments)


def test_an_unknown_experiment_with_a_seed_lists_those_that_exist(experiments: Path):
    """The name before the @ is what is looked for."""
    with pytest.raises(ProfileError, match=r"Unknown experiment 'parnet'. Did you mean 'parent'\?"):
        load_profile("parnet@2", experiments)


def test_extending_in_a_circle_is_an_error(experiments: Path):
    """The whole circle is named."""
    write(experiments, "a", "extends: b\n")
    write(experiments, "b", "extends: a\n")

    with pytest.raises(ProfileError, match="a -> b -> a"):
        load_profile("a", experiments)


def test_a_path_with_control_characters_is_refused_with_a_hint(experiments: Path):
    """Case cl-backslash-paths: in double quotes YAML makes a line break of \\n; single quotes keep the path."""
    write(experiments, "double", 'model: {name: "C:\\new\\train"}\n')
    write(experiments, "single", "model: {name: 'C:\\new\\train'}\n")
    write(experiments, "forward", "model: {name: C:/new/train}\n")

    with pytest.raises(ProfileError, match="single quotes or with forward slashes"):
        load_profile("double", experiments)
    assert "C:\\new\\train" == load_profile("single", experiments).model.name
    assert "C:/new/train" == load_profile("forward", experiments).model.name


def test_a_profile_cannot_be_changed(experiments: Path):
    """Profiles are frozen, sections too."""
    profile = load_profile("parent", experiments)

    with pytest.raises(ValidationError):
        profile.sampling.samples = 3


def test_invalid_yaml_names_the_file(experiments: Path):
    """A file that is no YAML, or no mapping, is an error with its name."""
    write(experiments, "broken", "model: {init: scratch\n")
    write(experiments, "a_list", "- 1\n")

    with pytest.raises(ProfileError, match=r"broken.yaml is not valid YAML"):
        load_profile("broken", experiments)
    with pytest.raises(ProfileError, match=r"a_list.yaml: expected keys and values"):
        load_profile("a_list", experiments)


@pytest.mark.parametrize("name", experiment_names(REPOSITORY / "experiments"))
def test_every_shipped_experiment_loads(name: str):
    """No experiment in the repository is broken, and each says what it is."""
    profile = load_profile(name, REPOSITORY / "experiments")

    assert profile.description


def test_places_are_absolute_whatever_folder_the_command_starts_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Case da-home-folder: a relative DAGSTER_HOME counts from the repository, not from the current folder."""
    monkeypatch.setenv("DAGSTER_HOME", "elsewhere")
    monkeypatch.chdir(tmp_path)

    home = Settings.from_environment().dagster_home

    assert (REPOSITORY / "elsewhere").resolve() == home
