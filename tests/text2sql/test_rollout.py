"""Rollout: order, concurrency, seeds, priors and failures, with a small agent that asks the engine once."""

import asyncio
from dataclasses import replace

import pytest

from text2sql.dialogue import Item, PriorTurn
from text2sql.engines.base import Generation
from text2sql.errors import DataError, EngineError, InfrastructureError
from text2sql.rollout import Failure, derived_seed, rollout
from text2sql.trajectory import Event, Segment, Trajectory


def items(dialogues: int = 2, turns: int = 3) -> list[Item]:
    made = []
    for d in range(dialogues):
        history: tuple[PriorTurn, ...] = ()
        for t in range(1, turns + 1):
            made.append(
                Item(f"{d}/{t}", "dev", f"d{d}", t, turns, "shop", f"u{t}", f"gold {d}/{t}", history, "s", None)
            )
            history = (*history, PriorTurn(f"u{t}", f"gold {d}/{t}"))
    return made


class Recorder:
    """An engine that gives back the request's seed as token, ending requests in an order of their own."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.most_in_flight = 0

    async def generate(self, prompt_ids, params):
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        for _ in range(params.seed % 7):
            await asyncio.sleep(0)
        self.in_flight -= 1
        return Generation((params.seed,), (0.0,), "stop")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        return None


class OneMessageAgent:
    """Answers with its own SQL for the item, or not at all on odd samples; fails on the items of `broken`."""

    def __init__(self, broken: dict[str, Exception] | None = None) -> None:
        self.broken = broken or {}
        self.histories: dict[tuple[str, int], list[str]] = {}

    async def episode(self, engine, question, sample, params):
        self.histories[question.item_id, sample] = [turn.sql for turn in question.history]
        if question.item_id in self.broken:
            raise self.broken[question.item_id]
        generation = await engine.generate([1], params)
        sql = None if sample % 2 else f"own {question.item_id}"
        return Trajectory(
            *(question.item_id, question.dialogue_id, question.turn, question.db_id, sample, "gold"),
            segments=(Segment("prompt", (1,)), Segment("model", generation.token_ids, generation.logprobs)),
            events=(Event("finalize", 0, sql=sql),) if sql else (),
            final_sql=sql,
            stop_reason="answered" if sql else "max_messages",
        )


def run(agent, chosen, engine=None, **options):
    settings = {"samples": 2, "temperature": 1.0, "concurrency": 4, "seed": 0, "prior": "gold", **options}
    return asyncio.run(rollout(agent, engine or Recorder(), chosen, **settings))


def test_results_come_in_the_order_of_items_and_samples():
    """However the episodes end, the list is item by item, sample by sample."""
    trajectories = run(OneMessageAgent(), items(), samples=3, first_sample=5)

    assert [(t.item_id, t.sample) for t in trajectories] == [(i.item_id, s) for i in items() for s in (5, 6, 7)]


@pytest.mark.parametrize("prior", ["gold", "predicted"])
def test_a_trajectory_does_not_depend_on_its_company(prior):
    """The same item and sample get the same seed in another order, with other items and another concurrency."""
    many = run(OneMessageAgent(), items(3), samples=4, concurrency=7, prior=prior)
    few = run(OneMessageAgent(), items(3)[3:6][:: 1 if prior == "predicted" else -1], first_sample=2, prior=prior)
    known = {(t.item_id, t.sample): t for t in many}

    assert [known[t.item_id, t.sample] for t in few] == few
    assert len({derived_seed(0, t.item_id, t.sample) for t in many}) == len(many)


def test_another_seed_gives_other_samples():
    """The run's seed reaches every episode."""
    assert run(OneMessageAgent(), items(), seed=1) != run(OneMessageAgent(), items(), seed=2)


@pytest.mark.parametrize(("prior", "at_most"), [("gold", 5), ("predicted", 5)])
def test_no_more_episodes_are_in_flight_than_allowed(prior, at_most):
    """`concurrency` bounds them, and it is used to the full."""
    engine = Recorder()
    run(OneMessageAgent(), items(6), engine, samples=4, concurrency=at_most, prior=prior)

    assert engine.most_in_flight == at_most


def test_prior_gold_shows_gold():
    """The history is the benchmark's own."""
    agent = OneMessageAgent()
    trajectories = run(agent, items(1), prior="gold")

    assert agent.histories["0/3", 0] == ["gold 0/1", "gold 0/2"]
    assert {t.prior for t in trajectories} == {"gold"}


def test_prior_predicted_shows_the_agents_own_sql():
    """
    Case mp-memory-shows-own-answer: each turn sees what this sample answered before, blank where it gave no answer; the
    trajectories say so.
    """
    agent = OneMessageAgent()
    trajectories = run(agent, items(1), prior="predicted")

    assert agent.histories["0/3", 0] == ["own 0/1", "own 0/2"]
    assert agent.histories["0/3", 1] == ["", ""]
    assert {t.prior for t in trajectories} == {"predicted"}


def test_prior_predicted_plays_turns_in_order_wherever_they_stand():
    """Items of several dialogues in any order: the result keeps the given order, the play follows the dialogue."""
    agent = OneMessageAgent()
    mixed = items(2)[::-1]
    trajectories = run(agent, mixed, samples=1, prior="predicted")

    assert agent.histories["1/3", 0] == ["own 1/1", "own 1/2"]
    assert [t.item_id for t in trajectories] == [item.item_id for item in mixed]


def test_prior_predicted_needs_whole_dialogues():
    """A missing earlier turn has no SQL of the agent; gold must not fill the gap."""
    with pytest.raises(DataError, match=r"found turns \[1, 3\]"):
        run(OneMessageAgent(), [items(1)[0], items(1)[2]], prior="predicted")


def test_progress_counts_to_the_total():
    """Called once per trajectory, as they end."""
    seen = []
    run(OneMessageAgent(), items(), on_progress=lambda trajectory, done, total: seen.append((done, total)))

    assert seen == [(n, 12) for n in range(1, 13)]


def test_a_failing_machine_stops_the_rollout_as_it_is():
    """Without `on_failure` the error itself is raised, and no episode goes on behind it."""
    engine = Recorder()
    agent = OneMessageAgent({"0/2": InfrastructureError("disk full")})

    with pytest.raises(InfrastructureError, match="disk full"):
        run(agent, items(40), engine)
    assert len(agent.histories) < 240


def test_failures_can_be_set_aside_by_name():
    """
    Case rw-infrastructure-is-not-zero: the episode is handed to `on_failure` and left out, never turned into a wrong
    answer.
    """
    failures: list[Failure] = []
    agent = OneMessageAgent({"0/2": InfrastructureError("disk full")})
    trajectories = run(agent, items(), samples=1, on_failure=failures.append)

    assert failures == [Failure("0/2", 0, "0/2: disk full")]
    assert [t.item_id for t in trajectories] == ["0/1", "0/3", "1/1", "1/2", "1/3"]


def test_with_predicted_prior_a_failure_takes_the_later_turns_with_it():
    """Their history is unknown; the turns before it and other dialogues stay."""
    failures: list[Failure] = []
    agent = OneMessageAgent({"0/2": InfrastructureError("disk full")})
    trajectories = run(agent, items(), samples=1, prior="predicted", on_failure=failures.append)

    assert [(f.item_id, f.message) for f in failures] == [("0/2", "0/2: disk full"), ("0/3", "0/2: disk full")]
    assert [t.item_id for t in trajectories] == ["0/1", "1/1", "1/2", "1/3"]


def test_a_lost_engine_always_stops():
    """EngineError is not a failure of one episode."""
    agent = OneMessageAgent({"0/2": EngineError("gone")})

    with pytest.raises(EngineError, match="gone"):
        run(agent, items(), on_failure=lambda failure: None)


def test_a_turn_that_is_set_aside_is_still_played_with_predicted_prior():
    """It has a place in the history although it is never graded."""
    whole = [replace(item, fault="gold_error") if item.turn == 2 else item for item in items(1)]
    agent = OneMessageAgent()
    run(agent, whole, samples=1, prior="predicted")

    assert agent.histories["0/3", 0] == ["own 0/1", "own 0/2"]
