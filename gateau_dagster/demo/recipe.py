"""Define the pair without torch: the sizes of theta_A and theta_B as in their config.json."""

from typing import Any

from gateau_dagster.demo.language import BOS, EOS, PAD, VOCABULARY

SHORT_WINDOW, LONG_WINDOW = 256, 2048
SHORT_THETA, LONG_THETA = 1e4, 1e6


def pair_shape(window: int, theta: float) -> dict[str, Any]:
    """Return a Llama with 2 layers of 4 heads, d 64, ff 128, tied embeddings, for rows of up to `window` tokens."""
    return {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": window,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
        "bos_token_id": VOCABULARY.index(BOS),
        "eos_token_id": VOCABULARY.index(EOS),
        "pad_token_id": VOCABULARY.index(PAD),
        "use_cache": False,
        "dtype": "float32",
    }


# Keyed by name, as in `demo:short`.
PAIR_SHAPES = {"short": pair_shape(SHORT_WINDOW, SHORT_THETA), "long": pair_shape(LONG_WINDOW, LONG_THETA)}
