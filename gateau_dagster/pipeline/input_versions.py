"""Find the current version and size of each input."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.data.sources import SourceFile, input_signature, resolve_files
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.models.model_digest import model_files
from gateau_dagster.pipeline.asset import CHAT, LONG, method_key, model_key, other_key
from gateau_dagster.pipeline.feature import features, prepare_inputs
from gateau_dagster.pipeline.inputs import Input, inputs_of
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.upstream_versions import input_version

Facts: TypeAlias = Mapping[str, int | str | datetime]
_LAST_TIME = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


@dataclass(frozen=True, kw_only=True)
class InputVersion:
    """One version of an input.

    version: changes with the content.
    rows: None if they are not known without reading.
    facts: for display, by name.
    """

    version: str
    rows: int | None = None
    facts: Facts = field(default_factory=dict)


def input_versions(state: State, given: Input) -> dict[str | None, InputVersion]:
    """Return the current version by partition; the key is None for an input without partitions.

    Raises:
        GateauError, TransientError: the input is missing or cannot be reached.
    """
    prepare_inputs(state.config)
    facts = _facts(_files(state.config, given.key))
    if given.key == LONG:
        return dict(_shards(state, facts))
    return {None: InputVersion(version=input_version(state, given.key), facts=facts)}


def glance(config: Config) -> str:
    """Return a text that changes whenever an input may have changed. It uses addresses, sizes and times alone, so it is
    cheap enough to compute each minute.

    Models on the hub are not queried.

    Raises:
        GateauError, TransientError: as for `input_versions`.
    """
    prepare_inputs(config)
    return input_signature([file for given in inputs_of(config) for file in _files(config, given.key)])


def _files(config: Config, key: str) -> list[SourceFile]:
    """Return the files of an input; empty for a model that is not in a folder."""
    if key == LONG:
        return resolve_files(config.located_long_sft.path, config.folder)
    if key == CHAT:
        assert config.located_short_chat is not None
        return resolve_files(config.located_short_chat.path, config.folder)
    for given in (each for feature in features() for each in feature.inputs(config)):
        if key == given.key:
            return given.files()
    for name, method in chosen_methods(config).items():
        if key == method_key(name):
            return method.files()
    models = {model_key(name): config.located_model(name) for name in config.models}
    return _model_files(
        config, {**models, **{other_key(name): each.model for name, each in config.other_models.items()}}[key]
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
    """Return count, size and last change of files. Times are left out if the file system has none, or a damaged one
    that is out of range.
    """
    found = list(files)
    if not found:
        return {}
    times = [int(file.stamp) / 1e9 for file in found if file.stamp.isdecimal() and Path(file.address).is_absolute()]
    times = [each for each in times if each < _LAST_TIME]
    changed = {"last_change": datetime.fromtimestamp(max(times), UTC)} if times else {}
    return {"files": len(found), "size_bytes": sum(file.size for file in found), **changed}
