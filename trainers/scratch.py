"""
A policy made on the spot: a small Qwen3 with random weights and a tokenizer trained on the benchmark's own texts.

For machines without pretrained weights. Apart from its size it is a Qwen3: the same pre-tokenization and the same
architecture, so every other part of the project treats it like the real one. Three things differ from the released Qwen3:

1. The protocol's tags (<answer_sql>, <exec_verify>, <memory_verify>) and the fixed phrases around a call are single
   tokens, added like Qwen3's own <think> and <tool_call> (not special, so decoding keeps them): a tiny model spends its
   steps on SQL, and an episode is a third shorter.
2. Database values and numbers of the texts can be words of their own (`model.value_words`), written alike in a question
   and in SQL: "Mina Khan" is one token, whatever stands before it. Copying what was said into a condition, which
   pretraining teaches a language model, is then one step. Pre-tokenization cuts them out before Qwen's own rule.
3. The stored chat template is TRL's training variant of Qwen3's. Both render our prompts and tool chains to the same
   text (tests/trainers/test_scratch.py); the variant also keeps every step a prefix of the next one.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from text2sql.config import ModelSettings
from text2sql.policy import write_policy_record

PADDING, MESSAGE_START, MESSAGE_END = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    *("<answer_sql>", "</answer_sql>"),
    *("<exec_verify>", "</exec_verify>", "<memory_verify>", "</memory_verify>"),
)
NUMBER = r"\d+(?:\.\d+)?"
ROLES = ("user\n", "assistant\n")  # as the chat template writes them after <|im_start|>


def make_scratch_policy(
    texts: Iterable[str],
    settings: ModelSettings,
    seed: int,
    out: Path,
    phrases: Sequence[str] = (),
    words: Sequence[str] = (),
) -> None:
    """
    Write a policy to `out`: tokenizer trained on `texts`, weights drawn with `seed`, float32. The same arguments give
    the same files. Each of `phrases`, texts that the protocol always says in full, is one token; so is each of `words`
    wherever it stands as a whole word. `settings.vocabulary` counts all tokens, added ones included.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

    tokenizer = train_tokenizer(texts, settings.vocabulary, settings.max_positions, phrases, words)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.width,
        intermediate_size=3 * settings.width,  # the ratio of Qwen3-0.6B and Qwen3-1.7B
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_value_heads,
        head_dim=settings.width // settings.heads,
        max_position_embeddings=settings.max_positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        # With tied weights a token that attention brings along then speaks for itself from the first step on.
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=settings.width**-0.5)
    model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    write_policy_record(out, name="scratch", details={"seed": seed, "parameters": model.num_parameters()})


def train_tokenizer(
    texts: Iterable[str],
    vocabulary: int,
    max_positions: int,
    phrases: Sequence[str] = (),
    words: Sequence[str] = (),
) -> Any:
    """
    A Qwen tokenizer of at most `vocabulary` tokens: byte-level BPE merges learned on `texts` (added tokens and `words`
    are cut out first), every byte present, Qwen3's chat template. Fewer tokens when `texts` hold too few pairs that
    repeat.
    """
    from tokenizers import AddedToken, Tokenizer, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer
    from trl.chat_template_utils import qwen3_training_chat_template

    added = (*MARKUP_TOKENS, *ROLES, *phrases)
    learner = Tokenizer(BPE())
    empty = Qwen2Tokenizer(vocab={}, merges=[])  # for Qwen's normalizer and pre-tokenizer, which it defines in code
    learner.normalizer = empty.backend_tokenizer.normalizer
    learner.pre_tokenizer = empty.backend_tokenizer.pre_tokenizer
    trainer = BpeTrainer(
        vocab_size=vocabulary - len(SPECIAL_TOKENS) - len(added) - len(words),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(_without(added, words, texts), trainer)
    learned = json.loads(learner.to_str())["model"]
    merges: Any = [tuple(merge) for merge in learned["merges"]]  # annotated as strings upstream, but read as pairs
    ids = {token: len(learned["vocab"]) + index for index, token in enumerate(SPECIAL_TOKENS)}
    arguments: dict[str, Any] = {
        "pad_token": PADDING,
        "eos_token": MESSAGE_END,
        "extra_special_tokens": [MESSAGE_START],
        "model_max_length": max_positions,
        "chat_template": qwen3_training_chat_template,
    }
    tokenizer: Any = Qwen2Tokenizer(vocab={**learned["vocab"], **ids}, merges=merges, **arguments)
    if words:
        backend = _with_words(tokenizer.backend_tokenizer, words)
        # Qwen2Tokenizer would set its own pre-tokenizer again when it is loaded.
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **arguments)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in added])
    return tokenizer


def _with_words(backend: Any, words: Sequence[str]) -> Any:
    """The same tokenizer with `words` at the end of its vocabulary, cut out whole before its own rule cuts."""
    from tokenizers import Tokenizer, pre_tokenizers

    definition = json.loads(backend.to_str())
    split = definition["pre_tokenizer"]["pretokenizers"][0]
    split["pattern"] = {"Regex": f"{_words_pattern(words)}|{split['pattern']['Regex']}"}
    model = definition["model"]
    model["ignore_merges"] = True  # a piece that is in the vocabulary is taken whole
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in words:
        ((spelled, _),) = spell.pre_tokenize_str(word)
        model["vocab"].setdefault(spelled, len(model["vocab"]))
    return Tokenizer.from_str(json.dumps(definition))


def _words_pattern(words: Sequence[str]) -> str:
    """`words` as wholes, and alone the one character that Qwen's rule would else take in with the word behind it."""
    whole = f"(?:{'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})(?![\\p{{L}}\\p{{N}}])"
    return f"(?<![\\p{{L}}\\p{{N}}]){whole}|[^\\r\\n\\p{{L}}\\p{{N}}](?={whole})"


def value_words(texts: Iterable[str], values: Collection[str], limit: int) -> list[str]:
    """
    At most `limit` words for a tokenizer, the commonest first: those of `values` (contents of databases) and those
    numbers that stand in `texts` at least twice, of two characters or more.
    """
    known = sorted((value for value in values if value.strip()), key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join([*map(re.escape, known), NUMBER])})(?!\w)")
    counts = Counter(match for text in texts for match in pattern.findall(text))
    often = [(-count, word) for word, count in counts.items() if count > 1 and len(word) > 1]
    return [word for _, word in sorted(often)[:limit]]


def _without(added: Iterable[str], words: Iterable[str], texts: Iterable[str]) -> Iterator[str]:
    tokens = sorted((*SPECIAL_TOKENS, *added), key=len, reverse=True)
    whole = sorted(words, key=len, reverse=True)
    boundary = re.compile("|".join([*map(re.escape, tokens), *(rf"(?<!\w){re.escape(word)}(?!\w)" for word in whole)]))
    for text in texts:
        yield from (part for part in boundary.split(text) if part)
