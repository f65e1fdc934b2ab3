"""Find where a configured model can be loaded from, and its version."""

from dataclasses import dataclass
from pathlib import Path

from gateau_dagster.config import ModelConfig
from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.asset import made_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Store
from gateau_dagster.storage.documents import fetched_folder


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A model's location, valid on every machine that can read the store.

    section: with a real path, unless the model is `stored`.
    version: of its weights.
    stored: the name of a folder in the store that the pipeline made.
    place: of its section in the configuration, for messages.
    """

    section: ModelConfig
    version: str
    stored: str = ""
    place: str = ""


def placed_model(state: State, name: str) -> Placed:
    """Return the location of a configured model."""
    config, section = state.config, state.config.located_model(name)
    version, place = model_version(state, name), f"models.{name}"
    if section.base is None:
        return Placed(section=section, version=version, place=place)
    code = section.trust_remote_code or config.models[section.base].trust_remote_code
    # From here on it is an ordinary model: it no longer has to be made.
    made = section.model_copy(update={"trust_remote_code": code, "pre_experience": None, "homologous": None})
    return Placed(section=made, version=version, stored=made_asset(config, name), place=place)


def loadable_model(state: State, name: str) -> ModelConfig:
    """Return the model's section with a real path; a model that the pipeline made is downloaded from a remote store.

    Raises:
        GateauError, TransientError: the model cannot be downloaded, or its files are damaged.
    """
    if state.config.models[name].base is None:
        # A step that is launched by hand has not been planned, so nothing has checked the folder yet.
        state.check_model(state, name)
    return fetched_model(state.store, placed_model(state, name), downloads(state))


def fetched_model(store: Store, placed: Placed, scratch: Path) -> ModelConfig:
    """Return the model's section with a path on this machine; raise as `loadable_model` does.

    Args:
        scratch: folder for models downloaded from a remote store.
    """
    if not placed.stored:
        return placed.section
    folder = fetched_folder(store, placed.stored, scratch)
    return placed.section.model_copy(update={"path": str(folder)})


def downloads(state: State) -> Path:
    """Return the folder that keeps models of a remote store for later steps."""
    return state.config.work_folder / "models"


def scratch_of_store(state: State) -> Path:
    """Return the folder that holds the unfinished work of all training runs for the state's store."""
    return state.config.work_folder / "training" / text_digest([state.store.root])[:12]


def model_version(state: State, name: str) -> str:
    """Return a text that changes with the weights that are loaded.

    Raises:
        GateauError: the pipeline has not made the model yet.
    """
    found = known_version(state, name)
    if found is None:
        asset = made_asset(state.config, name)
        raise GateauError(
            "models.not_made",
            f"models.{name}: the pipeline makes this model, and has not made it yet: run `gateau run --until {asset}`",
        )
    return found


def known_version(state: State, name: str) -> str | None:
    """Return `model_version`; None for a model that the pipeline still has to make."""
    if state.config.models[name].base is None:
        return state.model_digests[name]
    made = state.stamp(made_asset(state.config, name), None)
    return None if made is None else made.content
