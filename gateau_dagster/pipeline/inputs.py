"""List the inputs that the lineage shows: files and models from outside the pipeline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateau_dagster.config import Config
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.asset import CHAT, LONG, SHARD, method_key, model_key, other_key
from gateau_dagster.pipeline.feature import features


@dataclass(frozen=True, kw_only=True)
class Input:
    """One input. `key`, `partitions`: as of an asset. `path`: as the configuration names it."""

    key: str
    path: str
    summary: str
    kinds: tuple[str, ...]
    partitions: str = ""


def inputs_of(config: Config) -> list[Input]:
    """Return every file and model that the configuration names and the pipeline does not make itself."""
    return [*_files(config), *_models(config)]


def _files(config: Config) -> Iterator[Input]:
    yield Input(
        key=LONG,
        path=_joined(config.long_sft.path),
        summary="The long instruction samples, by the shard into which each one falls",
        kinds=("file",),
        partitions=SHARD,
    )
    if config.short_chat is not None:
        yield Input(key=CHAT, path=_joined(config.short_chat.path), summary="The short conversations", kinds=("file",))
    for feature in features():
        for given in feature.inputs(config):
            yield Input(key=given.key, path=_joined(given.paths), summary=given.summary, kinds=("file",))
    for name, method in chosen_methods(config).items():
        if method.paths():
            yield Input(
                key=method_key(name),
                path=_joined(method.paths()),
                summary=f"What the method `{name}` reads",
                kinds=("file",),
            )


def _models(config: Config) -> Iterator[Input]:
    for name, section in config.models.items():
        if section.base is None:
            yield Input(
                key=model_key(name), path=section.path, summary=f"The model `models.{name}`", kinds=("huggingface",)
            )
    for name, other in config.other_models.items():
        summary = f"The model of the variant `{name}`"
        yield Input(key=other_key(name), path=other.model.path, summary=summary, kinds=("huggingface",))


def _joined(paths: str | Sequence[str]) -> str:
    return paths if isinstance(paths, str) else ", ".join(paths)
