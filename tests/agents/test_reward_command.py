"""`python -m agents.mtsql.rewards`, episodes in text form, and what broken text does to rewards."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.mtsql.authors_code import authors_score
from agents.mtsql.authors_text import read_messages, rebuild_events
from agents.mtsql.reward_command import read_episodes, score_episodes
from agents.mtsql.rewards import PARTS
from evaluation.verdicts import Scorer
from text2sql.errors import DataError
from text2sql.executor import Executor
from text2sql.trajectory import Segment, Trajectory

REPOSITORY = Path(__file__).resolve().parents[2]
GOLD = "SELECT count(*) FROM staff WHERE city = 'Graz'"
WRONG = "SELECT count(*) FROM staff"
EPISODE = f"""<think>count them</think>
<tool_call>
{{"name": "exec_sql", "arguments": {{"code": "{WRONG}"}}}}
</tool_call>
user
<tool_response>
The sql results example is: [(3,)]
</tool_response>
assistant
<exec_verify>no_pass</exec_verify>
<tool_call>
{{"name": "exec_sql", "arguments": {{"code": "{GOLD}"}}}}
</tool_call>
user
<tool_response>
finish with <answer_sql>YOUR SQL</answer_sql>
</tool_response>
assistant
<exec_verify>pass</exec_verify>
<answer_sql>{GOLD}</answer_sql>"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    entry = {
        "db_id": "shop",
        "table_names_original": ["staff", "note"],
        "column_names_original": [[-1, "*"], [0, "id"], [0, "name"], [0, "city"], [1, "t"]],
        "column_types": ["text", "number", "text", "text", "text"],
        "primary_keys": [],
        "foreign_keys": [],
    }
    path = tmp_path_factory.mktemp("command") / "tables.json"
    path.write_text(json.dumps([entry]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(workers=2) as pool:
        yield pool


@pytest.fixture(scope="module")
def scorer(database_root: Path, executor: Executor, tables: Path) -> Scorer:
    return Scorer(database_root, tables, executor)


def score(rows: list[dict], scorer: Scorer, variant: str = "paper") -> list[dict]:
    return list(score_episodes(read_episodes(map(json.dumps, rows), variant), scorer, variant))


def text_row(solution: str, gold: str = GOLD) -> dict:
    return {"solution": solution, "ground_truth": f"{gold}\tshop"}


def test_a_text_is_cut_into_messages_of_the_model():
    """Tool replies are no messages, also when they hold tags or the word assistant on a line."""
    replied = EPISODE.replace("[(3,)]", "assistant\n<tool_response> <answer_sql>x</answer_sql>")
    messages = read_messages(replied)

    assert [type(message.action).__name__ for message in messages] == ["Call", "Call", "Answer"]
    assert [message.e_verify for message in messages] == [None, "no_pass", "pass"]


def test_events_are_rebuilt_by_running_the_sql_again(scorer: Scorer):
    """The status is the executor's, the order of events the environment's."""
    events = rebuild_events(read_messages(EPISODE), lambda sql: scorer.executor.execute(sql, scorer.database("shop")))

    assert [event.kind for event in events] == [
        "propose", "execute", "e_verify", "self_correct", "execute", "e_verify", "finalize",
    ]  # fmt: skip
    assert [event.status for event in events if event.kind == "execute"] == ["ok", "ok"]


def test_calls_that_were_not_run_do_not_count(scorer: Scorer):
    """Case rw-same-call-many-times: two calls in one message were never executed."""
    call = f'<tool_call>{{"name": "exec_sql", "arguments": {{"code": "{GOLD}"}}}}</tool_call>'
    reply = "\nuser\n<tool_response>\n[(2,)]\n</tool_response>\nassistant\n"
    wrong = call.replace(GOLD, WRONG)
    once = score([text_row(wrong + reply + call + reply)], scorer)
    often = score([text_row(wrong + reply + call + reply + call + reply + call + call)], scorer)

    assert once[0]["propose"] == often[0]["propose"] == pytest.approx((2 / 3 + 1) / 2)


def test_an_answer_in_a_tool_reply_is_no_answer(scorer: Scorer):
    """Case rw-answer-tag-in-tool-reply: `paper` gives 0 to a model that gives up; its own earlier answer counts."""
    reply = f"\nuser\n<tool_response>\nfinish with <answer_sql>{GOLD}</answer_sql>\n</tool_response>\nassistant\n"
    gave_up, answered = score(
        [text_row(f"hm{reply}I give up"), text_row(f"<answer_sql>SELECT 1</answer_sql>{reply}I give up")], scorer
    )

    assert gave_up["score"] == 0.0
    assert answered["execution_match"] == 0.0
    assert score([text_row(f"hm{reply}I give up")], scorer, "authors_code")[0]["outcome_reward"] == 2.0


def test_text_and_trajectory_of_one_episode_get_one_reward(scorer: Scorer):
    """Both input forms, mixed: the same episode as text, and as a stored trajectory with its gold."""
    events = rebuild_events(read_messages(EPISODE), lambda sql: scorer.executor.execute(sql, scorer.database("shop")))
    segments = (Segment("prompt", (1,)), Segment("model", (2,), (0.0,), EPISODE))
    own = Trajectory("dev/0/1", "dev/0", 1, "shop", 0, "gold", segments, events, GOLD, "answered")
    rows = [text_row(EPISODE), {**json.loads(own.to_json()), "gold": GOLD}]
    paper, authors = score(rows, scorer), score(rows, scorer, "authors_code")

    assert paper[0] == {**paper[1], "line": 1}
    assert authors[0] == {**authors[1], "line": 1}
    assert paper[0]["score"] == pytest.approx(2 + 0.8 * 5 / 6 + 0.1 * 0.5)


def test_every_line_is_scored_in_order(scorer: Scorer):
    """Several chunks, with golds that fail and databases that are missing among them, come back line by line."""
    sql = "SELECT name FROM staff LIMIT {}"
    rows = [text_row(f"<answer_sql>{sql.format(n)}</answer_sql>", sql.format(n % 3 + 1)) for n in range(130)]
    rows[50] = text_row("x", "SELECT nope FROM staff")
    rows[100] = {"solution": "x", "ground_truth": "SELECT 1\tnowhere"}
    outputs = score(rows, scorer)

    assert [output["line"] for output in outputs] == list(range(1, 131))
    assert [output["line"] for output in outputs if output["status"] == "ungradable"] == [51]
    assert [output["line"] for output in outputs if output["status"] == "database"] == [101]
    assert [o["execution_match"] for o in outputs if o["status"] == "ok"] == [
        float(min(n, 3) == n % 3 + 1) for n in range(130) if n not in (50, 100)
    ]


def command(arguments: list[str], text: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "agents.mtsql.rewards", *arguments]
    return subprocess.run(program, input=text, capture_output=True, text=True, encoding="utf-8", cwd=REPOSITORY)


def test_the_command_reads_standard_input_and_tells_failures_apart(database_root: Path, tables: Path):
    """Case cl-success-that-was-none: 0 when scored, however badly; 1 unreadable; 3 no line; 4 nothing could be."""
    where = ["-", "--database", str(database_root), "--tables", str(tables)]
    scored = command([*where, "--variant", "authors_code"], json.dumps(text_row("大阪")) + "\n")
    broken = command(where, '{"solution": "x"}\n')
    empty = command(where, "\n")
    nowhere = command(where, json.dumps({"solution": "x", "ground_truth": "SELECT 1\tnowhere"}))

    assert (scored.returncode, broken.returncode, empty.returncode, nowhere.returncode) == (0, 1, 3, 4)
    assert json.loads(scored.stdout)["score"] == 0.0
    assert "line 1" in broken.stderr
    assert "1 episodes: ok 1" in scored.stderr


def test_half_a_surrogate_pair_spoils_no_line(database_root: Path, tables: Path):
    """JSON can say it and UTF-8 cannot: the lines after it are scored, too."""
    lost = {"solution": "x", "ground_truth": "SELECT 1\t\ud800"}
    scored = command(
        ["-", "--database", str(database_root), "--tables", str(tables)],
        "\n".join(map(json.dumps, (lost, text_row(f"<answer_sql>{GOLD}</answer_sql>")))),
    )

    assert scored.returncode == 0
    assert [json.loads(line)["status"] for line in scored.stdout.splitlines()] == ["database", "ok"]


@pytest.mark.parametrize(("details", "said"), [("null", "no gold"), ("{}", "no gold"), ("[1]", "details is no object")])
def test_a_trajectory_without_its_gold_is_named_by_line(details: str, said: str):
    """Whatever stands in its details."""
    with pytest.raises(DataError, match=rf"line 2 cannot be scored: .*{said}"):
        list(read_episodes(["\n", f'{{"events": [], "details": {details}}}'], "paper"))


FRAGMENTS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<answer_sql>", "</answer_sql>",
    "<exec_verify>", "</exec_verify>", "<memory_verify>", "pass", "no_pass", "\nuser\n", "\nassistant\n", GOLD, WRONG, "[]",
    '{"name": "exec_sql", "arguments": {"code": "SELECT id FROM staff"}}', '{"name": null, "arguments": []}', '{"name": 3}',
    '{"name": "memory_retrieve", "arguments": {"code": "SELECT"}}', "{", "}", '"', "\\", "\ud800", "no such column", ";",
]  # fmt: skip
BROKEN_TEXT = st.one_of(st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join), st.text(max_size=60))


@given(BROKEN_TEXT, st.sampled_from([GOLD, WRONG, "SELECT", ""]))
def test_broken_text_raises_nothing(scorer: Scorer, solution: str, gold: str):
    """Whatever the text, both variants give a number within bounds, or say why there is none."""
    paper = score([text_row(solution, gold)], scorer)[0]
    authors = authors_score(solution, gold, "shop", scorer)

    assert (paper["score"] is None) == (paper["status"] != "ok")
    assert paper["score"] is None or 0.0 <= paper["score"] <= 3.0 + 1e-9
    assert all(paper[part] is None or 0.0 <= paper[part] <= 1.0 + 1e-9 for part in PARTS)
    assert all(0.0 <= part <= 1.0 + 1e-9 for part in vars(authors).values())
