"""Load a project: the configuration of a file, or the embedded demo; describe such files as a JSON schema."""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model
from pydantic.json_schema import GenerateJsonSchema

from gateau_dagster.config import Config
from gateau_dagster.config.base import Section
from gateau_dagster.config.inputs import StorageConfig
from gateau_dagster.config.load import Check, parse_config, read_config
from gateau_dagster.config.schema import check_store_apart
from gateau_dagster.config.selection import OwnScores, SelectionConfig
from gateau_dagster.config.training import RECIPES
from gateau_dagster.errors import (
    DEMO,
    DEMO_FOLDER,
    ENVIRONMENT_VARIABLE,
    GateauError,
    MissingUpstreamError,
    demo_name,
    demo_place,
)
from gateau_dagster.methods.registry import all_methods, chosen_methods, sample_tables
from gateau_dagster.pipeline.feature import built_in, features, is_built_in
from gateau_dagster.pipeline.outputs import check_inputs_apart
from gateau_dagster.pipeline.recipes import CHECKPOINTS, TRAINED, check_variants
from gateau_dagster.pipeline.selection_reads import EVIDENCE_READS, has_evidence
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import nearest_name
from gateau_dagster.scoring.pair_tables import further_lengths
from gateau_dagster.storage.documents import remove_folder

if TYPE_CHECKING:
    from gateau_dagster.config import Config


# theta_A's window decides which segments `cam`, which theta_B computes, treats as far.
_OF_THE_PAIR = {"combined_scores", "cam"}


def check_models(config: Config) -> None:
    """Raise GateauError, with the place in the file, for the first model that is read and not configured."""
    for name, method in chosen_methods(config).items():
        for asset in method.reads():
            missing = [model for model in _models_of(asset) if model not in config.models]
            if not missing:
                continue
            if name == "gateau":
                raise GateauError(
                    "models.missing",
                    f"models: add {' and '.join(missing)}, since GATEAU compares a short and a long model. Or set "
                    "another selection.method, which may need one of them or none",
                )
            raise GateauError(
                "models.missing",
                f"models: add {' and '.join(missing)}, since method {name} reads {asset}, or remove the method",
            )
    if further_lengths(config) and not config.has_pair:
        raise GateauError(
            "models.missing",
            "selection.segment_lengths: compares GATEAU's rankings, which need models.short and models.long: add "
            "them, or remove the key",
        )
    for asset, table in sample_tables(config).items():
        if table.model not in config.models:
            raise GateauError("models.missing", f"models: add {table.model}, which computes {asset}")
    if config.selection.budget is not None and "long" not in config.models:
        raise GateauError(
            "models.missing",
            f"selection.rule: {config.selection.rule} counts the tokens of models.long, which is missing: add it, "
            "or set another rule",
        )


def check_dependencies(config: Config) -> None:
    """Raise GateauError if the rule or `selection.drop` needs the table `evidence`, which the configured methods cannot
    make.
    """
    selection = config.selection
    if selection.left_out and not has_evidence(config):
        key, cure = ("drop", "remove the key") if selection.drop else (f"rule: {selection.rule}", "take another rule")
        raise GateauError(
            "selection.no_evidence",
            f"selection.{key}: reads `dependency`, which is made of {' and '.join(EVIDENCE_READS)}, but no configured "
            f"method reads both: add gateau to selection.compare, or {cure}",
        )


def _models_of(asset: str) -> tuple[str, ...]:
    """Return the models behind one of the scored tables; tables of other methods name their own models."""
    if asset in _OF_THE_PAIR:
        return ("short", "long")
    family, _, model = asset.partition("/")
    return (model,) if family == "perplexity" else ()


_FINGERPRINT = re.compile(r"[0-9a-f]{16,}")


def remove_old_models(state: State) -> list[str]:
    """Remove `old_models` and return their names.

    A replaced model is kept until other models are trained: if the edit is undone, the model is found again.

    Raises:
        GateauError, TransientError: a folder cannot be removed.
    """
    removed = old_models(state)
    for name in removed:
        remove_folder(state.store, f"{TRAINED}/{name}")
    return removed


def old_models(state: State) -> list[str]:
    """Return the folders of `variant/models` that no variant's table refers to, or will refer to.

    Raises:
        GateauError, TransientError: the store cannot be read.
    """
    variants = state.pipeline.partitions(CHECKPOINTS) if CHECKPOINTS in state.pipeline.by_key else []
    stamps = state.store.stamps((CHECKPOINTS, name) for name in variants)
    kept = {stamp.fingerprint for stamp in stamps.values() if stamp is not None} | wanted_models(state, variants)
    names = state.store.files.names(TRAINED)
    return [name for name in names if _FINGERPRINT.fullmatch(name) and name not in kept]


def wanted_models(state: State, variants: Iterable[str | None]) -> set[str]:
    """Return the fingerprints of variants' models; that of a variant whose mix is still to be made is unknown."""
    found = set()
    for name in variants:
        with suppress(MissingUpstreamError):
            found.add(state.wanted_stamp(CHECKPOINTS, name).fingerprint)
    return found


USUAL_FILE = "gateau.yaml"
"""The configuration file that is read from the current folder if neither --config nor GATEAU_CONFIG names one."""
EXAMPLE = """\
long_sft: {path: data/*.jsonl}
models:
  short: {path: HuggingFaceTB/SmolLM2-360M, context: window, window: 1024}
  long: {path: HuggingFaceTB/SmolLM2-360M}
scoring: {max_length: 8192}
training: {enabled: false}"""
_MOST_CANDIDATES = 3  # files that a message names
_MOST_BYTES = 1 << 16  # of a file that may be a configuration


def configuration_name(given: str | Path | None = None) -> str:
    """Return the name of the configuration: the absolute path of a file, or the embedded demo's `demo_name`.

    The first of these counts: `given`; the value of GATEAU_CONFIG; gateau.yaml in the current folder. `demo` means the
    embedded demo in the folder gateau_demo of the current one; for a file of this name, give ./demo.

    Returns:
        The name; an empty text if nothing names a configuration.

    Raises:
        GateauError: the name is not that of a local file.
    """
    if given is not None and not str(given):
        raise GateauError("config.unreadable", "--config is empty: give the path of a YAML file, or leave it out.")
    usual = Path(USUAL_FILE)
    chosen = given or os.environ.get(ENVIRONMENT_VARIABLE)
    if not chosen:  # reading a broken link reports it
        return str(as_text(usual.absolute())) if usual.exists() or usual.is_symlink() else ""
    if str(chosen) == DEMO:
        return demo_name(str(as_text(Path(DEMO_FOLDER).absolute())))
    if demo_place(str(chosen)):
        return str(chosen)
    if "://" in str(chosen):  # not shown, since it may hold credentials
        raise GateauError(
            "config.unreadable",
            "the configuration must be a local file, not a remote address. Download it and give its path with "
            f"--config or {ENVIRONMENT_VARIABLE}.",
        )
    try:
        file = Path(chosen).expanduser()
    except RuntimeError as error:
        raise GateauError(
            "config.unreadable",
            f"the configuration {chosen} begins with the home folder of an unknown user. Give another path with "
            f"--config or {ENVIRONMENT_VARIABLE}.",
        ) from error
    return str(as_text(file.absolute()))


def load_project(path: str | Path | None = None, checks: Sequence[Check] = ()) -> Config:
    """Return the configuration that `configuration_name` finds for `path`.

    Args:
        path: of a file, or the name of the embedded demo.
        checks: more checks for the content of a file, as for `parse_config`; those that need Dagster are passed in.

    Raises:
        GateauError: nothing names a configuration, or the file cannot be read or is wrong; the message names each
            place.
    """
    name = configuration_name(path)
    if not name:
        raise GateauError("config.no_file", _no_configuration(Path().absolute()))
    if folder := demo_place(name):
        return built_in(Path(folder))
    return read_config(Path(name), [check_project, *checks])


def _no_configuration(folder: Path) -> str:
    candidates = [f"  gateau run --config {shlex.quote(name)}" for name in _candidates(folder)]
    earlier = folder / StorageConfig().root
    return "\n".join(
        [
            f"there is no configuration: neither --config nor {ENVIRONMENT_VARIABLE} names one, and {folder} contains "
            f"no {USUAL_FILE}.",
            *(["Did you mean this?", *candidates] if candidates else []),
            f"To see a whole run on built-in data: gateau demo (its store is in {DEMO_FOLDER}).",
            *([earlier_demo_note(earlier)] if is_built_in(earlier) else []),
            f"For your own data, run gateau init, or write {USUAL_FILE} in this folder, such as:",
            "",
            *(f"  {line}" for line in EXAMPLE.splitlines()),
            "",
            "then run: gateau validate. docs/reference/configuration.md explains the keys.",
        ]
    )


def _candidates(folder: Path) -> list[str]:
    """Return files that look like configurations: those of this folder, and the usual one of a folder above."""
    found = [*sorted(folder.glob("*.yaml")), *sorted(folder.glob("*.yml"))]
    above = next((each / USUAL_FILE for each in folder.parents if (each / USUAL_FILE).is_file()), None)
    here = [file.name for file in found if file.is_file() and _has_samples(file)]
    return [*here[:_MOST_CANDIDATES], *([] if above is None else [os.path.relpath(above, folder)])]


def _has_samples(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return re.search(rb"^long_sft\s*:", stream.read(_MOST_BYTES), re.MULTILINE) is not None
    except OSError:
        return False


def earlier_demo_note(store: Path) -> str:
    """Return a sentence about the store of a demo that an earlier version ran in the folder of the user's project."""
    return (
        f"{store} contains the embedded demo of an earlier version (its page: {store / 'report.html'}). Nothing reads "
        "it: you may remove the folder."
    )


def as_text(path: Path) -> Path:
    """Return the path. Raise GateauError if it is not valid text, since stamps, caches and Dagster keep texts."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise GateauError(
            "data.path_encoding",
            f"{ascii(str(path))[1:-1]} contains characters that are not UTF-8. Rename it, or set LC_ALL=C.UTF-8 if "
            "this process runs with another encoding.",
        ) from error
    return path


def parse_project(text: str, *, folder: Path, name: str = "gateau.yaml") -> Config:
    """Return the configuration in YAML text. Raise GateauError as `load_project` does."""
    return parse_config(text, folder=folder, name=name, checks=[check_project])


def check_project(config: Config) -> None:
    """Raise GateauError, with the place in the file, for the first thing that methods, training or features lack or
    that prevents them.
    """
    # Report missing models first: forgetting a model is the most common mistake.
    check_models(config)
    check_dependencies(config)
    check_store_apart(config)
    _check_training(config)
    for feature in features():
        feature.check(config)
    check_variants(config)
    check_inputs_apart(config)


def _check_training(config: Config) -> None:
    """Raise GateauError if the model to train is not configured, or a length of rows is given that no row has."""
    training = config.training
    of_preset = RECIPES.get(training.preset or "", {}).get("pack_length")
    if training.pack_length not in {None, of_preset} and not training.packs:
        raise GateauError(
            "training.pack_length",
            f"training.pack_length: is the length of packed rows, but training.batching is {training.batching}: remove "
            "it, or set training.batching: packed",
        )
    if config.training.enabled and config.training.model not in config.models:
        name, meant = config.training.model, nearest_name(config.training.model, config.models)
        raise GateauError(
            "models.missing",
            f"training.model: `models` does not contain {name!r}: add it there, or set training.enabled: false; "
            f"{meant}",
        )


def configuration_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of gateau.yaml: types, defaults, limits and descriptions of all keys.

    The schema is narrower than a program can be: checks across sections stay with `gateau validate`.
    """
    whole = configuration_model()
    schema = whole.model_json_schema()
    for name, field in whole.model_fields.items():
        if field.exclude:  # it follows from the file's place
            schema["properties"].pop(name)
    described = {"title": "gateau-dagster", "description": "The configuration file of gateau-dagster."}
    return {"$schema": GenerateJsonSchema.schema_dialect, **schema, **described}


def configuration_model() -> type[Config]:
    """Return the configuration with a field for the options of every method, and of what features describe.

    Methods of installed packages are included; those of `selection.plugins` are not.
    """
    methods = all_methods()
    options: dict[str, Any] = {
        name: (method.options_class, Field(default=None, description=f"Options of {name}. {method.title}"))
        for name, method in methods.items()
    }
    # A name may also come from selection.plugins.
    method_name: Any = Literal[tuple(methods)] | str  # pyright: ignore[reportInvalidTypeForm]
    method_or_file: Any = method_name | OwnScores
    selection = create_model(
        "SelectionConfig",
        __base__=SelectionConfig,
        __doc__=SelectionConfig.__doc__,
        method=(method_or_file, SelectionConfig.model_fields["method"]),
        compare=(_lists(method_name), SelectionConfig.model_fields["compare"]),
        options=(create_model("MethodOptions", __base__=Section, **options), SelectionConfig.model_fields["options"]),
    )
    sections: dict[str, type[Section]] = {"selection": selection}
    for feature in features():
        sections |= feature.described_sections()
    fields: dict[str, Any] = {key: (section, Config.model_fields[key]) for key, section in sections.items()}
    return create_model("Configuration", __base__=Config, **fields)


def _lists(item: Any) -> Any:
    """Return the type of lists of a type that is made at runtime."""
    return list[item]
