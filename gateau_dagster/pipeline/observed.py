"""Open a configuration: look at the input, the models and the files outside the store that results depend on."""

from gateau_dagster.config import Config
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.data.index import cached_index
from gateau_dagster.data.input_index import InputIndex
from gateau_dagster.data.sample import text_digest
from gateau_dagster.data.short_chat import short_chat_signature
from gateau_dagster.data.sources import FILE_DIGESTS, content_signature
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.asset import Observed
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.feature import answer_template, hooks, prepare_inputs
from gateau_dagster.pipeline.model_checks import answer_frames, check_folder
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import Progress, silent


def state_of(*, config: Config, progress: Progress = silent, asks_hub: bool = False) -> State:
    """Return a configuration and its store at this moment; nothing is read yet. asks_hub: see State."""
    return State(
        config=config,
        pipeline=pipeline_of(config),
        read_index=_index,
        observe=_observe,
        check_model=_check_model,
        progress=progress,
        asks_hub=asks_hub,
    )


def asks_hub(config: Config, until: str | None) -> bool:
    """Return whether what is planned up to an asset, None for all, includes data sets on the hub."""
    known = None if until is None else pipeline_of(config).by_key.get(until)
    return until is None or (known is not None and known.elsewhere is not None)


def _index(state: State) -> InputIndex:
    config = state.config
    prepare_inputs(config)
    return cached_index(config.located_long_sft, config.folder, config.work_folder / "cache", state.progress)


def _observe(state: State) -> Observed:
    config = state.config
    prepare_inputs(config)
    chat, cache = config.located_short_chat, config.work_folder / "cache"
    return Observed(
        model_digests=state.model_digests,
        short_chat=short_chat_signature(chat, config.folder, cache) if chat else None,
        files={
            name: content_signature(method.files(), cache / FILE_DIGESTS)
            for name, method in chosen_methods(config).items()
            if method.paths()
        },
        others=state.other_digests,
        partitions={
            key: digest for hook in hooks("checks", "partition_digests") for key, digest in hook(state).items()
        },
        instructions=_instructions(state) if SPLIT in state.pipeline.by_key else "",
        frames=answer_frames(config, state.model_digests, state.other_digests, answer_template(config)),
    )


def _check_model(state: State, name: str) -> None:
    check_folder(state.config, name, state.model_digests[name])


def _instructions(state: State) -> str:
    try:
        # An index without the samples that are still to be made must not stay.
        index = _index(state) if state.config.made_inputs else state.index
        left_out = index.instructions
    except GateauError:
        return ""  # the samples are still to be made, or `check_data` gives the reason
    return text_digest([f"{size} {sample_id}" for sample_id, size in left_out.items()]) if left_out else ""
