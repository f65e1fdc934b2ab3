"""Which version of each input is there now, and how much it is."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.data.sources import SourceFile, input_signature, resolve_files
from gateau_dagster.demo.prepare import ensure_demo_data
from gateau_dagster.models.model_digest import model_files
from gateau_dagster.pipeline.inputs import CHAT, LONG, Input, inputs_of, model_key, other_key, text_key
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.variant_configs import others
from gateau_dagster.training.homologous_texts import text_files

Facts: TypeAlias = Mapping[str, int | str | datetime]
_LAST_TIME = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


@dataclass(frozen=True, kw_only=True)
class InputVersion:
    """version: changes with the content. rows: where they are known without reading. facts: for people, by name."""

    version: str
    rows: int | None = None
    facts: Facts = field(default_factory=dict)


def input_versions(state: State, given: Input) -> dict[str | None, InputVersion]:
    """By partition; None where there are none.

    Raises:
        GateauError, TransientError: it is not there, or cannot be reached.
    """
    facts = _facts(_files(state.config, given.key))
    if given.key == LONG:
        return dict(_shards(state, facts))
    observed, config = state.observed, state.config
    versions = {CHAT: observed.short_chat or ""}
    versions |= {text_key(name): digest for name, digest in observed.texts.items()}
    versions |= {model_key(name): observed.model_digests[name] for name in config.models}
    versions |= {other_key(name): digest for name, digest in observed.others.items()}
    return {None: InputVersion(version=versions[given.key], facts=facts)}


def glance(config: Config) -> str:
    """Changes where an input may have: by addresses, sizes and times alone, cheap enough to be asked for each minute.

    A model on the hub is not asked for.

    Raises:
        GateauError, TransientError: as for `input_versions`.
    """
    ensure_demo_data(config)
    return input_signature([file for given in inputs_of(config) for file in _files(config, given.key)])


def _files(config: Config, key: str) -> list[SourceFile]:
    """Those behind an input; none of a model that is not in a folder."""
    if key == LONG:
        return resolve_files(config.located_long_sft.path, config.folder)
    if key == CHAT:
        assert config.located_short_chat is not None
        return resolve_files(config.located_short_chat.path, config.folder)
    for name in config.homologous_models:
        if key == text_key(name):
            return [file for found in text_files(config, name).values() for file in found]
    models = {model_key(name): config.located_model(name) for name in config.models}
    return _model_files(
        config, {**models, **{other_key(name): each.model for name, each in others(config).items()}}[key]
    )


def _model_files(config: Config, model: ModelConfig) -> list[SourceFile]:
    folder = config.folder / Path(model.path).expanduser()
    found = model_files(folder) if folder.is_dir() else []
    statuses = ((str(file), file.stat()) for file in found)
    return [SourceFile(address=name, size=each.st_size, stamp=str(each.st_mtime_ns)) for name, each in statuses]


def _shards(state: State, facts: Facts) -> Iterator[tuple[str, InputVersion]]:
    index = state.index
    accepted, rejected = (dict(each["shard"].value_counts().iter_rows()) for each in (index.accepted, index.rejected))
    for shard in state.shards:
        number = int(shard)
        own = {"rejected": rejected.get(number, 0), "records_of_input": index.records}
        yield (
            shard,
            InputVersion(version=state.shard_input(shard), rows=accepted.get(number, 0), facts={**own, **facts}),
        )


def _facts(files: Iterable[SourceFile]) -> Facts:
    """Of files; when they changed where their file system says it, and no damage of it puts that beyond all years."""
    found = list(files)
    if not found:
        return {}
    times = [int(file.stamp) / 1e9 for file in found if file.stamp.isdecimal() and Path(file.address).is_absolute()]
    times = [each for each in times if each < _LAST_TIME]
    changed = {"last_change": datetime.fromtimestamp(max(times), UTC)} if times else {}
    return {"files": len(found), "size_bytes": sum(file.size for file in found), **changed}
