"""Register all benchmarks by name: every named subclass of Benchmark in the package `benchmarks` and in plug-ins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from pydantic import Field, create_model

from gateau_dagster.config.base import Section, validated
from gateau_dagster.data.document_split import Reserving
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation import ANSWERS, benchmarks
from gateau_dagster.features.evaluation.benchmark import RETURNED, Benchmark, MeasuredBenchmark, QuestionBenchmark
from gateau_dagster.features.evaluation.config import EvaluationConfig, evaluation_of
from gateau_dagster.registry import classes_of, modules_of, with_installed, with_plugins

if TYPE_CHECKING:
    from gateau_dagster.config import Config


FAMILY = "evaluation"
ENTRY_POINTS = "gateau_dagster.benchmarks"
"""The entry-point group in which installed packages name their benchmarks."""


def asset_of(name: str) -> str:
    """Return the asset that holds a benchmark's table."""
    return f"{FAMILY}/{name}"


@cache
def all_benchmarks() -> Mapping[str, type[Benchmark]]:
    """Return by name the benchmarks of the project, sorted, followed by those of installed packages.

    Raises:
        GateauError: as `with_installed`.
    """
    found = (benchmark for module in modules_of(benchmarks) for benchmark in classes_of(module, Benchmark))
    own = {benchmark.name: benchmark for benchmark in sorted(found, key=lambda each: each.name)}
    return with_installed(own, ENTRY_POINTS, Benchmark, returned=RETURNED, taken=EvaluationConfig.model_fields)


def known_benchmarks(config: Config) -> Mapping[str, type[Benchmark]]:
    """Return `all_benchmarks` and those of `selection.plugins`.

    Raises:
        GateauError: as `with_plugins`.
    """
    files = config.plugin_files
    if not files:
        return all_benchmarks()
    return with_plugins(all_benchmarks(), files, Benchmark, returned=RETURNED, taken=EvaluationConfig.model_fields)


def chosen_benchmarks(config: Config) -> dict[str, Benchmark]:
    """Return the benchmarks that run, by name; none without training or with `evaluation.enabled: false`.

    Raises:
        GateauError: a name or an option does not exist, or the configuration lacks what a benchmark needs.
    """
    found = {name: each for name, each in configured_benchmarks(config).items() if each.asked}
    if not (config.training.enabled and evaluation_of(config).enabled):
        return {}
    for each in found.values():
        each.check()
    return found


def compared_benchmarks(config: Config) -> dict[str, MeasuredBenchmark]:
    """Return the `chosen_benchmarks` that compare the checkpoint with its base model; raises as that does."""
    return {name: each for name, each in chosen_benchmarks(config).items() if compares(each)}


def compares(benchmark: Benchmark) -> TypeGuard[MeasuredBenchmark]:
    """Return whether a benchmark has the table `evaluation/<name>`."""
    return isinstance(benchmark, MeasuredBenchmark) and bool(benchmark.columns)


def scored_benchmarks(config: Config) -> dict[str, Benchmark]:
    """Return the `chosen_benchmarks` whose values of every variant are kept; raises as that does.

    One that compares the checkpoint with its base model is included only where `variants` names more models, or for
    the gate.
    """
    gate = evaluation_of(config).gate
    gated = "" if gate is None else gate.benchmark
    return {
        name: each
        for name, each in chosen_benchmarks(config).items()
        if config.variants or name == gated or not compares(each)
    }


def asking_benchmarks(config: Config) -> dict[str, QuestionBenchmark]:
    """Return the benchmarks whose questions are not made from the store's tables, since the data contain such
    questions.

    Raises as `chosen_benchmarks` does.
    """
    found = scored_benchmarks(config)
    return {name: each for name, each in found.items() if isinstance(each, QuestionBenchmark) and not each.reads()}


def question_settings(config: Config, chosen: Benchmark, model_digests: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that a benchmark's questions depend on. `model_digests`: of every configured model."""
    model = config.origin(config.training.model)
    return {**chosen.stamped_settings(), f"models.{model} weights": model_digests[model]}


def shared_answers(config: Config, benchmark: str) -> list[str]:
    """Return the assets whose rows answer its questions too; a later one may exist from an earlier run."""
    asking = {name: each for name, each in scored_benchmarks(config).items() if isinstance(each, QuestionBenchmark)}
    asks_as = asking[benchmark].asks_as
    return [f"{ANSWERS}/{name}" for name, each in asking.items() if name == asks_as or each.asks_as == benchmark]


def reserving(config: Config) -> Reserving | None:
    """Return the settings for reserving samples for the benchmarks that run; None if no benchmark needs them.

    Of several benchmarks' options, the largest share and the smallest similarity satisfy all: a larger share reserves
    all that a smaller one does.
    """
    found = [each.options for each in chosen_benchmarks(config).values() if isinstance(each.options, Reserving)]
    if not found:
        return None
    share, similarity = max(each.share for each in found), min(each.similarity for each in found)
    return Reserving(share=share, similarity=similarity)


def one_document(config: Config, samples: int) -> GateauError:
    """Return the error for data of which nothing can be reserved: all `samples` are of one document."""
    options = {name: each.options for name, each in chosen_benchmarks(config).items()}
    least = {name: each.similarity for name, each in options.items() if isinstance(each, Reserving)}
    name = min(least, key=lambda each: least[each])
    return GateauError(
        "evaluation.heldout",
        f"the {samples} samples are from one document or its near-duplicates, so none can be held out: raise "
        f"{FAMILY}.{name}.similarity, or remove {name} from {FAMILY}.benchmarks",
    )


def document_similarity(config: Config) -> float:
    """Return the lowest similarity of two contexts of one document; reservation and selection use the same value.

    Where no benchmark reserves anything, it comes from the options that the configuration gives or leaves at their
    defaults.
    """
    found = reserving(config)
    if found is not None:
        return found.similarity
    options = [each.options for each in configured_benchmarks(config).values()]
    return min(each.similarity for each in options if isinstance(each, Reserving))


def configured_benchmarks(config: Config) -> dict[str, Benchmark]:
    """Return the benchmarks that run by default or that `evaluation` names, whether they run or not.

    Raises:
        SectionError: a name or an option does not exist.
    """
    known, given = known_benchmarks(config), evaluation_of(config).sections
    asked = _asked(config)
    wanted = [name for name, each in known.items() if each.default or name in asked or name in given]
    section = _section(tuple((name, each.options_class(), name in wanted) for name, each in known.items()))
    own = {"enabled": evaluation_of(config).enabled, "benchmarks": asked}
    found = validated(FAMILY, section, {name: {} for name in wanted} | given | own)
    return {name: known[name](config, getattr(found, name), name in asked) for name in wanted}


@cache
def _section(known: tuple[tuple[str, type[Section], bool], ...]) -> type[Section]:
    """Return the model of `evaluation`, from each benchmark's name, options class, and whether it is wanted."""
    names = tuple(name for name, _, _ in known)
    keys: dict[str, Any] = {
        "enabled": (bool, ...),
        "benchmarks": (tuple[Literal[names], ...], ...),  # pyright: ignore[reportInvalidTypeForm]
        **{name: (options, ... if wanted else None) for name, options, wanted in known},
    }
    return create_model("Evaluation", __base__=Section, **keys)


def described_section() -> type[EvaluationConfig]:
    """Return the section `evaluation` with a field for the options of every benchmark.

    Benchmarks of installed packages are included; those of `selection.plugins` are not.
    """
    names = tuple(all_benchmarks())
    # A name may also come from selection.plugins.
    name: Any = Literal[names] | str  # pyright: ignore[reportInvalidTypeForm]
    fields: dict[str, Any] = {
        each: (benchmark.options_class(), Field(default=None, description=f"Benchmark {each}: {benchmark.title}."))
        for each, benchmark in all_benchmarks().items()
    }
    fields["benchmarks"] = (list[name] | None, EvaluationConfig.model_fields["benchmarks"])
    return create_model("EvaluationConfig", __base__=EvaluationConfig, __doc__=EvaluationConfig.__doc__, **fields)


def with_benchmarks(config: Config) -> Config:
    """Return the configuration with benchmark names and options filled in; raises as `configured_benchmarks`."""
    options = {name: each.options.model_dump(mode="json") for name, each in configured_benchmarks(config).items()}
    given = EvaluationConfig.model_validate({"benchmarks": _asked(config)} | options)
    own = {name: getattr(evaluation_of(config), name) for name in EvaluationConfig.model_fields if name != "benchmarks"}
    return config.model_copy(update={"evaluation": given.model_copy(update=own)})


def _asked(config: Config) -> tuple[str, ...]:
    named = evaluation_of(config).benchmarks
    if named is not None:
        return named
    return tuple(name for name, benchmark in known_benchmarks(config).items() if benchmark.default)
