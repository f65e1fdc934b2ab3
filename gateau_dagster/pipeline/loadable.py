"""Where a configured model can be loaded from, and which version of it that is."""

from dataclasses import dataclass
from pathlib import Path

from gateau_dagster.config import ModelConfig
from gateau_dagster.pipeline.made_models import made_asset
from gateau_dagster.pipeline.model_checks import check_folder
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Store
from gateau_dagster.storage.documents import fetched_folder


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a model is, in words that hold on every machine that sees the store.

    section: with a real path, unless the model is `stored`: the name of a folder in the store, which the pipeline made.
    version: of its weights. place: of its section in the configuration, for messages.
    """

    section: ModelConfig
    version: str
    stored: str = ""
    place: str = ""


def placed_model(state: State, name: str) -> Placed:
    """A configured model."""
    config, section = state.config, state.config.located_model(name)
    version, place = model_version(state, name), f"models.{name}"
    if section.base is None:
        return Placed(section=section, version=version, place=place)
    code = section.trust_remote_code or config.models[section.base].trust_remote_code
    # It is an ordinary model from here on: nothing is left to be made.
    made = section.model_copy(update={"trust_remote_code": code, "pre_experience": None, "homologous": None})
    return Placed(section=made, version=version, stored=made_asset(config, name), place=place)


def loadable_model(state: State, name: str) -> ModelConfig:
    """The model's section with a real path; one that the pipeline makes is fetched from a store that is not local.

    Raises:
        GateauError, TransientError: it cannot be fetched, or its files are damaged.
    """
    if state.config.models[name].base is None:
        # For a step that is launched by hand nobody has planned.
        check_folder(state.config, name, state.model_digests[name])
    return fetched_model(state.store, placed_model(state, name), downloads(state))


def fetched_model(store: Store, placed: Placed, scratch: Path) -> ModelConfig:
    """The model's section with a path on this machine; raises as `loadable_model`.

    Args:
        scratch: where models of a store that is not local are kept.
    """
    if not placed.stored:
        return placed.section
    folder = fetched_folder(store, placed.stored, scratch)
    return placed.section.model_copy(update={"path": str(folder)})


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
