"""Whole episodes on a real tokenizer: budgets, loss masks, and the same events when ids are replayed."""

import asyncio
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.mtsql.actions import EXEC_SQL, MEMORY_RETRIEVE, answer_text, call_text, e_verify_text, m_verify_text
from agents.mtsql.agent import MtsqlAgent, replay_matches
from text2sql.chat import ChatCodec
from text2sql.config import AgentSettings
from text2sql.dialogue import Item, PriorTurn
from text2sql.engines.base import Generation, SamplingParams
from text2sql.engines.scripted import ScriptedEngine
from text2sql.errors import EngineError, TrajectoryError
from text2sql.rollout import rollout
from text2sql.trajectory import Segment, Trajectory

COUNT = "SELECT count(*) FROM staff"
GRAZ = "SELECT count(*) FROM staff WHERE city = 'Graz'"
MESSAGES = (
    "<think>\nt1\n</think>\n\n" + call_text(EXEC_SQL, "SELECT nope FROM staff"),
    "<think>\nt2\n</think>\n\n" + e_verify_text("no_pass") + call_text(EXEC_SQL, GRAZ),
    "<think>\nt3\n</think>\n\n" + e_verify_text("pass") + call_text(MEMORY_RETRIEVE, GRAZ),
    "<think>\nt4\n</think>\n\n" + m_verify_text("pass") + answer_text(GRAZ),
)
PARAMS = SamplingParams(max_tokens=10_000, temperature=0.7, seed=5)


class Messages:
    """An engine that says given token ids, cut at the limit it is asked for, and remembers the requests."""

    def __init__(self, *messages: list[int]) -> None:
        self.messages = list(messages)
        self.requests: list[tuple[list[int], SamplingParams]] = []

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Generation:
        whole = self.messages[len(self.requests)]
        self.requests.append((prompt_ids, params))
        ids = tuple(whole[: params.max_tokens])
        return Generation(ids, tuple(-0.5 for _ in ids), "stop" if len(ids) == len(whole) else "length")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        return None


@pytest.fixture
def make_agent(codec, executor, database_root):
    def make(**settings) -> MtsqlAgent:
        return MtsqlAgent(codec, executor, database_root, AgentSettings(**{"prompt": "compact", **settings}))

    return make


def spoken(codec: ChatCodec, *texts: str) -> list[list[int]]:
    return [[*codec.encode_model(text), codec.end_of_turn] for text in texts]


def authors(trajectory: Trajectory) -> list[str]:
    return [segment.author for segment in trajectory.segments]


@pytest.mark.parametrize("style", ["full", "compact"])
def test_only_what_the_model_said_is_trained(make_agent, codec, later_question, style):
    """
    Case ma-tool-tokens: on real tokenization the mask covers exactly the sampled ids, stop tokens included; decoded, the
    trained tokens are the model's messages and the rest is prompt and replies.
    """
    engine = Messages(*spoken(codec, *MESSAGES))
    trajectory = asyncio.run(make_agent(prompt=style).episode(engine, later_question, 0, PARAMS))
    trajectory.validate()
    ids, mask = trajectory.token_ids, trajectory.loss_mask
    trained = [token for token, bit in zip(ids, mask, strict=True) if bit]

    assert trained == [token for message in engine.messages for token in message]
    assert codec.decode(trained) == "".join(f"{message}<|im_end|>" for message in MESSAGES)
    assert authors(trajectory) == ["prompt", *["model", "environment"] * 3, "model"]
    assert trajectory.stop_reason == "answered"


def test_the_whole_episode_is_what_the_template_renders(make_agent, codec, later_question):
    """Case ma-thinking-lost-in-sft: the ids equal the template's rendering with the thinking of every message in it."""
    trajectory = asyncio.run(make_agent().replay(later_question, MESSAGES))
    roles = {"prompt": "user", "model": "assistant", "environment": "tool"}
    chat = [{"role": roles[segment.author], "content": segment.text} for segment in trajectory.segments]
    whole = codec.tokenizer.apply_chat_template(chat, return_dict=False)

    assert [*trajectory.token_ids, *codec.encode_model("\n")] == list(whole)


def test_thinking_is_in_the_training_ids_and_in_the_loss(make_agent, codec, later_question):
    """Case ma-thinking-lost-in-sft: t1 to t4 are trained, exactly as sampled."""
    trajectory = asyncio.run(make_agent().replay(later_question, MESSAGES))
    trained = codec.decode([t for t, bit in zip(trajectory.token_ids, trajectory.loss_mask, strict=True) if bit])

    assert all(f"<think>\nt{i}\n</think>" in trained for i in range(1, 5))


def test_changing_a_reply_changes_no_trained_token(make_agent, later_question):
    """Case ma-tool-tokens: a reply with role words and an answer in it opens no new span, and no label moves."""
    plain, marked = (
        asyncio.run(make_agent().replay(later_question, [call_text(EXEC_SQL, sql), answer_text(COUNT)]))
        for sql in ("SELECT t FROM note LIMIT 0", "SELECT t FROM note         ")
    )
    trained = [[s.token_ids for s in trajectory.segments if s.author == "model"][1] for trajectory in (plain, marked)]

    assert "assistant" in marked.segments[2].text
    assert plain.segments[2].text != marked.segments[2].text
    assert trained[0] == trained[1]
    assert [len(t.segments) for t in (plain, marked)] == [4, 4]
    assert sum(marked.loss_mask) == sum(len(s.token_ids) for s in marked.segments if s.author == "model")


def test_each_request_is_the_trajectory_so_far(make_agent, codec, later_question):
    """Case ro-history-rendered-again: the ids of each step are an exact prefix of the next step and of what is stored."""
    engine = Messages(*spoken(codec, *MESSAGES))
    trajectory = asyncio.run(make_agent().episode(engine, later_question, 0, PARAMS))
    prompts = [prompt for prompt, _ in engine.requests]

    assert len(prompts) == 4
    for prompt, message in zip(prompts, engine.messages, strict=True):
        assert trajectory.token_ids[: len(prompt) + len(message)] == [*prompt, *message]


def test_sampled_ids_are_stored_although_they_would_encode_otherwise(make_agent, codec, first_question):
    """
    Case ma-mask-longer-than-ids: a message sampled character by character decodes to the same text but encodes to fewer
    ids; the sampled ids are trained, and ids, mask and log-probabilities have one length.
    """
    text = answer_text(COUNT)
    letters = [i for character in text for i in codec.encode_model(character)]
    engine = Messages([*letters, codec.end_of_turn])
    trajectory = asyncio.run(make_agent().episode(engine, first_question, 0, PARAMS))
    ids, mask, logprobs = trajectory.completion

    assert len(letters) > len(codec.encode_model(text))
    assert trajectory.final_sql == COUNT
    assert ids == [*letters, codec.end_of_turn]
    assert len(ids) == len(mask) == len(logprobs) == sum(mask)


def test_a_row_whose_lengths_differ_is_refused_with_its_id(make_agent, first_question):
    """Case ma-mask-longer-than-ids: checked when a row is written, not trimmed."""
    trajectory = asyncio.run(make_agent().replay(first_question, [answer_text(COUNT)]))
    broken = replace(trajectory, segments=(trajectory.segments[0], Segment("model", (1, 2, 3), (0.0, 0.0))))

    with pytest.raises(TrajectoryError, match="dev/0/1 sample 0"):
        broken.validate()


def test_markup_in_a_reply_adds_no_control_token(make_agent, codec, first_question):
    """Case ro-tool-reply-with-special-text: a cell with chat markup leaves exactly the frame's control tokens."""
    vocabulary = codec.tokenizer.get_vocab()
    messages = [call_text(EXEC_SQL, "SELECT t FROM note"), answer_text(COUNT)]
    trajectory = asyncio.run(make_agent().replay(first_question, messages))
    reply = trajectory.segments[2]

    assert "<|im_end|><|im_start|>assistant" in reply.text
    assert "<tool_call>" in reply.text
    assert reply.token_ids.count(vocabulary["<|im_start|>"]) == 2
    assert vocabulary["<tool_call>"] not in reply.token_ids
    assert trajectory.final_sql == COUNT


def test_a_message_gets_what_is_left_of_the_episode(make_agent, codec, first_question):
    """
    Case ro-per-turn-or-total-budget: message limit 60, episode limit 200, as in the case with the lengths scaled to this
    tokenizer: the third message gets exactly the rest, nothing is trimmed afterwards.
    """
    call, answer = spoken(codec, call_text(EXEC_SQL, COUNT), "<think>" + "so " * 50 + "</think>" + answer_text(COUNT))
    reply = len(codec.environment_ids("1 row (count(*)): (3)"))
    total = 2 * (len(call) + reply) + 20
    engine = Messages(call, call, answer)
    agent = make_agent(max_message_tokens=len(call) + 10, max_episode_tokens=total)
    trajectory = asyncio.run(agent.episode(engine, first_question, 0, PARAMS))

    assert [params.max_tokens for _, params in engine.requests] == [len(call) + 10, len(call) + 10, 20]
    assert trajectory.completion_tokens == total
    assert trajectory.segments[-1].token_ids == tuple(answer[:20])
    assert trajectory.stop_reason == "max_episode_tokens"
    assert trajectory.final_sql is None
    trajectory.validate()


def test_a_message_that_runs_into_its_own_limit_ends_the_episode(make_agent, codec, first_question):
    """Even a complete answer in it does not count: the message was not finished."""
    (message,) = spoken(codec, answer_text(COUNT) + " and so on" * 50)
    agent = make_agent(max_message_tokens=60)
    trajectory = asyncio.run(agent.episode(Messages(message), first_question, 0, PARAMS))

    assert trajectory.stop_reason == "max_message_tokens"
    assert trajectory.final_sql is None
    assert [(event.kind, event.fault) for event in trajectory.events] == [("malformed", "cut_off")]
    assert len(trajectory.segments[-1].token_ids) == 60


def test_a_reply_without_room_ends_the_episode_cleanly(make_agent, codec, first_question):
    """The call was executed and stays recorded; the reply is not stored in part."""
    (call,) = spoken(codec, call_text(EXEC_SQL, COUNT))
    reply = codec.environment_ids("1 row (count(*)): (3)")
    agent = make_agent(max_episode_tokens=len(call) + len(reply))
    trajectory = asyncio.run(agent.episode(Messages(call), first_question, 0, PARAMS))

    assert trajectory.stop_reason == "max_episode_tokens"
    assert authors(trajectory) == ["prompt", "model"]
    assert [event.kind for event in trajectory.events] == ["propose", "execute"]


def test_a_prompt_that_is_too_long_is_not_answered(make_agent, first_question):
    """Nothing is generated and nothing is cut; the trajectory says why."""
    engine = Messages()
    trajectory = asyncio.run(make_agent(max_prompt_tokens=16).episode(engine, first_question, 0, PARAMS))

    assert (trajectory.stop_reason, trajectory.final_sql, engine.requests) == ("prompt_too_long", None, [])
    assert authors(trajectory) == ["prompt"]
    trajectory.validate()


def test_a_message_ended_by_end_of_text_is_closed_by_the_environment(make_agent, codec, first_question):
    """The next message starts after a whole turn, and the end of turn that the model did not say is not trained."""
    end_of_text = next(i for i in codec.stop_token_ids if i != codec.end_of_turn)
    engine = Messages(
        [*codec.encode_model(call_text(EXEC_SQL, COUNT)), end_of_text], *spoken(codec, answer_text(COUNT))
    )
    trajectory = asyncio.run(make_agent().episode(engine, first_question, 0, PARAMS))

    assert trajectory.segments[2].token_ids[0] == codec.end_of_turn
    assert trajectory.final_sql == COUNT


def test_messages_of_one_episode_have_different_seeds(make_agent, codec, later_question):
    """Derived from the episode's seed, so that the same episode asks the same again."""
    seeds = []
    for _ in range(2):
        engine = Messages(*spoken(codec, *MESSAGES))
        asyncio.run(make_agent().episode(engine, later_question, 0, PARAMS))
        seeds.append([params.seed for _, params in engine.requests])

    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4


def test_an_engine_that_breaks_its_limit_is_an_error(make_agent, codec, first_question):
    """Ids beyond the limit are never trimmed away in silence."""

    class Overlong(Messages):
        async def generate(self, prompt_ids, params):
            return await super().generate(prompt_ids, replace(params, max_tokens=10_000))

    with pytest.raises(EngineError, match="dev/0/1"):
        engine = Overlong(*spoken(codec, "x" * 100))
        asyncio.run(make_agent(max_message_tokens=10).episode(engine, first_question, 0, PARAMS))


def test_a_replay_gives_the_same_events_and_ids(make_agent, codec, later_question):
    """Token ids, decoded and replayed through the environment, give the same events; log-probabilities are 0.0."""
    agent = make_agent(prompt="full")
    sampled = asyncio.run(agent.episode(Messages(*spoken(codec, *MESSAGES)), later_question, 3, PARAMS))
    again = asyncio.run(agent.replay(later_question, MESSAGES, sample=3))

    assert asyncio.run(replay_matches(agent, sampled, later_question)) == (True, "")
    assert again.token_ids == sampled.token_ids
    assert {value for segment in again.segments for value in segment.logprobs} == {0.0}
    assert [replace(event, seconds=0) for event in again.events] == [
        replace(event, seconds=0) for event in sampled.events
    ]


def test_a_statement_stopped_by_the_clock_may_end_in_time_when_replayed(make_agent, later_question):
    """What follows it is not compared: on a less busy machine the same messages can get other replies."""
    agent = make_agent()
    trajectory = asyncio.run(agent.replay(later_question, MESSAGES))
    events = [replace(event, status="timeout") if event.kind == "execute" else event for event in trajectory.events]
    stopped = replace(trajectory, events=tuple(events), stop_reason="max_messages")

    assert asyncio.run(replay_matches(agent, stopped, later_question)) == (True, "")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: replace(t, events=t.events[:-1]), "event 8"),
        (lambda t: replace(t, events=(replace(t.events[0], sql="SELECT 9"), *t.events[1:])), "event 0"),
        (lambda t: replace(t, segments=(replace(t.segments[0], token_ids=(1, 2)), *t.segments[1:])), "segment 0"),
        (lambda t: replace(t, segments=t.segments[:-1]), "not over"),
        (lambda t: replace(t, final_sql="SELECT 9"), "ends with"),
        (lambda t: replace(t, stop_reason="max_messages"), "ends with"),
    ],
)
def test_a_replay_that_differs_says_where(make_agent, later_question, change, named):
    """The check finds changed events, changed or missing segments, and another end."""
    agent = make_agent()
    trajectory = change(asyncio.run(agent.replay(later_question, MESSAGES)))
    matches, difference = asyncio.run(replay_matches(agent, trajectory, later_question))

    assert not matches
    assert named in difference
    assert "dev/0/2" in difference


def test_a_script_that_does_not_fit_its_episode_is_refused(make_agent, first_question):
    """Too few messages, or more than the episode takes: a scripted episode is whole or an error."""
    agent = make_agent()

    with pytest.raises(TrajectoryError, match="not over after its 1 messages"):
        asyncio.run(agent.replay(first_question, [call_text(EXEC_SQL, COUNT)]))
    with pytest.raises(TrajectoryError, match=r"ended \(answered\) after 1 of 2"):
        asyncio.run(agent.replay(first_question, [answer_text(COUNT)] * 2))


@pytest.mark.parametrize("budget", ["max_message_tokens", "max_episode_tokens", "max_prompt_tokens"])
def test_a_scripted_episode_over_budget_is_refused(make_agent, first_question, budget):
    """Half an answer or a prompt without one never becomes a training row."""
    with pytest.raises(TrajectoryError, match="dev/0/1"):
        asyncio.run(make_agent(**{budget: 16}).replay(first_question, [answer_text(f"{COUNT} WHERE id IN (1, 2, 3)")]))


def test_many_episodes_can_share_one_agent(make_agent, later_question, first_question):
    """Episodes in flight together do not see each other."""
    agent = make_agent()

    async def together():
        return await asyncio.gather(
            *[agent.replay(later_question, MESSAGES) for _ in range(4)],
            *[agent.replay(first_question, [call_text(EXEC_SQL, COUNT), answer_text(COUNT)]) for _ in range(4)],
        )

    trajectories = asyncio.run(together())

    assert [trajectory.final_sql for trajectory in trajectories] == [GRAZ] * 4 + [COUNT] * 4
    assert len({tuple(trajectory.token_ids) for trajectory in trajectories}) == 2


@pytest.mark.parametrize(("prior", "shown", "hidden"), [("gold", COUNT, "SELECT 0"), ("predicted", "SELECT 0", COUNT)])
def test_a_dialogue_is_played_with_gold_or_with_the_agents_own_sql(make_agent, codec, prior, shown, hidden):
    """
    Case mp-memory-shows-own-answer: in a rollout the second turn's prompt and memory hold gold, or what the agent
    answered at the first; the gold of the asked turn is never there.
    """
    first = Item("d/1", "dev", "d", 1, 2, "shop", "How many?", COUNT, (), "staff(id)", None)
    history = (PriorTurn("How many?", COUNT),)
    second = Item("d/2", "dev", "d", 2, 2, "shop", "In Graz?", GRAZ, history, "staff(id)", None)

    def reply(prompt_ids: list[int]) -> str:
        text = codec.decode(prompt_ids)
        if "In Graz?" in text and "turn 1:" not in text:
            return call_text(MEMORY_RETRIEVE, "SELECT 1")
        return answer_text("SELECT 0" if "In Graz?" not in text else "SELECT 1")

    engine = ScriptedEngine(reply, codec)
    trajectories = asyncio.run(
        rollout(make_agent(), engine, [first, second], samples=1, temperature=0, concurrency=2, seed=0, prior=prior)
    )
    said = "".join(s.text for s in trajectories[1].segments if s.author != "model")

    assert [t.final_sql for t in trajectories] == ["SELECT 0", "SELECT 1"]
    assert f"sql: {shown}\n" in said
    assert f"sql: {hidden}" not in said
    assert GRAZ not in said
    assert {t.prior for t in trajectories} == {prior}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sampled_ids_give_a_valid_trajectory_that_replays(make_agent, codec, later_question, data):
    """
    Whatever ids a model draws, stop tokens in odd places and invalid UTF-8 included: the masks line up, only model
    tokens are trained, and replaying the ids gives the same events.
    """
    agent = make_agent(max_message_tokens=60, max_episode_tokens=300, max_messages=4)
    pieces = [codec.encode_model(text) for text in (*MESSAGES, "<think>", "</think>", answer_text("SELECT 1"))]
    pieces += [[token] for token in codec.stop_token_ids]
    anything = st.lists(st.integers(0, len(codec.tokenizer) + 3), max_size=6)
    message = st.lists(st.sampled_from(pieces) | anything, min_size=1, max_size=3).map(
        lambda parts: [i for part in parts for i in part]
    )

    class Drawn(Messages):
        async def generate(self, prompt_ids, params):
            ids = data.draw(message)[: params.max_tokens] or [0]
            stops = [place for place, token in enumerate(ids) if token in params.stop_token_ids]
            ids = tuple(ids[: stops[0] + 1] if stops else ids)
            self.messages.append(list(ids))
            return Generation(ids, (-0.1,) * len(ids), "stop" if stops else "length")

    engine = Drawn()
    trajectory = asyncio.run(agent.episode(engine, later_question, 0, PARAMS))
    trajectory.validate()
    lengths = accumulate(len(segment.token_ids) for segment in trajectory.segments)

    assert list(lengths)[-1] == len(trajectory.loss_mask)
    assert [list(s.token_ids) for s in trajectory.segments if s.author == "model"] == engine.messages
    assert trajectory.completion_tokens <= 300
    assert Trajectory.from_json(trajectory.to_json()) == trajectory
    assert asyncio.run(replay_matches(agent, trajectory, later_question)) == (True, "")
