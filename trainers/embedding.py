"""
Embeddings of trajectories for clustering, through sentence-transformers.

By name a published embedding model is used as it comes (Qwen3-Embedding brings its last-token pooling in its own
configuration). `local` needs no download: the policy's own transformer with last-token pooling and left padding, which
is how Qwen3-Embedding turns a causal model into an embedding model.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from text2sql.config import EmbeddingSettings
from text2sql.errors import PolicyError

BATCH = 32


def embed(texts: Sequence[str], settings: EmbeddingSettings, policy: Path) -> np.ndarray:
    """
    One unit row per text, (n, d) float32, cut to the last `max_tokens` tokens. Raises PolicyError when the model cannot
    be loaded.
    """
    if not texts:
        return np.zeros((0, 0), dtype=np.float32)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    try:
        if settings.model == "local":
            # Text as it is: left to itself, the module would wrap each text in the policy's chat template, and every
            # pooled last token would be the template's.
            transformer = Transformer(
                str(policy),
                max_seq_length=settings.max_tokens,
                modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
                module_output_name="token_embeddings",
            )
            # The end of a trajectory tells most; and the pooled last token must be the text's own, not padding.
            transformer.tokenizer.padding_side = "left"
            transformer.tokenizer.truncation_side = "left"
            pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="lasttoken")
            model = SentenceTransformer(modules=[transformer, pooling, Normalize()])
        else:
            model = SentenceTransformer(settings.model)
            model.max_seq_length = settings.max_tokens
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"The embedding model '{settings.model}' cannot be loaded ({error}). Give a Hugging Face name or a folder in "
            "selection.embedding.model, or `local` to use the policy's own transformer."
        ) from error
    rows = model.encode(
        list(texts), batch_size=BATCH, convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False
    )
    return np.asarray(rows, dtype=np.float32)
