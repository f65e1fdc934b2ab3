"""Find the texts of homologous models, and check them and their models before any model runs."""

from pathlib import Path

import psutil

from gateau_dagster.config import Config
from gateau_dagster.config.made_models import homologous_options
from gateau_dagster.data.sample import text_digest
from gateau_dagster.data.sources import SourceFile, content_signature, resolve_files
from gateau_dagster.errors import GateauError
from gateau_dagster.models.known_model import known_model, own_window

_TOKEN_BYTES = 8  # bytes of a token's id and label


def text_files(config: Config, name: str) -> dict[str, list[SourceFile]]:
    """Return the files of model `name` by key of its section: `texts`, and `short_texts` if configured.

    Raises:
        GateauError: a path matches nothing, or its storage cannot be reached; the message names the key.
    """
    options = homologous_options(config.models[name])
    found: dict[str, list[SourceFile]] = {}
    for key, path in (("texts", options.texts), ("short_texts", options.short_texts)):
        if path is None:
            continue
        try:
            found[key] = resolve_files(path, config.folder, plain_texts=True)
        except GateauError as error:
            raise error.reworded(f"models.{name}.homologous.{key}: {error}") from error
    return found


def text_signatures(config: Config, cache: Path) -> dict[str, str]:
    """Return for each homologous model a signature that changes with the names and contents of its texts' files.

    The file `cache` remembers contents, which are read again as the model's `verify` says. Raises as `text_files` does.
    """
    return {
        name: text_digest(
            [
                f"{key} {content_signature(files, cache, config.models[name].verify)}"
                for key, files in text_files(config, name).items()
            ]
        )
        for name in config.homologous_models
    }


def check_homologous(config: Config) -> None:
    """Check that each homologous model's base can be extended and its mix fits into memory, without loading the base.

    Raises:
        GateauError: the base has no rotary embedding, or already reads as far as the new model; or there are too many
            tokens.
    """
    for name in config.homologous_models:
        _check_memory(config, name)
        base = config.origin(name)
        known = known_model(config, base).config
        if known is None:
            continue  # not on this machine yet: the training checks it again
        text_config = known.get_text_config(decoder=True)
        if not getattr(text_config, "rope_parameters", None):
            raise GateauError(
                "models.no_rotary",
                f"models.{name}.path: models.{base} ({known.model_type}) has no rotary embedding to extend: start "
                "from a model such as Llama, Qwen or Mistral",
            )
        target = homologous_options(config.models[name]).extension
        window = own_window(config, base)
        if target.method != "theta" and window is not None and (target.target_length or 0) <= window:
            raise GateauError(
                "training.positions_reached",
                f"models.{name}.homologous: models.{base} reads {window} positions already, not fewer than the "
                f"{target.target_length} of this model: raise length, or set positions to method theta with a base",
            )


def _check_memory(config: Config, name: str) -> None:
    tokens, there = homologous_options(config.models[name]).tokens, psutil.virtual_memory().total
    if tokens is not None and tokens * _TOKEN_BYTES > there:
        raise GateauError(
            "machine.memory",
            f"models.{name}.homologous.tokens: {tokens:,} tokens need more than "
            f"{tokens * _TOKEN_BYTES / 2**30:,.0f} GiB, but this machine has {there / 2**30:,.0f} GiB: lower it, "
            "or make the model on a larger machine and name its folder",
        )
