"""Where a configured model can be loaded from, and which version of it that is."""

from pathlib import Path

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.pipeline.made_models import made_asset
from gateau_dagster.pipeline.model_checks import check_folder
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Store
from gateau_dagster.storage.documents import fetched_folder


def loadable_model(state: State, name: str) -> ModelConfig:
    """The model's section with a real path; one that the pipeline makes is fetched from a store that is not local.

    Raises:
        GateauError, TransientError: it cannot be fetched, or its files are damaged.
    """
    config, section = state.config, state.config.located_model(name)
    if section.base is None:
        check_folder(config, name, state.model_digests[name])  # for a step that is launched by hand nobody has planned
        return section
    return fetched_model(config, state.store, name, downloads(state))


def fetched_model(config: Config, store: Store, name: str, scratch: Path) -> ModelConfig:
    """The section of a model that the pipeline made, fetched into `scratch` from a store that is not local.

    Raises as `loadable_model`.
    """
    section = config.located_model(name)
    assert section.base is not None
    folder = fetched_folder(store, made_asset(config, name), scratch)
    code = section.trust_remote_code or config.models[section.base].trust_remote_code
    # It is an ordinary model from here on: nothing is left to be made.
    made = {"path": str(folder), "trust_remote_code": code, "pre_experience": None, "homologous": None}
    return section.model_copy(update=made)


def downloads(state: State) -> Path:
    """Where models of a store that is not local are kept for the steps to come."""
    return state.config.work_folder / "models"


def model_version(state: State, name: str) -> str:
    """Changes with the weights that are loaded."""
    if state.config.models[name].base is None:
        return state.model_digests[name]
    made = state.stamp(made_asset(state.config, name), None)
    assert made is not None, "the stamp of the table that it computes names its content"
    return made.content
