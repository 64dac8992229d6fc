"""Embeddings: unit rows from the policy's own last token, whatever stands beside a text in its batch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from text2sql.config import EmbeddingSettings, ModelSettings
from text2sql.errors import PolicyError
from trainers.embedding import embed
from trainers.scratch import make_scratch_policy

TEXTS = ["SELECT name FROM singer", "SELECT count(*) FROM singer WHERE age > 20 ORDER BY age", "name"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "policy"
    settings = ModelSettings(init="scratch", vocabulary=320, layers=1, width=32, heads=2, key_value_heads=1)
    make_scratch_policy(TEXTS * 5, settings, 0, folder)
    return folder


def test_a_row_is_the_normalised_hidden_state_of_the_last_token(policy: Path):
    """As Qwen3-Embedding pools: computed by hand for one text alone, without padding."""
    tokenizer, model = AutoTokenizer.from_pretrained(policy), AutoModel.from_pretrained(policy)
    with torch.no_grad():
        state = model(**tokenizer(TEXTS[1], return_tensors="pt")).last_hidden_state[0, -1]
    expected = (state / state.norm()).numpy()

    rows = embed(TEXTS, EmbeddingSettings(), policy)

    assert (3, 32) == rows.shape
    assert np.allclose(expected, rows[1], atol=1e-5)


def test_equal_texts_have_equal_unit_rows_on_every_call(policy: Path):
    """Neither order nor company changes a row."""
    first = embed(TEXTS, EmbeddingSettings(), policy)
    second = embed([*reversed(TEXTS), TEXTS[0]], EmbeddingSettings(), policy)

    assert np.allclose(first, second[:3][::-1], atol=1e-5)
    assert np.allclose(1.0, np.linalg.norm(second, axis=1), atol=1e-5)
    assert np.allclose(second[2], second[3], atol=1e-6)


def test_no_text_gives_no_row(policy: Path):
    """Nothing is loaded for nothing."""
    assert 0 == len(embed([], EmbeddingSettings(), policy))


def test_a_model_that_cannot_be_loaded_is_named(policy: Path, tmp_path: Path):
    """With both ways to name one."""
    with pytest.raises(PolicyError, match=r"no-such-model.*`local`"):
        embed(TEXTS, EmbeddingSettings(model=str(tmp_path / "no-such-model")), policy)
