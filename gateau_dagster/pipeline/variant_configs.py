"""Express each variant of the experiment as the configuration of a single run."""

from collections import Counter

from gateau_dagster.config import Config, SelectionConfig, TrainingConfig
from gateau_dagster.config.variants import GATEAU, OtherModel, Variant, VariantsConfig, variants_of
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.document_split import SPLIT
from gateau_dagster.evaluation.registry import reserving
from gateau_dagster.methods.method import Reads
from gateau_dagster.methods.registry import chosen_methods, known_methods
from gateau_dagster.pipeline.selection_reads import ranking_asset, selection_reads

LENGTHS = "perplexity/long"


def variant_config(config: Config, variant: Variant) -> Config:
    """Return the configuration that has this variant as its single run. `variant`: one that is trained."""
    return config.model_copy(update={"selection": _selection(config, variant), "training": _training(config, variant)})


def _selection(config: Config, variant: Variant) -> SelectionConfig:
    found = config.selection
    if variant.kind == "full":
        return found.taking(fraction=1.0)
    if variant.kind != "selected":
        return found
    if variant.fraction is not None or variant.budget is not None:
        found = found.taking(fraction=variant.fraction, budget=variant.budget)
    method, options = variant.method or found.method, found.options
    if variant.seed is not None and "seed" in known_methods(config)[method].options_class.model_fields:
        options = {**options, method: {**options.get(method, {}), "seed": variant.seed}}
    return found.model_copy(update={"method": method, "preset": variant.preset or found.preset, "options": options})


def _training(config: Config, variant: Variant) -> TrainingConfig:
    training = config.training
    if variant.seed is not None:
        training = training.model_copy(update={"seed": variant.seed})
    if variant.kind == "short_only":
        training = training.model_copy(update={"mix": training.mix.model_copy(update={"without_long": True})})
    return training


def draws_lots(config: Config, variant: Variant) -> bool:
    """Return whether its method's scores differ from those of the method's asset, because the seed differs."""
    wanted = variant_config(config, variant)
    name = wanted.selection.method
    return chosen_methods(wanted)[name].options != chosen_methods(config)[name].options


def variant_reads(config: Config, variant: Variant) -> dict[str, list[str]]:
    """Return what choosing its samples reads, columns by asset; empty if it chooses none."""
    if variant.kind == "full":
        split = {SPLIT: ["sample_id", "reserved"]} if reserving(config) is not None else {}
        texts = ["digest"] if config.selection.duplicates == "one" else []
        return {"raw_long_sft": ["sample_id", *texts], **split}
    if variant.kind != "selected":
        return {}
    found = rule_reads(config, variant)
    wanted = variant_config(config, variant)
    scores: Reads = {ranking_asset(wanted): ["sample_id", "score"]}
    if draws_lots(config, variant):
        scores = chosen_methods(wanted)[wanted.selection.method].reads()
    for asset, columns in scores.items():
        found[asset] = [*dict.fromkeys([*found.get(asset, []), *columns])]
    return found


def rule_reads(config: Config, variant: Variant) -> dict[str, list[str]]:
    """Return the columns that its selection rule reads besides the scores, by asset. `variant`: of kind `selected`."""
    wanted = variant_config(config, variant)
    found = selection_reads(wanted)
    del found[ranking_asset(wanted)]
    if config.variants is not None and config.variants.equal == "tokens":
        found[LENGTHS] = ["sample_id", "context_tokens", "response_tokens"]
    return found


def selections(config: Config) -> list[SelectionConfig]:
    """Return the distinct selections of the single run and of every variant that chooses samples."""
    found = [config.selection]
    for variant in config.variant_set.values():
        if variant.kind == "selected":
            found += [each for each in [_selection(config, variant)] if each not in found]
    return found


def trained_configs(config: Config) -> list[Config]:
    """Return every training of the project as the configuration of a single run: the file's own, and the variants'."""
    variants = [each for each in config.variant_set.values() if each.trained]
    return [config, *(variant_config(config, each) for each in variants)]


def others(config: Config) -> dict[str, OtherModel]:
    """Return the models that are not trained here, by the variants' names."""
    return {name: each.other for name, each in config.variant_set.items() if each.other is not None}


def check_variants(config: Config) -> None:
    """Raise GateauError, with the place in the file, for the first thing that the variants lack."""
    section = config.variants
    if section is None:
        return
    if not config.training.enabled:
        raise GateauError("variants: they are trained: set training.enabled: true, or remove variants")
    _check_names(config, section)
    _check_lengths(config, section)
    if section.presets and GATEAU not in (section.methods or [config.selection.method]):
        raise GateauError("variants.presets: are those of method gateau: name it in variants.methods, too")
    if "short_only" in section.also and config.short_chat is None:
        raise GateauError("variants.also: short_only trains on the short conversations, which short_chat names")
    if section.equal == "steps" and config.training.max_steps is None:
        raise GateauError("variants.equal: steps needs training.max_steps, the steps of every training")
    if config.training.mix.without_long:
        raise GateauError(
            "variants: none of them would take a long sample: set training.mix.without_long: false, and "
            "variants.also: [short_only] for the training without"
        )


def _check_names(config: Config, section: VariantsConfig) -> None:
    every = variants_of(section, method=config.selection.method, trains=True)
    repeated = [name for name, count in Counter(variant.name for variant in every).items() if count > 1]
    if repeated:
        raise GateauError(f"variants.also: two variants are called {repeated[0]}: choose another name")


def _check_lengths(config: Config, section: VariantsConfig) -> None:
    place = "budgets" if section.budgets is not None else "equal" if section.equal == "tokens" else ""
    if place and "long" not in config.models:
        raise GateauError(f"variants.{place}: counts the tokens of models.long, which is missing")
