"""Stages that make policies, on a policy small enough to train in seconds."""

import json
from dataclasses import replace

import pytest

from stages.policies import make_grpo_policy
from text2sql.policy import check_policy

GOLD = "SELECT name FROM staff"


@pytest.mark.slow
def test_grpo_samples_by_the_agent_and_pays_by_events(make_context, dialogue, policy, tmp_path):
    """One step over a bucket: every sample is rewarded, with its parts logged apart, and a policy comes out."""
    items = dialogue("t/0", "train", GOLD, GOLD)
    buckets = tmp_path / "buckets"
    buckets.mkdir()
    (buckets / "buckets.json").write_text(json.dumps([[item.item_id for item in items]]), encoding="utf-8")
    profile = {
        "agent": {"prompt": "compact", "max_prompt_tokens": 400, "max_episode_tokens": 60, "max_message_tokens": 8},
        "grpo": {"steps_per_bucket": (1,), "prompts_per_step": 2, "group_size": 2, "micro_batch": 4},
    }
    logged: dict[str, float] = {}
    context = make_context("grpo/policy", items, profile, policy=policy, buckets=buckets)
    metrics = make_grpo_policy(replace(context, log=lambda values, step: logged.update(values)))

    assert (1, 0) == (metrics["steps"], metrics["carried_over"])
    assert 0.0 == logged["infrastructure_share"] == logged["reward/execution_match"]
    check_policy(context.out / "policy")
