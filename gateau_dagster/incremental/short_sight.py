"""How much of a prompt theta_A is shown, known without loading it: `cam`, which theta_B makes, calls the rest far."""

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.incremental.known_model import known_model, own_window


def short_window(config: Config) -> int | None:
    """Tokens of theta_A's window under `context: window`; None: `context: full`, or the window is not known yet."""
    model = config.models["short"]
    if model.context != "window":
        return None
    return model.window or own_window(config, "short") or _named_window(config)


def short_sight(config: Config) -> int | None:
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


def _named_window(config: Config) -> int | None:
    """Of a model that lies in no folder here: its config.json may still have to be fetched."""
    known = known_model(config, "short").config
    return None if known is None else getattr(known.get_text_config(decoder=True), "max_position_embeddings", None)
