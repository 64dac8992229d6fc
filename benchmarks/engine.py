"""
How fast the transformers engine generates, beside plain `generate` of transformers on the same work.

    python benchmarks/engine.py [--items 32] [--samples 4] [--batch-size 128] [--vllm]

The work is that of a sampling stage: items with `samples` episodes each, three messages per episode with a tool reply
between them. Message lengths are drawn once, so every way generates the same number of tokens. A random policy is as good
as a trained one here. Prompts of one database share their beginning (the schema), as real ones do. Loading the policy is
not counted, and each way warms up on other prompts than those that are measured.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from text2sql.config import EngineSettings, ModelSettings, VLLMSettings
from text2sql.engines import Engine, SamplingParams, open_engine
from trainers.scratch import make_scratch_policy

MESSAGES = 3


@dataclass(frozen=True)
class Episode:
    prompt: list[int]
    replies: list[list[int]]
    lengths: list[int]


def make_work(items: int, samples: int, vocabulary: int, seed: int = 0) -> list[Episode]:
    """Prompts of 250 to 450 tokens over eight databases, messages of 25 to 90 tokens, tool replies of 30 to 70."""
    rng = random.Random(seed)

    def tokens(shortest: int, longest: int) -> list[int]:
        return [rng.randrange(vocabulary) for _ in range(rng.randint(shortest, longest))]

    schemas = [tokens(200, 350) for _ in range(8)]
    prompts = [schemas[item % 8] + tokens(50, 100) for item in range(items)]
    return [
        Episode(prompt, [tokens(30, 70) for _ in range(MESSAGES - 1)], [rng.randint(25, 90) for _ in range(MESSAGES)])
        for prompt in prompts
        for _ in range(samples)
    ]


async def play(engine: Engine, work: list[Episode], concurrency: int) -> None:
    limit = asyncio.Semaphore(concurrency)

    async def one(number: int, episode: Episode) -> None:
        async with limit:
            context = list(episode.prompt)
            for turn, length in enumerate(episode.lengths):
                generation = await engine.generate(context, SamplingParams(length, 0.7, seed=number * MESSAGES + turn))
                context += [*generation.token_ids, *(episode.replies[turn] if turn < MESSAGES - 1 else ())]

    await asyncio.gather(*(one(number, episode) for number, episode in enumerate(work)))


class Lengths(StoppingCriteria):
    """Ends row i after `lengths[i]` new tokens."""

    def __init__(self, lengths: list[int], width: int) -> None:
        self.ends = torch.tensor(lengths) + width

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.BoolTensor:
        return input_ids.shape[1] >= self.ends


@torch.no_grad()
def plain_generate(model: PreTrainedModel, work: list[Episode], batch_size: int) -> None:
    """Message by message, batches of contexts padded on the left."""
    contexts = [list(episode.prompt) for episode in work]
    for turn in range(MESSAGES):
        for first in range(0, len(work), batch_size):
            rows = range(first, min(first + batch_size, len(work)))
            width = max(len(contexts[row]) for row in rows)
            padding = [width - len(contexts[row]) for row in rows]
            ids = torch.tensor([[0] * pad + contexts[row] for pad, row in zip(padding, rows, strict=True)])
            mask = torch.arange(width) >= torch.tensor(padding)[:, None]
            lengths = [work[row].lengths[turn] for row in rows]
            generated = model.generate(
                ids,
                attention_mask=mask.long(),
                do_sample=True,
                temperature=0.7,
                top_k=0,
                max_new_tokens=max(lengths),
                eos_token_id=None,
                stopping_criteria=StoppingCriteriaList([Lengths(lengths, width)]),
            )
            for row, length, out in zip(rows, lengths, generated[:, width:].tolist(), strict=True):
                contexts[row] += out[:length] + (work[row].replies[turn] if turn < MESSAGES - 1 else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=32)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--vllm", action="store_true", help="also start a vLLM server")
    parser.add_argument("--skip-plain", action="store_true")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy"
        settings = ModelSettings(init="scratch")
        texts = [" ".join(f"word{i}x{j}" for j in range(50)) for i in range(50)]
        make_scratch_policy(texts, settings, 0, policy)
        model = AutoModelForCausalLM.from_pretrained(policy).eval()
        vocabulary = model.config.vocab_size
        work = make_work(arguments.items, arguments.samples, vocabulary)
        # no prompt of `work`: the engine keeps keys and values
        warm_up = make_work(8, 1, vocabulary, seed=1)
        tokens = sum(sum(episode.lengths) for episode in work)
        print(f"{len(work)} episodes, {tokens} tokens to generate, {torch.get_num_threads()} threads")

        def engine(settings: EngineSettings) -> float:
            async def run() -> float:
                async with open_engine(policy, settings, Path(folder)) as opened:
                    await play(opened, warm_up, len(warm_up))
                    return await timed(lambda: play(opened, work, arguments.batch_size))

            return asyncio.run(run())

        seconds: dict[str, float] = {}
        if not arguments.skip_plain:
            plain_generate(model, warm_up, len(warm_up))
            start = time.perf_counter()
            plain_generate(model, work, arguments.batch_size)
            seconds["transformers generate"] = time.perf_counter() - start
        seconds["TransformersEngine"] = engine(EngineSettings(batch_size=arguments.batch_size))
        if arguments.vllm:
            seconds["VLLMEngine"] = engine(EngineSettings(kind="vllm", vllm=VLLMSettings()))

    baseline = next(iter(seconds.values()))
    print(f"{'':24}{'tokens/s':>10}{'episodes/s':>12}{'ratio':>8}")
    for name, spent in seconds.items():
        print(f"{name:24}{tokens / spent:10.0f}{len(work) / spent:12.1f}{baseline / spent:8.2f}")


async def timed(work: Callable[[], Awaitable[None]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
