"""What a config.json decides before the weights are read; how loading uses it, see test_loading.py."""

from gateau_dagster.config import ModelConfig, ScoringConfig
from gateau_dagster.models.decoder_config import override_rope_theta, prompt_tokens, window_of
from tests.error_codes import refused
from tests.tiny_models import model_config


def test_one_base_per_kind_of_layer_changes_the_full_ones_only() -> None:
    config = model_config("gemma3_text")
    local = config.rope_parameters["sliding_attention"]["rope_theta"]
    override_rope_theta(config, 5e6, name="x")
    assert config.rope_parameters["full_attention"]["rope_theta"] == 5e6
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == local


def test_model_without_rotary_embedding_is_refused() -> None:
    with refused("models.no_rotary", "rope_theta.*gpt2"):
        override_rope_theta(model_config("gpt2"), 1e6, name="x")


def test_a_window_of_the_configuration_goes_before_the_checkpoint_s() -> None:
    config, scoring = model_config("llama"), ScoringConfig(max_length=512)
    for given, tokens in ((None, 512), (100, 100), (10_000, 512)):
        model = ModelConfig(path="x", context="window", window=given)
        assert prompt_tokens(config, model, scoring, window=window_of(config, model)) == tokens
    assert window_of(model_config("bloom"), ModelConfig(path="x")) is None
    with refused("models.window"):
        prompt_tokens(config, ModelConfig(path="x", context="window"), scoring, window=None)
