"""
The agent: engine and environment in turn, one question to one Trajectory.

    prompt -> [message of the model -> what the environment says] ... -> answer, or a budget is spent

Token budgets, each counted in tokens and none trimmed afterwards (what is stored is what was sampled):

max_prompt_tokens   a longer prompt: nothing is generated
max_message_tokens  one message; a message that runs into it is cut off, nothing in it counts, the episode ends
max_episode_tokens  all tokens after the prompt, the environment's included. A message gets what is left of it if that
                    is less than its own limit; a reply that leaves no token for a further message ends the episode
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from agents.mtsql.environment import Environment
from agents.mtsql.memory import DialogueMemory, HistoryMemory
from text2sql.chat import ChatCodec
from text2sql.config import AgentSettings
from text2sql.dialogue import Question
from text2sql.engines.base import Engine, Generation, SamplingParams
from text2sql.errors import EngineError, TrajectoryError
from text2sql.executor import Executor
from text2sql.trajectory import Event, Segment, Trajectory

_ONE_MESSAGE_SEED = 1_000_003  # keeps the seeds of an episode's messages apart


class MtsqlAgent:
    """
    `memory` makes the memory of a question's episode; left out, it is the question's own history. Databases are
    `<database_root>/<db_id>/<db_id>.sqlite`. One agent serves any number of episodes at once.
    """

    def __init__(
        self,
        codec: ChatCodec,
        executor: Executor,
        database_root: Path,
        settings: AgentSettings,
        memory: Callable[[Question], DialogueMemory] | None = None,
    ) -> None:
        self.codec = codec
        self.executor = executor
        self.database_root = database_root
        self.settings = settings
        self._memory = memory or self._history_memory

    def database(self, question: Question) -> Path:
        return self.database_root / question.db_id / f"{question.db_id}.sqlite"

    def environment(self, question: Question) -> Environment:
        """The environment of one episode, as `episode` uses it."""
        return Environment(
            question,
            self.executor,
            self.database(question),
            self._memory(question),
            self.settings,
            in_thinking=self.codec.opens_thinking,
        )

    async def episode(self, engine: Engine, question: Question, sample: int, params: SamplingParams) -> Trajectory:
        """
        Play one episode. `params.max_tokens` bounds each message in addition to the agent's own budgets, its seed is
        varied from message to message. Raises EngineError, InfrastructureError or DatabaseError.
        """
        started = time.perf_counter()
        environment = self.environment(question)
        text, tools = environment.prompt()
        segments = [Segment("prompt", tuple(self.codec.prompt_ids(text, tools)), text=text)]
        if len(segments[0].token_ids) > self.settings.max_prompt_tokens:
            environment.stop("prompt_too_long")
        while environment.stop_reason is None:
            await self._turn(engine, environment, segments, params)
        return Trajectory(
            item_id=question.item_id,
            dialogue_id=question.dialogue_id,
            turn=question.turn,
            db_id=question.db_id,
            sample=sample,
            prior="gold",  # a rollout with predicted prior says so
            segments=tuple(segments),
            events=tuple(environment.events),
            final_sql=environment.final_sql,
            stop_reason=environment.stop_reason,
            seconds=time.perf_counter() - started,
            details={"temperature": params.temperature, "top_p": params.top_p, "seed": params.seed},
        )

    async def replay(self, question: Question, messages: Sequence[str | Sequence[int]], sample: int = 0) -> Trajectory:
        """
        The episode in which the model says `messages`: texts written by hand (an end of turn is added), or token ids
        taken as they are. Log-probabilities are 0.0. Raises TrajectoryError when the messages do not make one whole
        episode: it is over before the last of them or not after it, or a token budget has no room for one.
        """
        ids = [self._message_ids(message) for message in messages]
        engine = _Recorded(ids, question.item_id)
        params = SamplingParams(self.settings.max_episode_tokens, stop_token_ids=self.codec.stop_token_ids)
        trajectory = await self.episode(engine, question, sample, params)
        if engine.position != len(ids):
            raise TrajectoryError(
                f"{question.item_id}: the episode ended ({trajectory.stop_reason}) after {engine.position} of "
                f"{len(ids)} messages"
            )
        return replace(trajectory, details={})

    async def _turn(
        self, engine: Engine, environment: Environment, segments: list[Segment], params: SamplingParams
    ) -> None:
        """One message of the model and what the environment says to it; both are appended to `segments`."""
        left = self.settings.max_episode_tokens - sum(len(segment.token_ids) for segment in segments[1:])
        generation = await self._generate(engine, environment, segments, params, left)
        ids = generation.token_ids
        segments.append(Segment("model", ids, generation.logprobs, self.codec.message_text(ids)))
        left -= len(ids)
        if not ids or ids[-1] not in self.codec.stop_token_ids:
            environment.cut_off("max_message_tokens" if left > 0 else "max_episode_tokens")
            return
        reply = await environment.step(segments[-1].text)
        if reply.text is None:
            return
        reply_ids = self.codec.environment_ids(reply.text, close_turn=ids[-1] != self.codec.end_of_turn)
        if len(reply_ids) >= left:
            environment.stop("max_episode_tokens")
            return
        segments.append(Segment("environment", tuple(reply_ids), text=reply.text))

    async def _generate(
        self,
        engine: Engine,
        environment: Environment,
        segments: Sequence[Segment],
        params: SamplingParams,
        left: int,
    ) -> Generation:
        limit = min(left, self.settings.max_message_tokens, params.max_tokens)
        seed = None if params.seed is None else (params.seed + environment.messages * _ONE_MESSAGE_SEED) % 2**31
        context = [token for segment in segments for token in segment.token_ids]
        generation = await engine.generate(
            context, replace(params, max_tokens=limit, stop_token_ids=self.codec.stop_token_ids, seed=seed)
        )
        if not 0 < len(generation.token_ids) <= limit or len(generation.logprobs) != len(generation.token_ids):
            raise EngineError(
                f"{environment.question.item_id}: asked for 1 to {limit} tokens, the engine gave "
                f"{len(generation.token_ids)} token ids and {len(generation.logprobs)} logprobs."
            )
        return generation

    def _message_ids(self, message: str | Sequence[int]) -> tuple[int, ...]:
        if isinstance(message, str):
            return (*self.codec.encode_model(message), self.codec.end_of_turn)
        return tuple(message)

    def _history_memory(self, question: Question) -> DialogueMemory:
        characters = self.settings.result_characters if self.settings.prompt == "full" else 0
        return HistoryMemory(self.executor, self.database(question), characters)


class _Recorded:
    """An engine that says what was said before, or raises TrajectoryError where the budgets have no room for it."""

    def __init__(self, messages: Sequence[tuple[int, ...]], item_id: str) -> None:
        self.messages = messages
        self.item_id = item_id
        self.position = 0

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Generation:
        if self.position == len(self.messages):
            raise TrajectoryError(f"{self.item_id}: the episode is not over after its {self.position} messages")
        whole = self.messages[self.position]
        self.position += 1
        if len(whole) > params.max_tokens:
            raise TrajectoryError(
                f"{self.item_id}: message {self.position} has {len(whole)} tokens, the token budgets leave "
                f"{params.max_tokens} for it"
            )
        return Generation(whole, (0.0,) * len(whole), "stop" if whole[-1] in params.stop_token_ids else "length")

    async def __aenter__(self) -> "_Recorded":
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None


async def replay_matches(agent: MtsqlAgent, trajectory: Trajectory, question: Question) -> tuple[bool, str]:
    """
    Whether the trajectory's own message ids, decoded and replayed through the environment, give the same prompt,
    replies, events and end; if not, what differs first. Run times are not compared, and where a statement ran into its
    time limit, then or now, the rest is not either: the clock decides how that one ends.
    """
    messages = [segment.token_ids for segment in trajectory.segments if segment.author == "model"]
    try:
        again = await agent.replay(question, messages)
    except TrajectoryError as error:
        return False, str(error)
    if any(event.status == "timeout" for one in (trajectory, again) for event in one.events):
        return True, ""
    for index, (was, now) in enumerate(zip_longest(trajectory.segments, again.segments)):
        if was is None or now is None or (was.author, was.token_ids) != (now.author, now.token_ids):
            return (
                False,
                f"{trajectory.item_id} sample {trajectory.sample}: segment {index} is {_segment(now)}, was {_segment(was)}",
            )
    for index, (event, other) in enumerate(zip_longest(_timeless(trajectory), _timeless(again))):
        if event != other:
            return False, f"{trajectory.item_id} sample {trajectory.sample}: event {index} is {other}, was {event}"
    end, other_end = (trajectory.stop_reason, trajectory.final_sql), (again.stop_reason, again.final_sql)
    if end != other_end:
        return False, f"{trajectory.item_id} sample {trajectory.sample}: it ends with {other_end}, was {end}"
    return True, ""


def _timeless(trajectory: Trajectory) -> list[Event]:
    return [replace(event, seconds=0.0) for event in trajectory.events]


def _segment(segment: Segment | None) -> str:
    return "missing" if segment is None else f"{segment.author}, {len(segment.token_ids)} tokens, {segment.text[:60]!r}"
