"""Define the recipes: how samples are chosen, mixed and trained on. The single run is one, as is every variant."""

# Why one class for both: the model of the single run and those of an experiment are chosen, mixed and trained by the
# same code. A variant is the single run of another configuration, `Recipe.config`. So one function serves both, and a
# comparison cannot differ in code by accident.
#
# What it costs: nothing is read here. All properties follow from the configuration. Those that validate it again are
# cached.
#
# The invariant: whatever changes a recipe's samples, mix or model is in the `Part` of that step, and nothing else is.
# Too little, and a stale model counts as current. Too much, and a change without effect costs a training run.
# tests/config/test_affects.py lists the keys that count, and tests/pipeline/test_code_versions.py the code.
#
# Settings that earlier stores lack are written only where they differ from what those stores assume. That looks
# irregular, and keeps their fingerprints.
#
# When another way is better: for two or three models that share little, a configuration and a store each. Variants pay
# where the models share scores and questions, and only few keys differ.

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from pydantic import ValidationError

from gateau_dagster import tables
from gateau_dagster.config import Config, SelectionConfig, TrainingConfig
from gateau_dagster.config.base import Section, code_of, without_effect
from gateau_dagster.config.load import first_mistake
from gateau_dagster.config.selection import DRAWING
from gateau_dagster.config.variants import (
    BASE,
    BASELINES,
    CHECKPOINT,
    FEATURE_VARIANTS,
    GATEAU,
    Equal,
    Variant,
    VariantsConfig,
    variants_of,
)
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import Reads
from gateau_dagster.methods.registry import chosen_methods, known_methods
from gateau_dagster.models.chat_rendering import rendering_settings
from gateau_dagster.pipeline.asset import (
    FAR_SHARE,
    FINITE_VALUES,
    NOTHING_RESERVED,
    REJECTED_SHARE,
    RESPONSE_SHARE,
    TRUNCATED_SHARE,
    UNIQUE_IDS,
    VARIANT,
    Asset,
    Observed,
    Part,
    origin_key,
    other_key,
)
from gateau_dagster.pipeline.feature import VariantSamples, features
from gateau_dagster.pipeline.scoring_assets import made_upstream
from gateau_dagster.pipeline.selection_reads import (
    CHOSEN,
    EVIDENCE,
    FORECAST_COLUMNS,
    PRESETS_TABLE,
    TRIM_READS,
    has_evidence,
    ranking_asset,
    reserved_documents,
    selection_reads,
    tables_read,
)
from gateau_dagster.registry import same_names
from gateau_dagster.selection.evidence import CODE_VERSION as EVIDENCE_CODE_VERSION
from gateau_dagster.selection.forecast import CODE_VERSION as FORECAST_CODE_VERSION
from gateau_dagster.selection.rules import CODE_VERSION as SELECTION_CODE_VERSION
from gateau_dagster.selection.trim import CODE_VERSION as TRIM_CODE_VERSION
from gateau_dagster.storage.stamp import By
from gateau_dagster.training.deepspeed_config import agreed_deepspeed_config
from gateau_dagster.training.launch import CODE_VERSION as TRAINING_CODE_VERSION
from gateau_dagster.training.token_weights import READS as WEIGHTS_READ
from gateau_dagster.training.training_mix import CODE_VERSION as MIX_CODE_VERSION
from gateau_dagster.training.training_mix import mix_columns as columns_of_mix

MIX, CHECKPOINT_FOLDER = "training_mix", "checkpoint"
"""With CHOSEN the assets of a recipe, as the single run has them."""
SUBSETS, MIXES, CHECKPOINTS = (f"variant/{key}" for key in (CHOSEN, MIX, CHECKPOINT_FOLDER))
"""The same assets of all variants: one partition each."""
IN_STORE = "store:"
"""The prefix of the address of a model that is a folder of the store."""
TRAINED = "variant/models"
"""The folder of the store with one folder per mix and training settings."""
MAIN = Variant(name="main", kind="selected", cell="main")
"""The single run, which is what `selection` and `training` say, with its own assets."""
LENGTHS = "perplexity/long"


@dataclass(frozen=True)
class Recipe:
    """The choice, the mix and the training of one model. `project`: the configuration as it is written."""

    project: Config
    variant: Variant = MAIN

    @property
    def is_main(self) -> bool:
        """Return whether it is the single run's."""
        return self.variant is MAIN

    @property
    def partition(self) -> str | None:
        """Return the partition of its subset and its mix; None for the assets of the single run."""
        return None if self.is_main else self.variant.name

    def asset(self, key: str) -> str:
        """Return the asset with its chosen samples, its mix or its model, by the key that the single run has."""
        return key if self.is_main else f"variant/{key}"

    def table(self, key: str) -> str:
        """Return the name of this asset's table in the store."""
        return key if self.is_main else f"variant/{key}/{self.variant.name}"

    @cached_property
    def config(self) -> Config:
        """Return the configuration that has this recipe as its single run."""
        # Copied without validation: keys of a user are validated where they enter the two sections. `check_variants`
        # checks that the sections fit one another, and names the variant.
        return self.project.model_copy(update={"selection": self.selection, "training": self._training})

    @cached_property
    def selection(self) -> SelectionConfig:
        """Return how its samples are chosen."""
        selection, variant = self.project.selection, self.variant
        # `full` takes every sample, so that it needs no scores: see `reads`.
        if variant.kind == "full":
            return selection.taking(fraction=1.0)
        if variant.kind != "selected":
            return selection
        if variant.fraction is not None or variant.budget is not None:
            selection = selection.taking(fraction=variant.fraction, budget=variant.budget)
        own = {} if variant.changed is None else variant.changed.selection
        if own:
            # Validated, since these keys come from the user: types and the keys that exclude one another are checked as
            # in the section.
            selection = SelectionConfig.model_validate(_replaced(selection, own))
        method, options = variant.method or selection.method, selection.options
        is_baseline = method in BASELINES and method != self.project.selection.method and "rule" not in own
        if is_baseline and selection.rule in DRAWING:
            selection = selection.by_rank()  # quotas and draws would make another selection of the baseline
        # The seeds of an experiment vary all that is drawn: the rule, the method and the training run. A seed among the
        # variant's own keys is added, so that changing either gives other draws.
        elif variant.seed is not None and selection.rule in DRAWING:
            selection = selection.model_copy(update={"seed": variant.seed + (own.get("seed") or 0)})
        if variant.seed is not None and "seed" in known_methods(self.project)[method].options_class.model_fields:
            own_options = (own.get("options") or {}).get(method) or {}  # null removes a key
            seed = variant.seed + (own_options.get("seed") or 0)
            options = {**options, method: {**options.get(method, {}), "seed": seed}}
        preset = variant.preset or selection.preset
        return selection.model_copy(update={"method": method, "preset": preset, "options": options})

    @property
    def _training(self) -> TrainingConfig:
        # The training run takes the seed, too: the order of its samples is drawn as well. Otherwise an interval over
        # seeds would leave that variation out.
        training = self.project.training
        if self.variant.changed is not None:
            training = TrainingConfig.model_validate(_replaced(training, self.variant.changed.training))
        if self.variant.seed is not None:
            training = training.model_copy(update={"seed": self.variant.seed})
        if self.variant.kind == "short_only":
            training = training.model_copy(update={"mix": training.mix.model_copy(update={"without_long": True})})
        return training

    @property
    def draws_lots(self) -> bool:
        """Return whether its method's scores differ from those of the method's asset, because the seed differs."""
        # The asset of a method has the scores of one seed. A recipe of another seed computes the method's scores by
        # itself, from the tables that the method reads. Without this, each seed would need its own asset.
        name = self.selection.method
        return chosen_methods(self.config)[name].options != chosen_methods(self.project)[name].options

    @property
    def equal(self) -> Equal | None:
        """Return the amount that is equal for every recipe of its kind; see `variants.equal`."""
        if self.is_main or self.project.variants is None:
            return None
        return self.project.variants.made_equal(tokens_known="long" in self.project.models)

    @property
    def of_feature(self) -> VariantSamples | None:
        """Return its samples if a feature makes them."""
        # The kernel asks the features, and knows none of them. A kind belongs to one feature at most.
        made = (feature.variant_samples.get(self.variant.kind) for feature in features())
        return next(filter(None, made), None)

    @property
    def reads(self) -> dict[str, list[str]]:
        """Return the columns, by asset, that its choice of samples reads; empty if it chooses none."""
        # No scores are read, so `full` can be trained before any sample is scored. The reserved documents are left out
        # as for every model, because the evaluation asks about them.
        if self.variant.kind == "full":
            reserves = reserved_documents(self.project).share is not None
            split = {SPLIT: ["sample_id", "reserved"]} if reserves else {}
            texts = ["digest"] if self.project.selection.duplicates == "one" else []
            shows_use = ["source"] if self.project.selection.use_sources else []
            return {"raw_long_sft": ["sample_id", *texts, *shows_use], **split}
        if self.of_feature is not None:
            return {asset: ["sample_id"] for asset in self.of_feature.reads}
        if self.variant.kind != "selected":
            return {}
        # Several needs may name one table. Their columns are joined, each once and in order, so that each table is
        # opened once and only for the columns that something reads.
        found = self.rule_reads
        scores: Reads = {ranking_asset(self.config): ["sample_id", "score"]}
        if self.draws_lots:
            scores = chosen_methods(self.config)[self.selection.method].reads()
        if self.selection.rule == "auto":
            scores = {**scores, EVIDENCE: [*FORECAST_COLUMNS]}
        if self.has_evidence:
            scores = {**scores, EVIDENCE: tables.schema(tables.EVIDENCE).names()}
        of_trim = TRIM_READS if self.counts_trimmed else {}
        for asset, columns in [*scores.items(), *of_trim.items()]:
            found[asset] = [*dict.fromkeys([*found.get(asset, []), *columns])]
        return found

    @property
    def trains_other(self) -> bool:
        """Return whether it trains another model than theta_B, from whose tables the samples are chosen."""
        training = self.config.training
        # Compared by origin: a model that is made from theta_B counts as theta_B, whose far deficit is known.
        return training.enabled and self.project.origin(training.model) != self.project.origin("long")

    @property
    def counts_trimmed(self) -> bool:
        """Return whether its selection counts tokens, and training leaves fewer of some samples."""
        # Training trims contexts after the choice. A budget counted before that would promise tokens that are never
        # trained on.
        return trims_contexts(self.config) and (isinstance(self.selection.budget, int) or self.equal == "tokens")

    @property
    def has_evidence(self) -> bool:
        """Return whether its chosen samples have the columns of tables.DEPENDS."""
        return self.is_main and has_evidence(self.project)

    @property
    def rule_reads(self) -> dict[str, list[str]]:
        """Return the columns that its selection rule reads besides the scores, by asset, if it selects by scores."""
        found = selection_reads(self.config)
        del found[ranking_asset(self.config)]
        if self.equal == "tokens":
            found[LENGTHS] = ["sample_id", "context_tokens", "response_tokens"]
        return found

    def subset_part(self) -> Part:
        """Return the inputs and settings of its chosen samples."""
        # By fingerprint: choosing again takes seconds, whatever was made again before it. The mix counts the choice by
        # content where it can, so an equal choice trains nothing.
        reads: dict[str, By] = dict.fromkeys(self.reads, "fingerprint")
        if self.variant.kind != "selected":
            kind = self.variant.kind
            samples = kind if self.of_feature is not None else "all" if kind == "full" else "none"
            settings: dict[str, Any] = {"samples": samples}
            # Stores of early releases lack this setting; a selection under `keep` is the same, so its fingerprint must
            # not change.
            if self.variant.kind == "full" and self.project.selection.duplicates == "one":
                settings["selection.duplicates"] = "one"
            if self.variant.kind == "full" and self.project.selection.use_sources:
                settings["selection.use"] = self.project.selection.use_sources
            return Part(reads=reads, settings=settings)
        selection = self.selection
        settings = {"selection.method": selection.method, "selection.rule": selection.parameters}
        # The single run leaves it out: `combined_scores` is ranked by its preset, so the upstream's version changes
        # anyway.
        if PRESETS_TABLE in reads and not self.is_main:  # whose table changes with the preset of `selection`
            settings["selection.preset"] = selection.preset
        # Otherwise the options are in the fingerprint of the method's asset, which is an upstream.
        if self.draws_lots:
            settings[f"selection.options.{selection.method}"] = selection.options[selection.method]
        if self.equal in {"samples", "tokens"}:
            settings["variants.equal"] = self.equal
        if self.counts_trimmed:
            settings |= _trim_settings(self.config)
        if selection.rule == "auto":
            settings |= {"forecast": FORECAST_CODE_VERSION, "trains another model": self.trains_other}
        if self.has_evidence:
            settings["columns"] = tables.schema(tables.DEPENDS).names()
        return Part(reads=reads, settings=settings)

    def mix_part(self) -> Part:
        """Return the inputs and settings of its mix; empty if it is not trained."""
        if not self.variant.trained:
            return Part()
        mix = self.config.training.mix
        # An equal selection gives an equal mix, unless the mix depends on the samples' ranks or sources.
        by: By = "fingerprint" if mix.long_fraction < 1 or mix.weights else "content"
        # Short conversations count by content. Files that changed and give the same conversations make the table again,
        # and no model.
        chat: dict[str, By] = {"short_chat_mix": "content"} if self.project.short_chat else {}
        weighing = WEIGHTS_READ[self.config.training.loss] if weighs_responses(self.config) else {}
        scored: dict[str, By] = dict.fromkeys(
            [*weighing, *(TRIM_READS if trims_contexts(self.config) else {})], "fingerprint"
        )
        return Part(reads={self.asset(CHOSEN): by, **chat, **scored}, observe=partial(_mix_settings, self.config))

    def checkpoint_part(self) -> Part:
        """Return the inputs and settings of its model."""
        # Three kinds of variant are no training runs. `checkpoint` is the model of the single run, `base` the model
        # before training, and the others exist elsewhere. They have a row in the table, so the evaluation treats all
        # models alike.
        made = made_upstream(self.project, self.project.training.model)
        if self.variant.kind == CHECKPOINT:
            return Part(reads={MIX: "content", CHECKPOINT_FOLDER: "content"})
        if self.variant.kind == BASE:
            return Part(reads=made, observe=partial(_base_settings, self.project))
        if not self.variant.trained:
            return Part(observe=partial(_other_settings, self.variant))
        # Variants with equal mixes and settings have equal fingerprints, and the folder of a model is named by its
        # fingerprint. So they share one model, and it is trained once. The mix counts by content for the same reason.
        observe = partial(_training_settings, self.config)
        return Part(
            reads={self.asset(MIX): "content", **made}, observe=observe, folders="" if self.is_main else TRAINED
        )


def _replaced(section: Section, own: dict[str, Any]) -> dict[str, Any]:
    # The keys that are set in the section, with a variant's own in their place; null removes a key.
    return {name: value for name, value in (section.model_dump(exclude_unset=True) | own).items() if value is not None}


def recipe_of(config: Config, variant: str | None) -> Recipe:
    """Return the recipe of a variant; that of the single run for `checkpoint`, and for None."""
    return Recipe(config) if variant in {None, CHECKPOINT} else Recipe(config, config.variant_set[str(variant)])


def recipes(config: Config) -> list[Recipe]:
    """Return the recipes of the single run and of every variant that is trained."""
    return [Recipe(config), *(Recipe(config, each) for each in config.variant_set.values() if each.trained)]


def selections(config: Config) -> list[SelectionConfig]:
    """Return the distinct selections of the recipes that choose samples by their scores."""
    # Not a set: a section holds lists and dicts, and cannot be hashed. There are tens of recipes at most.
    found: list[SelectionConfig] = []
    for recipe in recipes(config):
        if recipe.variant.kind == "selected" and recipe.selection not in found:
            found.append(recipe.selection)
    return found


def _mix_settings(config: Config, observed: Observed) -> dict[str, Any]:
    training = config.training
    weighs: dict[str, Any] = {"training.longce_gamma": training.longce_gamma} if training.weighs_in_mix else {}
    if training.loss == "far_gain":  # longce is not named: mixes from before far_gain stay valid
        weighs["training.loss"] = training.loss
    return {
        # A mix holds tokens. The digest of the model covers its tokenizer, which is in the same folder.
        f"models.{training.model} weights": observed.model_digests[training.model],
        "scoring.template": config.scoring.template,
        **rendering_settings(config.scoring.template, observed.frame(config.origin(training.model))),
        "training.max_length": training.max_length,
        "training.truncation": training.truncation,
        "training.seed": training.seed,
        **({} if config.trained_turns == "all" else {"training.trained_turns": config.trained_turns}),
        **weighs,
        **(_trim_settings(config) if trims_contexts(config) else {}),
        **{f"training.mix.{name}": value for name, value in training.mix.model_dump(mode="json").items()},
    }


def _training_settings(config: Config, observed: Observed) -> dict[str, Any]:
    """Return the settings of a training run.

    Raises:
        GateauError: the file that training.deepspeed names cannot be read, or contradicts `training`.
    """
    training = config.training
    section = f"models.{training.model}"
    # Keys without effect on the weights stay out, such as recomputation of activations. With `max_steps` the number of
    # epochs follows from it.
    left_out = without_effect(training, "checkpoint") | ({} if training.max_steps is None else {"epochs": True})
    options = {f"training.{name}": value for name, value in training.model_dump(mode="json", exclude=left_out).items()}
    return {
        f"{section} weights": observed.model_digests[training.model],
        f"{section}.rope_theta": config.models[training.model].rope_theta,
        **options,
        "training.gradient_accumulation": training.passes_per_step,
        # The content of a preset or file counts, not its name.
        "training.deepspeed": agreed_deepspeed_config(training, folder=config.folder),
    }


def _base_settings(config: Config, observed: Observed) -> dict[str, Any]:
    # How the base model answers before training depends on these. A made model counts as an upstream, not by weights.
    name, model = config.training.model, config.models[config.training.model]
    weights = {f"models.{name} weights": observed.model_digests[name]} if model.base is None else {}
    return {**weights, **{f"models.{name}.{key}": getattr(model, key) for key in ("rope_theta", "context", "window")}}


def _other_settings(variant: Variant, observed: Observed) -> dict[str, Any]:
    assert variant.other is not None
    return {"weights": observed.others[variant.name], "rope_theta": variant.other.rope_theta}


def _trim_settings(config: Config) -> dict[str, Any]:
    # Besides the tables, these decide which contexts are cut.
    return {"training.trim": f"{TRIM_CODE_VERSION}.{EVIDENCE_CODE_VERSION}", "training.seed": config.training.seed}


def weighs_responses(config: Config) -> bool:
    """Return whether there are long samples whose tokens are weighed."""
    return config.training.weighs_in_mix and not config.training.mix.without_long


def trims_contexts(config: Config) -> bool:
    """Return whether training cuts contexts of long samples that need no far text."""
    training = config.training
    return training.enabled and training.trim and not training.mix.without_long


def mix_columns(*mixed: Recipe) -> tuple[tables.Column, ...]:
    """Return the columns that the mixes of these recipes have."""
    trained = [recipe.config.training for recipe in mixed]
    return columns_of_mix(
        weighted=any(each.weighs_in_mix for each in trained), trimmed=any(each.trim for each in trained)
    )


def _declared(
    config: Config,
    key: str,
    part_of: Callable[[Recipe], Part],
    *,
    of_variants: bool,
    code_version: str,
    summaries: tuple[str, str],
    descriptions: tuple[str, str],
    **declared: Any,
) -> Asset:
    """Return an asset of the single run, or the one with a partition for each variant.

    summaries, descriptions: of both.
    """
    common = {"summary": summaries[of_variants], "description": descriptions[of_variants], **declared}
    if not of_variants:
        main = part_of(Recipe(config))
        own = {"reads": main.reads, "settings": main.settings, "observe": main.observe, "goal": True}
        return Asset(key=key, code_version=code_version, **own, **common)
    # Dagster and the planner know one set of upstreams per asset. A partition reads its own part of them, which
    # `Part.reads` names.
    parts = {name: part_of(Recipe(config, variant)) for name, variant in config.variant_set.items()}
    reads = {asset: by for part in parts.values() for asset, by in part.reads.items()}
    own = {"partitions": VARIANT, "group": "experiment", "reads": reads, "parts": parts, "own_rejects": False}
    return Asset(key=f"variant/{key}", code_version=f"1.{code_version}", **common | own)


def selected_subset(config: Config, *, of_variants: bool = False) -> Iterator[Asset]:
    """Declare the samples that the single run, or each variant, is trained on."""
    depends, by_rank = not of_variants and has_evidence(config), config.selection.rule not in DRAWING
    yield _declared(
        config,
        CHOSEN,
        Recipe.subset_part,
        of_variants=of_variants,
        maker="selected_subset",
        group="selection",
        kinds=("parquet", "polars"),
        summaries=("the chosen samples", "the samples that each variant is trained on"),
        descriptions=(
            f"The samples that selection.rule ({config.selection.rule}) chooses, with their texts, for the training. "
            "None of them is reserved for the held-out evaluation.",
            "The chosen samples of every variant of the experiment, with their texts, as in selected_subset; empty for "
            "models that are not trained here. No sample is reserved for the held-out evaluation.",
        ),
        code_version=SELECTION_CODE_VERSION,
        columns=(*tables.SELECTED_SUBSET, *(tables.DEPENDS if depends else ()), tables.CONVERSATION),
        finite=("score",),
        # A rule with quotas or a draw decides about the far share itself.
        checks=(
            *([] if of_variants else [UNIQUE_IDS]),
            FINITE_VALUES,
            *([FAR_SHARE] if depends and by_rank else []),
            *([RESPONSE_SHARE] if not of_variants and LENGTHS in tables_read(config) else []),
        ),
    )


def training_mix(config: Config, *, of_variants: bool = False) -> Iterator[Asset]:
    """Declare what the single run, or each variant, is trained on."""
    if not config.training.enabled:
        return
    reserves = reserved_documents(config).share is not None
    yield _declared(
        config,
        MIX,
        Recipe.mix_part,
        of_variants=of_variants,
        maker="training_mix",
        group="training",
        kinds=("parquet", "huggingface"),
        summaries=(
            "selected + short, tokenised, in training order",
            "each variant's samples and the short conversations, tokenised, in training order",
        ),
        descriptions=(
            "Selected long samples and short conversations, tokenised, shuffled, with labels on the responses only.",
            "The training mix of every variant, as in training_mix; empty for models from elsewhere.",
        ),
        inputs=(origin_key(config, config.training.model),),
        code_version=MIX_CODE_VERSION,
        # A variant may weigh tokens or cut contexts where others do not: only its mix has these columns.
        columns=mix_columns(*(recipes(config) if of_variants else [Recipe(config)])),
        checks=(REJECTED_SHARE, TRUNCATED_SHARE, *([NOTHING_RESERVED] if reserves else [])),
    )


def checkpoint(config: Config, *, of_variants: bool = False) -> Iterator[Asset]:
    """Declare the fine-tuned model (Eq. 7), or which model each variant is."""
    if not config.training.enabled:
        return
    own = (
        {"columns": tables.VARIANT_CHECKPOINT, "goal": config.variants is not None} if of_variants else {"folder": True}
    )
    yield _declared(
        config,
        CHECKPOINT_FOLDER,
        Recipe.checkpoint_part,
        of_variants=of_variants,
        maker="trained_model",
        group="training",
        kinds=("pytorch", "huggingface", "deepspeed"),
        summaries=(
            "the fine-tuned model, a Hugging Face folder",
            "the model of each variant; equal mixes and settings are trained once",
        ),
        descriptions=(
            "The fine-tuned model (Eq. 7), a Hugging Face folder with safetensors. A separate process trains it. A "
            "killed training run continues from its last complete checkpoint.",
            "The model of every variant of the experiment. Trained models are in variant/models, one folder per mix "
            "and training settings. Variants may share one.",
        ),
        inputs=(
            origin_key(config, config.training.model),
            *(map(other_key, config.other_models) if of_variants else ()),
        ),
        code_version=TRAINING_CODE_VERSION,
        own_rejects=False,
        pool="gpu",
        **own,
    )


def check_variants(config: Config) -> None:
    """Raise GateauError, with the place in the file, for the first thing that the variants lack."""
    # Checked before anything runs: a wrong variant would otherwise fail after the models before it were trained. The
    # order is that of the causes: without training, no other mistake matters.
    section = config.variants
    if section is None:
        return
    if not config.training.enabled:
        raise GateauError(
            "variants.impossible", "variants: needs training: set training.enabled: true, or remove variants"
        )
    _check_names(config, section)
    by_tokens = "budgets" if section.budgets is not None else "equal" if section.equal == "tokens" else ""
    if by_tokens and "long" not in config.models:
        raise GateauError(
            "models.missing",
            f"variants.{by_tokens}: counts the tokens of models.long, which is missing: add it, or remove the key",
        )
    for each in recipes(config):
        if each.variant.changed is not None:
            _check_changed(each)
    if section.presets and GATEAU not in section.compared(config.selection.method):
        raise GateauError(
            "variants.impossible", "variants.presets: applies to method gateau only: name it in variants.methods, too"
        )
    for each in section.also:
        if isinstance(each, str) and each in FEATURE_VARIANTS and FEATURE_VARIANTS[each].of(config) is None:
            raise GateauError(
                "variants.impossible",
                f"variants.also: {each} needs the section {FEATURE_VARIANTS[each].key}: add it, or remove the variant",
            )
    if "short_only" in section.also and config.short_chat is None:
        raise GateauError(
            "variants.impossible",
            "variants.also: short_only trains on short conversations: add short_chat, or remove short_only",
        )
    if section.equal == "steps" and config.training.max_steps is None:
        raise GateauError(
            "variants.impossible",
            "variants.equal: steps needs training.max_steps: set it, or set another variants.equal",
        )
    if config.training.mix.without_long:
        raise GateauError(
            "variants.impossible",
            "variants: training.mix.without_long leaves every variant without long samples. Set it to false, and "
            "name the baseline in variants.also: [short_only]",
        )


def _check_names(config: Config, section: VariantsConfig) -> None:
    every = variants_of(section, method=config.selection.method, trains=True)
    repeated = [name for name, count in Counter(variant.name for variant in every).items() if count > 1]
    if repeated:
        raise GateauError(
            "variants.impossible", f"variants.also: two variants are named {repeated[0]}: choose another name"
        )
    if (same := same_names(variant.name for variant in every)) is not None:
        raise GateauError(
            "variants.impossible",
            f"variants.also: the names {same[0]} and {same[1]} differ in case only, and name files: choose another",
        )


def _check_changed(recipe: Recipe) -> None:
    """Raise GateauError, with the variant's name, if its keys do not fit the other keys, or a table is not made."""
    place = f"variants.also: {recipe.variant.cell}"
    try:
        config = recipe.config
        # Keys of two sections may not fit each other, as a loss that needs a pair of models.
        Config.model_validate({name: getattr(config, name) for name in Config.model_fields} | {"variants": None})
    except ValidationError as error:
        section = next(each for each in (SelectionConfig, TrainingConfig, Config) if each.__name__ == error.title)
        raise GateauError(code_of(error.errors()[0]), f"{place}: {first_mistake(error, section)}") from error
    except GateauError as error:
        raise error.reworded(f"{place}: {error}") from error
    if recipe.selection.encoder not in {None, recipe.project.selection.encoder}:
        raise GateauError(
            "variants.impossible",
            f"{place}: selection.encoder: the table embedding/{recipe.selection.encoder} is not made: set the encoder "
            "in `selection` for all variants, with a rule that reads it",
        )
    if LENGTHS in recipe.reads and "long" not in recipe.project.models:
        raise GateauError(
            "models.missing",
            f"{place}: counts the tokens of models.long, which is missing: add it, or choose by a fraction or count",
        )
    if EVIDENCE in {**recipe.reads, **recipe.mix_part().reads} and not has_evidence(recipe.project):
        raise GateauError(
            "variants.impossible",
            f"{place}: reads the table `{EVIDENCE}`, which is not made: set selection.evidence: true",
        )
