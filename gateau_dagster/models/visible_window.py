"""How much of a prompt a model is shown, known without loading it; what theta_A is not shown, `cam` calls far."""

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.models.known_model import known_model, own_window


def shown_window(config: Config, name: str) -> int | None:
    """Tokens of a model's window under `context: window`; None: `context: full`, or the window is not known yet."""
    model = config.models[name]
    if model.context != "window":
        return None
    return model.window or own_window(config, name) or _named_window(config, name)


def short_window(config: Config) -> int | None:
    """`shown_window` of theta_A."""
    return shown_window(config, "short")


def visible_tokens(config: Config) -> int | None:
    """Tokens of a prompt's end that theta_A is shown; None: all (`context: full`).

    Raises GateauError when it is to see its window and nothing tells how long that is.
    """
    if config.models["short"].context != "window":
        return None
    window = short_window(config)
    if window is None:
        raise GateauError(
            f"models.short: context is 'window', but the window of {config.models['short'].path} is not known here: "
            "give models.short.window in tokens"
        )
    return min(config.scoring.max_length, window)


def _named_window(config: Config, name: str) -> int | None:
    """Of a model that lies in no folder here: its config.json may still have to be fetched."""
    known = known_model(config, name).config
    return None if known is None else getattr(known.get_text_config(decoder=True), "max_position_embeddings", None)
