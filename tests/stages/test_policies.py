"""Stages that make policies, on a policy small enough to train in seconds."""

import json
from dataclasses import replace

import pytest

from agents.mtsql.agent import MtsqlAgent
from stages.policies import make_grpo_policy
from text2sql.errors import InfrastructureError
from text2sql.policy import check_policy

GOLD = "SELECT name FROM staff"
PROFILE = {
    "agent": {"prompt": "compact", "max_prompt_tokens": 400, "max_episode_tokens": 60, "max_message_tokens": 8},
    "curriculum": {"buckets": 1},
    "grpo": {"steps_per_bucket": (1,), "prompts_per_step": 2, "group_size": 2, "micro_batch": 4},
}


@pytest.fixture
def grpo_context(make_context, dialogue, policy, tmp_path):
    """The context of GRPO over one bucket of two items."""
    items = dialogue("t/0", "train", GOLD, GOLD)
    buckets = tmp_path / "buckets"
    buckets.mkdir()
    (buckets / "buckets.json").write_text(json.dumps([[item.item_id for item in items]]), encoding="utf-8")
    return make_context("grpo/policy", items, PROFILE, policy=policy, buckets=buckets)


@pytest.mark.slow
def test_grpo_samples_by_the_agent_and_pays_by_events(grpo_context):
    """One step over a bucket: every sample is rewarded, with its parts logged apart, and a policy comes out."""
    logged: dict[str, float] = {}
    metrics = make_grpo_policy(replace(grpo_context, log=lambda values, step: logged.update(values)))

    assert (1, 0) == (metrics["steps"], metrics["carried_over"])
    assert 0.0 == logged["infrastructure_share"] == logged["reward/execution_match"]
    check_policy(grpo_context.out / "policy")


@pytest.mark.slow
def test_grpo_sets_aside_what_the_machine_loses_in_an_episode(grpo_context, monkeypatch):
    """Case rw-infrastructure-is-not-zero: one lost sample of four is counted and has no reward; the step goes on."""
    episode = MtsqlAgent.episode

    async def losing_one(agent, engine, question, sample, params):
        if (question.turn, sample) == (2, 0):
            raise InfrastructureError("the worker died three times")
        return await episode(agent, engine, question, sample, params)

    monkeypatch.setattr(MtsqlAgent, "episode", losing_one)
    logged: dict[str, float] = {}
    said: list[str] = []
    context = replace(grpo_context, log=lambda values, step: logged.update(values), say=said.append)
    metrics = make_grpo_policy(context)

    assert 1 == metrics["steps"]
    assert 1 / 4 == logged["infrastructure_share"] == logged["left_out_share"]
    assert any("lost by the machine: 1" in line and "the worker died three times" in line for line in said)


@pytest.mark.slow
def test_finished_grpo_is_not_done_again(grpo_context, monkeypatch):
    """What fails after the training costs no training: the next attempt samples nothing and has the same numbers."""
    first = make_grpo_policy(grpo_context)

    async def no_more(*_):
        raise AssertionError("GRPO samples again")

    monkeypatch.setattr(MtsqlAgent, "episode", no_more)
    again = make_grpo_policy(grpo_context)

    assert {**first, "resumed_from_step": 1, "seconds": again["seconds"]} == again
