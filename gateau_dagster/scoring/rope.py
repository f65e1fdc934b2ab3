"""Another base for the rotary embedding: how the paper lets the short model read past its window (its appendix)."""

from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.errors import GateauError


def override_rope_theta(config: PreTrainedConfig, theta: float, *, name: str) -> None:
    """Set the base in a configuration from which the model is yet to be built.

    Models with one base per kind of layer (Gemma 3) get it for their full-attention layers only: the sliding ones
    never look past their window. Raises GateauError for a model without a rotary embedding.
    """
    text_config = config.get_text_config(decoder=True)
    parameters = getattr(text_config, "rope_parameters", None)
    if not parameters:
        raise GateauError(f"{name}: rope_theta is set, but {config.model_type} has no rotary embedding: remove the key")
    nested = {key: value for key, value in parameters.items() if isinstance(value, dict)}
    chosen = [nested["full_attention"]] if "full_attention" in nested else list(nested.values()) or [parameters]
    for entry in chosen:
        entry["rope_theta"] = theta
    if hasattr(text_config, "rope_theta"):
        text_config.rope_theta = theta  # remote code written for transformers 4 reads it here
