"""The engine in this process gives what the model itself gives, however the requests are mixed."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from text2sql.config import EngineSettings
from text2sql.engines import Generation, SamplingParams, open_engine
from text2sql.engines.kv_cache import KeptSequences, prefix_hashes
from text2sql.engines.transformers_engine import TransformersEngine
from text2sql.errors import EngineError, PolicyError

STOP = (250, 251, 7)
GREEDY = SamplingParams(40, 0.0, stop_token_ids=STOP)
Prompts = list[list[int]]


@pytest.fixture(scope="module")
def model(policy: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(policy).eval()


def generate(engine: TransformersEngine, requests: list[tuple[list[int], SamplingParams]]) -> list[Generation]:
    """All requests at once, on an engine opened for them."""

    async def run() -> list[Generation]:
        async with engine:
            return await asyncio.gather(*(engine.generate(prompt, params) for prompt, params in requests))

    return asyncio.run(run())


def on(engine: TransformersEngine, work: Callable[[TransformersEngine], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with engine:
            return await work(engine)

    return asyncio.run(run())


@torch.no_grad()
def logprobs_of(
    model: PreTrainedModel, prompt: list[int], ids: tuple[int, ...], temperature: float = 1.0
) -> torch.Tensor:
    """Of each of `ids` after `prompt`, by one forward pass over everything."""
    logits = model(torch.tensor([prompt + list(ids)])).logits[0, len(prompt) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]


@torch.no_grad()
def is_greedy(model: PreTrainedModel, prompt: list[int], ids: tuple[int, ...]) -> bool:
    """Whether each of `ids` is the likeliest token at its place, by one forward pass over everything."""
    logits = model(torch.tensor([prompt + list(ids)])).logits[0, len(prompt) - 1 : -1]
    return logits.argmax(-1).tolist() == list(ids)


@pytest.fixture(scope="module")
def references(model: PreTrainedModel, prompts: Prompts) -> list[tuple[int, ...]]:
    """Greedy tokens by transformers' own `generate`, one prompt at a time."""
    found = []
    for prompt in prompts:
        output = model.generate(
            torch.tensor([prompt]), max_new_tokens=GREEDY.max_tokens, do_sample=False, eos_token_id=list(STOP)
        )
        found.append(tuple(output[0, len(prompt) :].tolist()))
    return found


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_greedy_tokens_are_those_of_generate(
    model: PreTrainedModel, prompts: Prompts, references: list[tuple[int, ...]], batch_size: int
) -> None:
    """Token by token, whatever shares the batch: rows that join late, leave early, or begin alike included."""
    generations = generate(TransformersEngine(model, batch_size), [(prompt, GREEDY) for prompt in prompts])

    assert [generation.token_ids for generation in generations] == references
    assert {generation.finish_reason for generation in generations} == {"stop", "length"}


def test_finish_reason_says_what_ended_it(model: PreTrainedModel, prompts: Prompts) -> None:
    """`stop` ends with a stop token, which is kept as the last id; `length` has exactly `max_tokens` ids."""
    for generation in generate(TransformersEngine(model, 8), [(prompt, GREEDY) for prompt in prompts]):
        stopped = generation.finish_reason == "stop"

        assert (generation.token_ids[-1] in STOP) == stopped
        assert not set(generation.token_ids[:-1]) & set(STOP)
        assert stopped or len(generation.token_ids) == GREEDY.max_tokens


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_those_of_a_full_forward_pass(
    model: PreTrainedModel, prompts: Prompts, temperature: float
) -> None:
    """Within 1e-4, under the temperature the token was drawn with (1 for greedy)."""
    params = SamplingParams(30, temperature, stop_token_ids=STOP, seed=5)
    generations = generate(TransformersEngine(model, 6), [(prompt, params) for prompt in prompts])

    for prompt, generation in zip(prompts, generations, strict=True):
        expected = logprobs_of(model, prompt, generation.token_ids, temperature or 1.0)
        assert torch.tensor(generation.logprobs) == pytest.approx(expected, abs=1e-4)


def test_continued_episode_is_as_if_computed_anew(model: PreTrainedModel, prompts: Prompts) -> None:
    """
    Three messages with tool replies between them, the second and third continuing on kept keys and values: tokens and
    logprobs are those of the whole context.
    """
    replies = [[3, 1, 4, 1, 5], [9, 2, 6]]

    async def episode(engine: TransformersEngine, prompt: list[int]) -> list[tuple[list[int], Generation]]:
        context, messages = list(prompt), []
        for turn in range(3):
            generation = await engine.generate(context, GREEDY)
            messages.append((list(context), generation))
            context += [*generation.token_ids, *(replies[turn] if turn < 2 else [])]
        return messages

    async def all_episodes(engine: TransformersEngine) -> list[Any]:
        return await asyncio.gather(*(episode(engine, prompt) for prompt in prompts[::2]))

    for messages in on(TransformersEngine(model, 4), all_episodes):
        for context, generation in messages:
            assert is_greedy(model, context, generation.token_ids)
            assert torch.tensor(generation.logprobs) == pytest.approx(
                logprobs_of(model, context, generation.token_ids), abs=1e-4
            )


def test_kept_beginnings_are_not_computed_again(model: PreTrainedModel) -> None:
    """A continued message, an equal prompt and a prompt over the same schema compute only what is new."""
    lengths: list[int] = []
    hook = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    prompt = list(range(100))
    params = SamplingParams(4, 0.0)

    async def requests(engine: TransformersEngine) -> list[int]:
        first = await engine.generate(prompt, params)
        await engine.generate([*prompt, *first.token_ids, 1, 2, 3], params)
        await engine.generate(prompt, params)
        await engine.generate([*prompt[:70], *range(200, 230)], params)
        return lengths[::4]  # of each request's first pass; three more generate one token each

    try:
        assert on(TransformersEngine(model, 4), requests) == [100, 4, 1, 36]
    finally:
        hook.remove()


def test_sample_depends_on_its_seed_alone(model: PreTrainedModel, prompts: Prompts) -> None:
    """The same request gives the same tokens alone, in a crowd, and in a crowd in another order."""
    requests = [(prompt, SamplingParams(20, 1.0, seed=seed)) for seed, prompt in enumerate(prompts)]
    shuffled = list(range(len(requests)))
    random.Random(0).shuffle(shuffled)

    together = generate(TransformersEngine(model, 64), requests)
    reordered = generate(TransformersEngine(model, 3), [requests[place] for place in shuffled])
    alone = generate(TransformersEngine(model, 1), requests[4:5])

    assert [g.token_ids for g in reordered] == [together[place].token_ids for place in shuffled]
    assert alone[0].token_ids == together[4].token_ids


def test_seeds_give_different_samples(model: PreTrainedModel) -> None:
    """Samples of one prompt differ, with seeds of their own and without any."""
    seeded = [([1, 2, 3], SamplingParams(12, 1.0, seed=seed)) for seed in range(6)]
    unseeded = [([1, 2, 3], SamplingParams(12, 1.0))] * 6

    for requests in (seeded, unseeded):
        assert len({g.token_ids for g in generate(TransformersEngine(model, 4), requests)}) > 1


def test_draws_follow_the_distribution(model: PreTrainedModel) -> None:
    """First tokens of many samples are as frequent as the model says."""
    prompt, samples = [5, 6, 7], 4000
    requests = [(prompt, SamplingParams(1, 1.0, seed=seed)) for seed in range(samples)]
    counts = torch.zeros(model.config.vocab_size)
    for generation in generate(TransformersEngine(model, 256), requests):
        counts[generation.token_ids[0]] += 1
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)

    assert (counts / samples) == pytest.approx(expected, abs=0.03)


def test_top_p_draws_from_the_most_likely_tokens(model: PreTrainedModel) -> None:
    """Only tokens of the nucleus come, and logprobs are those of the renormalized nucleus."""
    prompt, top_p = [5, 6, 7], 0.5
    with torch.no_grad():
        probabilities = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    ordered, order = probabilities.sort(descending=True)
    size = int((ordered.cumsum(0) < top_p).sum()) + 1
    nucleus = {int(token): float(p / ordered[:size].sum()) for token, p in zip(order[:size], ordered, strict=False)}
    requests = [(prompt, SamplingParams(1, 1.0, top_p=top_p, seed=seed)) for seed in range(300)]

    for generation in generate(TransformersEngine(model, 64), requests):
        assert generation.token_ids[0] in nucleus
        assert torch.tensor(generation.logprobs[0]).exp() == pytest.approx(nucleus[generation.token_ids[0]], abs=1e-4)


def test_live_model_is_handed_back_as_it_was(policy: Path) -> None:
    """A borrowed model keeps its training mode, attention and gradients, and can be trained right afterwards."""
    model = AutoModelForCausalLM.from_pretrained(policy).train()
    attention = model.config._attn_implementation
    generate(TransformersEngine(model, 4), [([1, 2, 3], SamplingParams(5, 1.0, seed=0))])

    assert model.training
    assert model.model.layers[0].training
    assert model.config._attn_implementation == attention
    model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_changed_weights_are_seen_after_reset(policy: Path) -> None:
    """After a training step and `reset`, nothing computed with the old weights is used."""
    model = AutoModelForCausalLM.from_pretrained(policy)
    prompt = list(range(60))

    async def train_between(engine: TransformersEngine) -> tuple[Generation, Generation]:
        before = await engine.generate(prompt, GREEDY)
        with torch.no_grad():
            model.model.layers[0].self_attn.v_proj.weight.mul_(-1)
        engine.reset()
        return before, await engine.generate(prompt, GREEDY)

    before, after = on(TransformersEngine(model, 4), train_between)

    assert after.token_ids != before.token_ids
    assert torch.tensor(after.logprobs) == pytest.approx(logprobs_of(model, prompt, after.token_ids), abs=1e-4)


def test_reset_is_refused_in_flight(model: PreTrainedModel) -> None:
    """Clearing the cache under a running request would corrupt it; it is refused with the reason."""

    async def reset_early(engine: TransformersEngine) -> None:
        request = asyncio.create_task(engine.generate([1, 2], GREEDY))
        await asyncio.sleep(0)
        try:
            engine.reset()
        finally:
            await request

    with pytest.raises(EngineError, match="1 requests are in flight"):
        on(TransformersEngine(model, 4), reset_early)


def test_cancelled_request_frees_its_place(model: PreTrainedModel) -> None:
    """Requests that nobody waits for any more leave the batch, and the others are not disturbed."""

    async def cancel_some(engine: TransformersEngine) -> Generation:
        long = SamplingParams(400, 0.0)
        cancelled = [asyncio.create_task(engine.generate([place, 1], long)) for place in range(6)]
        await asyncio.sleep(0.05)
        for task in cancelled:
            task.cancel()
        await asyncio.wait(cancelled)
        return await engine.generate([1, 2, 3], GREEDY)

    generation = on(TransformersEngine(model, 2), cancel_some)

    assert is_greedy(model, [1, 2, 3], generation.token_ids)


def test_engine_serves_one_event_loop_after_another(model: PreTrainedModel) -> None:
    """A trainer starts an event loop per rollout; an open engine works in each of them."""
    engine = TransformersEngine(model, 4)
    asyncio.run(engine.__aenter__())
    generations = [asyncio.run(engine.generate([1, 2, 3], GREEDY)) for _ in range(2)]
    asyncio.run(engine.__aexit__())

    assert all(is_greedy(model, [1, 2, 3], generation.token_ids) for generation in generations)


def test_event_loop_stays_free_while_generating(model: PreTrainedModel) -> None:
    """Other coroutines (databases answering) run between the steps of a long generation."""

    async def count_turns(engine: TransformersEngine) -> int:
        request = asyncio.create_task(engine.generate([1, 2, 3], SamplingParams(50, 0.0)))
        turns = 0
        while not request.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert on(TransformersEngine(model, 4), count_turns) > 50


def test_max_tokens_is_cut_to_the_positions_left(model: PreTrainedModel) -> None:
    """A model of 512 positions gives 12 tokens after a prompt of 500, with finish reason `length`."""
    [generation] = generate(TransformersEngine(model, 4), [([1] * 500, SamplingParams(100, 1.0, seed=0))])

    assert len(generation.token_ids) == 12
    assert generation.finish_reason == "length"


@pytest.mark.parametrize("prompt", [[], [1] * 512])
def test_prompt_without_room_is_an_error(model: PreTrainedModel, prompt: list[int]) -> None:
    """Nothing to continue or no position left: an EngineError that names the settings."""
    with pytest.raises(EngineError, match=r"512 positions.*agent\.max_prompt_tokens"):
        generate(TransformersEngine(model, 4), [(prompt, GREEDY)])


def test_damaged_weights_fail_all_requests(policy: Path) -> None:
    """NaN weights end every request with an EngineError instead of tokens without meaning."""
    model = AutoModelForCausalLM.from_pretrained(policy)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))

    async def outcomes(engine: TransformersEngine) -> list[object]:
        requests = (engine.generate([token], GREEDY) for token in range(3))
        return await asyncio.gather(*requests, return_exceptions=True)

    found = on(TransformersEngine(model, 2), outcomes)

    assert ["EngineError"] * 3 == [type(outcome).__name__ for outcome in found]
    assert "not finite" in str(found[0])


def test_policy_is_loaded_from_its_folder(policy: Path, model: PreTrainedModel, tmp_path: Path) -> None:
    """`open_engine` with kind transformers gives the engine over the policy's own weights."""

    async def run() -> Generation:
        async with open_engine(policy, EngineSettings(kind="transformers"), tmp_path) as engine:
            return await engine.generate([1, 2, 3], GREEDY)

    assert is_greedy(model, [1, 2, 3], asyncio.run(run()).token_ids)


def test_damaged_weight_file_is_a_policy_error(policy: Path, tmp_path: Path) -> None:
    """A truncated weight file is reported as the policy's fault, with its path."""
    for file in policy.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])

    with pytest.raises(PolicyError, match="cannot be loaded"):
        generate(TransformersEngine(tmp_path), [([1], GREEDY)])


def test_sliding_window_models_are_refused(policy: Path) -> None:
    """Layers that see only part of the sequence would be computed wrongly; the other engine is named."""
    model = AutoModelForCausalLM.from_pretrained(policy)
    model.config.layer_types = ["sliding_attention"] * 2

    with pytest.raises(EngineError, match=r"sliding_attention layers\. Set engine\.kind: vllm"):
        generate(TransformersEngine(model), [([1], GREEDY)])


def test_kept_sequences_stay_within_their_limit() -> None:
    """The least recently used ones go first, and what is asked for again stays."""
    kept = KeptSequences(limit_bytes=3 * 4 * 64)
    prompts = [[prompt] * 8 for prompt in range(4)]

    def known(prompt: list[int]) -> bool:
        return kept.longest(prompt, prefix_hashes(prompt)).length == 8

    for prompt in prompts[:3]:
        kept.keep(prompt, torch.zeros(2, 1, 1, 8, 4), once=False)
    assert known(prompts[0])
    kept.keep(prompts[3], torch.zeros(2, 1, 1, 8, 4), once=False)

    assert [known(prompt) for prompt in prompts] == [True, False, True, True]
    assert kept.bytes <= kept.limit_bytes
