"""The record of a policy, and the refusals that it makes possible."""

import json
from pathlib import Path

import pytest

from text2sql.errors import PolicyError
from text2sql.policy import check_policy, read_policy_record, resolve_policy, template_hash, write_policy_record

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """The files of a model directory, as far as the record reads them."""
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 300}))
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_policy_record(folder, name="round_1/policy", parent="base_policy", details={"rows": 12})
    return folder


def test_record_comes_back_as_written(policy: Path) -> None:
    """Name, parent, template, vocabulary, library versions and details survive the file."""
    record = check_policy(policy)

    assert record == read_policy_record(policy)
    assert (record.name, record.parent) == ("round_1/policy", "base_policy")
    assert template_hash(TEMPLATE) == record.template_hash
    assert record.vocabulary == 300
    assert "transformers" in record.versions
    assert record.details == {"rows": 12}


def test_changed_template_is_refused(policy: Path) -> None:
    """Case tr-chat-template-not-saved: a template other than the recorded one stops the stage."""
    (policy / "chat_template.jinja").write_text(TEMPLATE + " ")

    with pytest.raises(PolicyError, match="trained with chat template"):
        check_policy(policy)


def test_lost_template_is_refused(policy: Path) -> None:
    """Case tr-chat-template-not-saved: a policy saved without its template is named as such."""
    (policy / "chat_template.jinja").unlink()

    with pytest.raises(PolicyError, match="no chat template"):
        check_policy(policy)


def test_template_inside_the_tokenizer_config_counts(policy: Path) -> None:
    """Older releases keep the template in tokenizer_config.json; it is the same template there."""
    (policy / "chat_template.jinja").unlink()
    (policy / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))

    assert template_hash(TEMPLATE) == check_policy(policy).template_hash


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer"),
        ("policy.json", "no policy.json"),
    ],
)
def test_missing_part_is_named(policy: Path, missing: str, message: str) -> None:
    """An incomplete folder is refused with the part that is missing."""
    (policy / missing).unlink()

    with pytest.raises(PolicyError, match=message):
        check_policy(policy)


def test_changed_vocabulary_is_refused(policy: Path) -> None:
    """Other embeddings than the recorded ones cannot be the policy that was trained."""
    (policy / "config.json").write_text(json.dumps({"vocab_size": 301}))

    with pytest.raises(PolicyError, match="300 token embeddings"):
        check_policy(policy)


def test_damaged_record_is_an_error_of_ours(policy: Path) -> None:
    """A cut-off policy.json is reported with its path, not as a JSON traceback."""
    (policy / "policy.json").write_text("{")

    with pytest.raises(PolicyError, match=r"policy\.json cannot be read"):
        check_policy(policy)


def test_folder_resolves_to_its_absolute_path(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the same after a stage changes its working directory."""
    monkeypatch.chdir(policy.parent)

    assert str(policy) == resolve_policy("policy")


@pytest.mark.parametrize("path", ["/no/such/policy", "./no-such-policy", "artifacts/policy/0123"])
def test_missing_path_is_named(path: str) -> None:
    """A path that leads nowhere is not looked up on the network; the message names it."""
    with pytest.raises(PolicyError, match="there is no such folder"):
        resolve_policy(path)


def test_unknown_name_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is neither a folder nor in the cache (offline) says both."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(PolicyError, match="neither a folder here nor a model that can be downloaded"):
        resolve_policy("nobody/no-such-model")
