"""The engine over a vLLM server: its requests, its patience, and that nothing stays behind."""

import asyncio
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from text2sql.config import EngineSettings, VLLMSettings
from text2sql.engines import Generation, SamplingParams, open_engine
from text2sql.engines.transformers_engine import TransformersEngine
from text2sql.engines.vllm_engine import VLLMEngine, check_window, server_command
from text2sql.errors import EngineError, PolicyError

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: pip install -c constraints.txt '.[vllm]'"
)
EAGER = VLLMSettings(arguments=("--enforce-eager",))  # compiling takes longer than all tests of the module


@dataclass
class FakeServer:
    """
    Speaks the part of vLLM's protocol that the engine uses: every prompt is continued by its own last two ids. The
    connections of requests `lost_from` .. are closed without an answer, after `lost_after` seconds, until `back` says so.
    """

    model: str = "m"
    root: str | None = None

    version: str = "0.31.0"
    max_model_len: int = 100
    status: int = 200
    back: Callable[[int], bool] = lambda request: True
    lost_from: int = 10**9
    lost_after: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split()[1].decode()
                length = next(
                    (int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-l")), 0
                )
                body = json.loads(await reader.readexactly(length) or b"{}")
                answer = self._answer(path, body)
                if answer is None:
                    await asyncio.sleep(self.lost_after)
                    break
                text = json.dumps(answer).encode()
                status = self.status if path == "/v1/completions" else 200
                writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text)
        except asyncio.IncompleteReadError:
            pass  # the client hung up
        writer.close()

    def _answer(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if path == "/version":
            return {"version": self.version}
        if path == "/v1/models":
            return {"data": [{"id": self.model, "root": self.root, "max_model_len": self.max_model_len}]}
        self.requests.append(body)
        number = len(self.requests)
        if number >= self.lost_from and not self.back(number):
            return None
        ids = body["prompt"][-2:]
        return {
            "choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}, "finish_reason": "stop"}]
        }


def with_fake(
    server: FakeServer,
    work: Callable[[VLLMEngine], Coroutine[Any, Any, Any]],
    retry: float = 60.0,
    policy: Path | str = "m",
) -> Any:
    async def run() -> Any:
        async with server.running() as url:
            settings = VLLMSettings(url=url)
            async with VLLMEngine(policy, settings, Path("unused.log"), retry_seconds=retry) as engine:
                return await work(engine)

    return asyncio.run(run())


async def ten(engine: VLLMEngine) -> list[Generation]:
    return [await engine.generate([number, number + 1], SamplingParams(5)) for number in range(10)]


def test_request_carries_ids_and_every_setting() -> None:
    """Token ids in, token ids out; sampling is spelled out, so that no server default changes it."""
    server = FakeServer()
    params = SamplingParams(9, 0.7, 0.9, stop_token_ids=(3, 4), seed=11)
    generation = with_fake(server, lambda engine: engine.generate([5, 6, 7], params))

    assert generation == Generation((6, 7), (-0.5, -0.5), "stop")
    [request] = server.requests
    assert request["prompt"] == [5, 6, 7]
    assert (request["temperature"], request["top_p"], request["seed"]) == (0.7, 0.9, 11)
    assert (request["max_tokens"], request["stop_token_ids"], request["ignore_eos"]) == (9, [3, 4], True)
    assert (request["top_k"], request["min_p"], request["repetition_penalty"]) == (-1, 0.0, 1.0)


def test_lost_connection_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    """
    Case tr-engine-lost-in-mid-run, variant 1: the server closes the connection at request 7 and answers again after a
    while. No request is lost, and one warning is given.
    """
    server = FakeServer(lost_from=7, back=lambda request: request >= 10)
    with caplog.at_level(logging.WARNING, "text2sql"):
        generations = with_fake(server, ten)

    assert [g.token_ids for g in generations] == [(number, number + 1) for number in range(10)]
    assert len(server.requests) == 13
    assert len([record for record in caplog.records if "was lost" in record.message]) == 1


def test_server_that_never_comes_back_is_an_engine_error() -> None:
    """Case tr-engine-lost-in-mid-run, variant 2: after the stated time the engine gives up and says what to do."""
    with pytest.raises(EngineError, match=r"not back after 1 s.*start the server again"):
        with_fake(FakeServer(lost_from=7, back=lambda request: False), ten, retry=1.0)


def test_patience_counts_from_the_loss() -> None:
    """A message that took longer than the engine's patience before its connection was lost is asked for again."""
    server = FakeServer(lost_from=1, lost_after=0.6, back=lambda request: request > 1)
    generation = with_fake(server, lambda engine: engine.generate([1, 2], SamplingParams(5)), retry=0.5)

    assert generation.token_ids == (1, 2)
    assert len(server.requests) == 2


def test_refused_request_is_not_repeated() -> None:
    """An answer that says the request is wrong will not change; it is reported with the server's own words."""
    server = FakeServer(status=400)
    with pytest.raises(EngineError, match=r"HTTP 400.*token_ids"):
        with_fake(server, ten)

    assert len(server.requests) == 1


def test_max_tokens_is_cut_to_the_context_left() -> None:
    """The server would refuse more than its context; a prompt without room is an error that names the settings."""
    server = FakeServer(max_model_len=10)
    with_fake(server, lambda engine: engine.generate([1] * 7, SamplingParams(50)))

    assert server.requests[0]["max_tokens"] == 3
    with pytest.raises(EngineError, match=r"context is 10 tokens.*max_model_len"):
        with_fake(server, lambda engine: engine.generate([1] * 10, SamplingParams(50)))


def test_url_without_server_is_refused_at_once() -> None:
    """A wrong address is found before any work is done."""

    async def run() -> None:
        async with VLLMEngine("unused", VLLMSettings(url="http://127.0.0.1:9"), Path("unused.log")):
            pass

    with pytest.raises(EngineError, match=r"No vLLM server.*127\.0\.0\.1:9"):
        asyncio.run(run())


@pytest.fixture
def two_policies(tmp_path: Path) -> list[Path]:
    """As far as an engine given by URL looks at them."""
    folders = [tmp_path / name for name in ("round_1", "round_2")]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text("{}", encoding="utf-8")
    return folders


def test_server_with_another_policy_is_refused(two_policies: list[Path]) -> None:
    """One server for a whole lineage would give every policy's name to the samples of one: both are named."""
    served, asked_for = two_policies
    with pytest.raises(EngineError, match=rf"serves {served} \(as 'policy'\).*asked for is {asked_for}.*--model"):
        with_fake(FakeServer(model="policy", root=str(served)), ten, policy=asked_for)


def test_server_with_the_policy_is_used(two_policies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model's path is the policy's, however it is written, or the server was told to serve it by that name."""
    policy = two_policies[0]
    monkeypatch.chdir(policy.parent)
    link = policy.with_name("link")
    link.symlink_to(policy)
    for server in (
        FakeServer(model="policy", root=str(policy)),
        FakeServer(model="policy", root=policy.name),
        FakeServer(model="policy", root=str(link)),
        FakeServer(model=str(policy), root="/elsewhere"),
        FakeServer(model=str(policy)),
    ):
        assert len(with_fake(server, ten, policy=policy)) == 10
    assert len(with_fake(FakeServer(model="x", root="Qwen/Qwen3-1.7B"), ten, policy="Qwen/Qwen3-1.7B")) == 10


@pytest.mark.parametrize(
    ("found", "fits"), [("0.21.2", False), ("0.31.0", True), ("0.31.0+cu130", True), ("0.32.0", False)]
)
def test_engine_outside_the_trainers_window_is_refused(found: str, fits: bool) -> None:
    """Case in-trainer-engine-window: both packages, their versions and the range are named."""
    if fits:
        check_window("vllm", found)
        return

    with pytest.raises(EngineError, match=rf"vllm {found} does not fit trl [\d.]+, which supports vllm .*0\.31\.0"):
        check_window("vllm", found)


def test_server_outside_the_window_is_refused() -> None:
    """Case in-trainer-engine-window: a server given by URL is asked for its version before it is used."""
    with pytest.raises(EngineError, match=r"vllm 0\.32\.1 does not fit"):
        with_fake(FakeServer(version="0.32.1"), ten)


def test_settings_reach_the_command_line() -> None:
    """What a GPU needs is passed on as it is."""
    settings = VLLMSettings(
        dtype="bfloat16", max_model_len=12_000, gpu_memory_utilization=0.8, arguments=("--data-parallel-size", "4")
    )
    command = server_command("policy", settings, seed=3, port=8000)

    for option in (
        "--dtype bfloat16",
        "--max-model-len 12000",
        "--gpu-memory-utilization 0.8",
        "--data-parallel-size 4",
    ):
        assert option in " ".join(command)
    assert "--generation-config vllm" in " ".join(command)


def test_missing_policy_is_found_before_a_server_is_started(tmp_path: Path) -> None:
    """A path that leads nowhere is a PolicyError, at once."""

    async def run() -> None:
        async with open_engine(tmp_path / "none", EngineSettings(kind="vllm"), tmp_path):
            pass

    with pytest.raises(PolicyError, match="no such folder"):
        asyncio.run(run())


@needs_vllm
@pytest.mark.slow
def test_server_that_dies_at_start_is_reported_with_its_log(policy: Path, tmp_path: Path) -> None:
    """The end of the server's log is in the error, and the process is gone."""

    async def run() -> None:
        async with VLLMEngine(policy, VLLMSettings(arguments=("--no-such-option",)), tmp_path / "vllm.log"):
            pass

    with pytest.raises(EngineError, match=r"(?s)server ended.*no-such-option"):
        asyncio.run(run())
    assert not servers()


def servers(owner: int | None = None) -> list[psutil.Process]:
    """Processes that `owner` (this process) started and that belong to a server: guard, API server, engine core."""
    return [process for process in psutil.Process(owner).children(recursive=True) if is_server(process)]


def is_server(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())  # empty for one that is merely waiting to be collected
    except psutil.Error:
        return False
    return "guard.py" in line or "vllm" in line.lower()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those of them that run; by their ids, since what outlives its parent is nobody's child any more."""
    return [process for process in processes if process.is_running() and is_server(process)]


@dataclass(frozen=True)
class Session:
    """What one server gave, and the processes there were while it ran and after."""

    greedy: list[Generation]
    continued: Generation
    sampled: list[Generation]
    again: list[Generation]
    running: list[psutil.Process]
    left: list[psutil.Process]


@pytest.fixture(scope="module")
def session(policy: Path, prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Session:
    """One server for all assertions: it takes most of a minute to start."""
    greedy = SamplingParams(20, 0.0, stop_token_ids=(250, 251, 7))

    async def run() -> Session:
        engine = VLLMEngine(policy, EAGER, tmp_path_factory.mktemp("server") / "vllm.log")
        async with engine:
            running = servers()

            async def all_of(params: Callable[[int], SamplingParams]) -> list[Generation]:
                return await asyncio.gather(*(engine.generate(p, params(n)) for n, p in enumerate(prompts)))

            found = await all_of(lambda _: greedy)
            continued = await engine.generate([*prompts[0], *found[0].token_ids, 5, 6], greedy)
            sampled, again = [await all_of(lambda n: SamplingParams(10, 0.5, seed=n)) for _ in range(2)]
        return Session(found, continued, sampled, again, running, alive(running))

    return asyncio.run(run())


def local(policy: Path, requests: list[tuple[list[int], SamplingParams]]) -> list[Generation]:
    async def run() -> list[Generation]:
        async with TransformersEngine(policy) as engine:
            return await asyncio.gather(*(engine.generate(prompt, params) for prompt, params in requests))

    return asyncio.run(run())


@needs_vllm
@pytest.mark.slow
def test_greedy_tokens_are_those_of_the_transformers_engine(
    session: Session, policy: Path, prompts: list[list[int]]
) -> None:
    """Both engines continue token ids alike: ids, finish reasons, and logprobs to 1e-3."""
    greedy = SamplingParams(20, 0.0, stop_token_ids=(250, 251, 7))
    for ours, theirs in zip(local(policy, [(prompt, greedy) for prompt in prompts]), session.greedy, strict=True):
        assert theirs.token_ids == ours.token_ids
        assert theirs.finish_reason == ours.finish_reason
        assert theirs.logprobs == pytest.approx(ours.logprobs, abs=1e-3)
    [ours] = local(policy, [([*prompts[0], *session.greedy[0].token_ids, 5, 6], greedy)])
    assert session.continued.token_ids == ours.token_ids


@needs_vllm
@pytest.mark.slow
def test_sampled_logprobs_have_the_temperature_applied(
    session: Session, policy: Path, prompts: list[list[int]]
) -> None:
    """The log-probability of a token is that under the distribution it was drawn from."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)
    for prompt, generation in zip(prompts, session.sampled, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + list(generation.token_ids)])).logits[0, len(prompt) - 1 : -1] / 0.5
        ids = torch.tensor(generation.token_ids)[:, None]

        expected = logits.log_softmax(-1).gather(1, ids)[:, 0]
        assert torch.tensor(generation.logprobs) == pytest.approx(expected, abs=1e-3)


@needs_vllm
@pytest.mark.slow
def test_seed_repeats_a_sample(session: Session) -> None:
    """The same requests with the same seeds give the same tokens; generation goes to the full length without stops."""
    assert [g.token_ids for g in session.sampled] == [g.token_ids for g in session.again]
    assert {len(g.token_ids) for g in session.sampled} == {10}
    assert {g.finish_reason for g in session.sampled} == {"length"}


@needs_vllm
@pytest.mark.slow
def test_no_process_is_left_after_the_engine(session: Session) -> None:
    """While it runs there are guard, API server and engine core; afterwards none."""
    assert len(session.running) >= 3
    assert session.left == []


@needs_vllm
@pytest.mark.slow
def test_no_process_is_left_after_the_owner_is_killed(policy: Path, tmp_path: Path) -> None:
    """SIGKILL to the process that opened the engine ends the server with all of its processes."""
    program = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom text2sql.config import VLLMSettings\n"
        "from text2sql.engines.vllm_engine import VLLMEngine\n"
        "async def run():\n"
        "    settings = VLLMSettings(arguments=('--enforce-eager',))\n"
        "    async with VLLMEngine(Path(sys.argv[1]), settings, Path(sys.argv[2])):\n"
        "        print('ready', flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(run())\n"
    )
    command = [sys.executable, "-c", program, str(policy), str(tmp_path / "vllm.log")]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"ready\n"
    running = servers(owner.pid)
    assert len(running) >= 3
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()

    deadline = time.monotonic() + 60
    while alive(running) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive(running) == []
