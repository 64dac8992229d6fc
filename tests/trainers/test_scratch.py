"""A policy made from nothing is a Qwen3 in everything but size."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from trl.chat_template_utils import is_chat_template_prefix_preserving, qwen3_chat_template

from text2sql.config import ModelSettings
from text2sql.policy import check_policy
from trainers.scratch import MARKUP_TOKENS, SPECIAL_TOKENS, make_scratch_policy, train_tokenizer, value_words

TEXTS = ["Show the name of every singer.", "SELECT name FROM singer WHERE age > 20", "<think>count</think>"] * 20
SETTINGS = ModelSettings(init="scratch", vocabulary=320, layers=2, width=32, heads=4, key_value_heads=2)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "exec_sql",
            "description": "Run a query.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
        },
    }
]
CALL = '<think>\nlook\n</think>\n\n<tool_call>\n{"name": "exec_sql", "arguments": {"code": "SELECT 1"}}\n</tool_call>'
EPISODE = [
    {"role": "user", "content": "How many singers?"},
    {"role": "assistant", "content": CALL},
    {"role": "tool", "content": "1"},
    {"role": "assistant", "content": "<think>\ndone\n</think>\n\n<answer_sql>SELECT 1</answer_sql>"},
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scratch")
    make_scratch_policy(TEXTS, SETTINGS, 3, folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(policy: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(policy)


def test_loads_with_the_auto_classes(policy: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Model and tokenizer load as any Hugging Face policy does, agree on the vocabulary and on how a message ends."""
    model = AutoModelForCausalLM.from_pretrained(policy)

    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert str(model.dtype) == "torch.float32"
    assert model.config.vocab_size == len(tokenizer) <= 320
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_record_fits_the_folder(policy: Path) -> None:
    """A new policy passes the check that every stage makes before it loads one."""
    record = check_policy(policy)

    assert record.name == "scratch"
    assert record.parent is None


def test_same_texts_and_seed_give_the_same_files(policy: Path, tmp_path: Path) -> None:
    """Tokenizer and weights are determined by texts, settings and seed."""
    make_scratch_policy(iter(TEXTS), SETTINGS, 3, tmp_path / "again")
    make_scratch_policy(TEXTS, SETTINGS, 4, tmp_path / "other")

    for name in ("tokenizer.json", "model.safetensors", "config.json", "policy.json"):
        assert (policy / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert (policy / "model.safetensors").read_bytes() != (tmp_path / "other" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("token", [*SPECIAL_TOKENS, *MARKUP_TOKENS])
def test_added_tokens_are_single_ids(tokenizer: PreTrainedTokenizerBase, token: str) -> None:
    """Each piece of chat or protocol markup is one token; only the chat's own three are special."""
    ids = tokenizer.encode(token)

    assert len(ids) == 1
    assert ("" if token in SPECIAL_TOKENS else token) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    "text", ["SELECT count(*) FROM t WHERE a = '日本'", "  tabs\tand\r\n lines ", "naïve 🙂", "\x00\x7f"]
)
def test_every_text_survives_encoding(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Byte-level: no text is unknown, whatever the tokenizer was trained on."""
    assert text == tokenizer.decode(tokenizer.encode(text))


def test_numbers_are_split_into_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    """As in Qwen3, a number is one token per digit."""
    assert tokenizer.tokenize("2015") == ["2", "0", "1", "5"]


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("messages", [EPISODE[:1], EPISODE[:3]])
def test_template_renders_like_the_original(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], tools: list[dict[str, object]] | None
) -> None:
    """For our prompts and tool chains the stored template gives the very text of Qwen3's original."""
    ours = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    original = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=False, chat_template=qwen3_chat_template
    )

    assert original == ours


def test_finished_episode_renders_like_the_original(tokenizer: PreTrainedTokenizerBase) -> None:
    """The same for a whole episode, up to its last token."""
    ours = tokenizer.apply_chat_template(EPISODE, tools=TOOLS, tokenize=False)

    assert (
        tokenizer.apply_chat_template(EPISODE, tools=TOOLS, tokenize=False, chat_template=qwen3_chat_template) == ours
    )


def test_template_keeps_prefixes(tokenizer: PreTrainedTokenizerBase) -> None:
    """TRL's own test: adding a tool reply leaves what was rendered before as it is."""
    assert is_chat_template_prefix_preserving(tokenizer)


def test_a_database_value_is_the_same_token_in_a_question_and_in_sql(tmp_path: Path) -> None:
    """Whatever stands before it: a space, a quotation mark, the beginning. Saved and loaded, the tokenizer does the same."""
    words = ["Mina Roth", "28.5", "28"]
    tokenizer = train_tokenizer(TEXTS, 400, 256, words=words)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)

    for word in words:
        (alone,) = loaded.encode(word)
        for text in (f"Who is {word}?", f"WHERE name = '{word}' AND", f"n>{word},", f"%{word}%"):
            ids = loaded.encode(text)
            assert ids == tokenizer.encode(text)
            assert alone in ids
            assert text == loaded.decode(ids)


def test_a_value_inside_a_longer_word_is_no_value() -> None:
    """28 is not found in 1281, and Mina Roth not in Mina Rothschild."""
    tokenizer = train_tokenizer(TEXTS, 400, 256, words=["Mina Roth", "28"])
    values = {tokenizer.encode(word)[0] for word in ("Mina Roth", "28")}

    assert not values & set(tokenizer.encode("Mina Rothschild has 1281"))


def test_words_are_the_values_and_numbers_that_are_said_often() -> None:
    """The commonest first, each said at least twice; what is no value of a database and no number is left out."""
    texts = ["Is Mina Roth 28?", "SELECT age FROM baker WHERE name = 'Mina Roth' AND age > 28.5", "28 bakers, Ann Lee"]

    assert ["28", "Mina Roth"] == value_words(texts, {"Mina Roth", "Ann Lee", "Mina"}, 5)
    assert ["28"] == value_words(texts, {"Mina Roth"}, 1)
