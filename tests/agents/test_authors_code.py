"""The released reward code's scores, quirk by quirk; quirk numbers as in agents/mtsql/authors_code.py."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.mtsql.authors_code import authors_score, clause_equality, decoded_text, final_sql, split_ground_truth
from evaluation.verdicts import Scorer
from text2sql.errors import DataError
from text2sql.executor import Executor
from text2sql.trajectory import Segment

GOLD = "SELECT city FROM staff WHERE id = 1"


@pytest.fixture(scope="module")
def judge(database_root: Path, executor: Executor, tmp_path_factory: pytest.TempPathFactory) -> Scorer:
    entry = {
        "db_id": "shop",
        "table_names_original": ["staff", "note"],
        "column_names_original": [[-1, "*"], [0, "id"], [0, "name"], [0, "city"], [1, "t"]],
        "column_types": ["text", "number", "text", "text", "text"],
        "primary_keys": [],
        "foreign_keys": [],
    }
    tables = tmp_path_factory.mktemp("tables") / "tables.json"
    tables.write_text(json.dumps([entry]), encoding="utf-8")
    return Scorer(database_root, tables, executor)


def call(sql: str, tool: str = "exec_sql") -> str:
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {{"code": {json.dumps(sql)}}}}}\n</tool_call>'


def reply(text: str) -> str:
    return f"\nuser\n<tool_response>\n{text}\n</tool_response>\nassistant\n"


@pytest.fixture(scope="module")
def real_judge(shared: Path) -> Iterator[Scorer]:
    with Executor(workers=2) as executor:
        yield Scorer(shared / "data" / "database", shared / "data" / "tables.json", executor)


def test_equals_every_stored_score_and_part(shared: Path, real_judge: Scorer):
    """All 168 stored trajectories get the score and the four parts of the released code, to 1e-9."""
    lines = (shared / "peer" / "reward_trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    stored = [json.loads(line) for line in lines]
    computed = [
        authors_score(row["solution"], *split_ground_truth(row["ground_truth"]), real_judge).as_published()
        for row in stored
    ]

    assert len(stored) == 168
    assert computed == [pytest.approx(row["score"], abs=1e-9, rel=0) for row in stored]


@pytest.mark.parametrize(
    ("solution", "expected"),
    [
        ("<answer_sql>A</answer_sql> <answer_sql>\nB\nC </answer_sql>", "B C"),
        (call("A") + reply("end with <answer_sql>...</answer_sql>"), "..."),
        (call("A") + call("B\n1", "memory_retrieve"), "B 1"),
        (call("A") + "<tool_call>{broken}</tool_call>", "A"),
        ('<tool_call>{"arguments": {"code": "A",},}</tool_call>', "A"),
        ("<think>first</think> <think> last </think>", "last"),
        ("no tags at all", "no tags at all"),
    ],
)
def test_final_sql_comes_from_anywhere_in_the_text(solution: str, expected: str):
    """Quirk 1: last answer tag, else last readable call, else last thinking, else everything."""
    assert final_sql(solution) == expected


def test_a_failing_gold_scores_zero(judge: Scorer):
    """Quirk 2: gold that fails is a 0 like any other; gold that exact match cannot read zeroes EM and F."""
    failing = authors_score(f"<answer_sql>{GOLD}</answer_sql>", "SELECT nmae FROM staff", "shop", judge)
    unreadable = authors_score(call(GOLD) + f"<answer_sql>{GOLD}</answer_sql>", f"{GOLD} AND (id = 1)", "shop", judge)

    assert (failing.execution_match, failing.exact_match) == (0.0, 0.0)
    assert (unreadable.execution_match, unreadable.exact_match, unreadable.propose) == (1.0, 0.0, 0.0)


def test_an_empty_answer_scores_zero(judge: Scorer):
    """Quirk 3: the evaluator raises on it, before exact match is asked."""
    score = authors_score("<answer_sql>  </answer_sql>", GOLD, "shop", judge)

    assert (score.execution_match, score.exact_match) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("gold", "pred", "expected"),
    [
        (GOLD, GOLD.lower().replace("=", "= "), 1.0),
        ("SELECT city FROM staff", "SELECT city , name FROM staff", 1 / 2),
        (GOLD, "SELECT city FROM staff WHERE id = 2", 2 / 3),
        (GOLD, "SELECT city FROM staff", 2 / 3),
        ("SELECT city FROM staff ORDER BY id LIMIT 1", "SELECT city FROM staff ORDER BY id LIMIT 2", 3 / 4),
        ("SELECT city FROM staff LIMIT 0", "SELECT city FROM staff", 1.0),
        ("SELECT city FROM staff LIMIT 1", "SELECT city FROM staff LIMIT one", 0.0),
        ("SELECT total FROM staff", "SELECT city FROM staff", 0.0),
        ("SELECT id FROM staff UNION SELECT id FROM staff", "SELECT id FROM staff UNION SELECT name FROM staff", 2 / 3),
    ],
)
def test_f_is_the_share_of_equal_clauses(judge: Scorer, gold: str, pred: str, expected: float):
    """Quirks 4 and 5: whole clauses, values and LIMIT's number included; unreadable is 0."""
    assert clause_equality(gold, pred, judge.schema("shop")) == pytest.approx(expected)


def test_g_counts_every_call_that_is_written(judge: Scorer):
    """Quirk 6: both tools, repeated, inside thinking, with a trailing comma; a call without SQL is left out."""
    wrong = "SELECT city FROM staff"  # F = 2/3
    text = (
        f"<think>{call(wrong)}</think>{call(GOLD)}{call(GOLD, 'memory_retrieve')}"
        f'<tool_call>{{"name": "exec_sql", "arguments": {{"code": "{wrong}",}}}}</tool_call>'
        '<tool_call>{"name": "exec_sql", "arguments": {"sql": "x"}}</tool_call>'
    )

    assert authors_score(text, GOLD, "shop", judge).propose == pytest.approx((2 / 3 + 1 + 1 + 2 / 3) / 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (call(GOLD) + reply("[(1,)]"), 1.0),
        (call(GOLD) + reply("[(1,)]") + "<exec_verify>NO_PASS</exec_verify>", 0.0),
        (call(GOLD) + reply("no such column: x") + "<exec_verify>no_pass</exec_verify>", 1.0),
        (call(GOLD) + reply("misuse of aggregate: max()") + "<exec_verify>no_pass</exec_verify>", 0.0),
        (call(GOLD) + reply("[]") + "<exec_verify>pass</exec_verify>", 0.0),
        (call(GOLD) + reply("[]") + "<exec_verify>no_pass</exec_verify>", 0.1),
        (call(GOLD) + reply("[('no data',)]") + "<exec_verify>pass</exec_verify>", 0.0),
        (call(GOLD) + reply("write <exec_verify>no_pass</exec_verify>") + "done", 1.0),
        (call(GOLD) + "\nuser\n<tool_response>cut off, write <exec_verify>no_pass</exec_verify>", 0.0),
        (call(GOLD) + call(GOLD) + reply("[]") + "<exec_verify>pass</exec_verify>", 0.0),
        ("no call", 0.0),
    ],
)
def test_e_guesses_the_status_from_words(judge: Scorer, text: str, expected: float):
    """Quirks 7 to 9: phrases of the reply, the first later verdict outside replies, missing counts as pass."""
    assert authors_score(text, GOLD, "shop", judge).e_verify == pytest.approx(expected)


def test_m_reads_the_verdict_of_the_next_execution(judge: Scorer):
    """Quirk 10: <memory_verify> is never read; the verdict that a later execution gets is taken for it."""
    wrong = call("SELECT city FROM staff", "memory_retrieve")  # F = 2/3
    refused = wrong + reply("check") + "<memory_verify>no_pass</memory_verify>"
    corrected = refused + call(GOLD) + reply("[(1,)]") + "<exec_verify>no_pass</exec_verify>"

    assert authors_score(refused, GOLD, "shop", judge).m_verify == pytest.approx(2 / 3)
    assert authors_score(corrected, GOLD, "shop", judge).m_verify == pytest.approx(1 / 3)


def test_tags_in_capitals_count_for_verdicts_only(judge: Scorer):
    """Quirk 11: E reads tags in any case, G in lower case."""
    score = authors_score(call(GOLD).replace("tool_call", "TOOL_CALL"), GOLD, "shop", judge)

    assert (score.e_verify, score.propose) == (1.0, 0.0)


def test_a_name_that_is_no_text_spoils_the_episode(judge: Scorer):
    """Quirk 12: the code raises on it and pays neither E nor M."""
    score = authors_score(call(GOLD) + '<tool_call>{"name": 5}</tool_call>', GOLD, "shop", judge)

    assert (score.e_verify, score.propose) == (0.0, 1.0)


@pytest.mark.parametrize("ground_truth", ["SELECT 1", "SELECT\t1\tshop"])
def test_ground_truth_needs_exactly_one_tab(ground_truth: str):
    """Quirk 13: anything else is refused, with the reason."""
    with pytest.raises(DataError, match="expected one"):
        split_ground_truth(ground_truth)


def test_our_episodes_are_decoded_as_theirs():
    """Role words as bare lines, tool replies in their tags, the prompt left out."""
    segments = (
        Segment("prompt", (1,), (), "P"),
        Segment("model", (2,), (0.0,), "M"),
        Segment("environment", (3,), (), "R"),
    )

    assert decoded_text(segments) == "M\nuser\n<tool_response>\nR\n</tool_response>\nassistant\n"


def test_a_call_inside_a_reply_is_judged_by_what_is_complete_from_there(judge: Scorer):
    """Quirk 7: cut at the call's end, the reply around it has no start left, so its own text counts, verdicts too."""
    inside = f"<tool_response>{call(GOLD)}<exec_verify>no_pass</exec_verify></tool_response>"
    outside = f"{call(GOLD)}<tool_response>(1,) <exec_verify>no_pass</exec_verify></tool_response>"

    assert authors_score(inside + "<exec_verify>pass</exec_verify>", GOLD, "shop", judge).e_verify == 0.0
    assert authors_score(outside + "<exec_verify>pass</exec_verify>", GOLD, "shop", judge).e_verify == 1.0
