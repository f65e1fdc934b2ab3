"""Declare the synthetic samples by shard of documents: passages, questions, contexts, checks, accepted samples."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.data.sample import shard_keys
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.judging.asking import means
from gateau_dagster.features.evaluation.registry import asking_benchmarks, question_settings
from gateau_dagster.features.evaluation.servers import JudgeConfig
from gateau_dagster.features.synthesis import CHECKS_TABLE, CONTEXTS_TABLE, DOCUMENTS, PASSAGES_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.candidate_checks import CHECKED, CHECKS_CODE_VERSION, FigureDigests
from gateau_dagster.features.synthesis.config import SECTION, SYNTHETIC_SAMPLES, SynthesisConfig, section_of
from gateau_dagster.features.synthesis.contexts import CONTEXTS, CONTEXTS_CODE_VERSION
from gateau_dagster.features.synthesis.passages import PASSAGES, PASSAGES_CODE_VERSION, quota
from gateau_dagster.features.synthesis.questions import PROMPT_TOKENS, QUESTIONS, QUESTIONS_CODE_VERSION
from gateau_dagster.models.chat_rendering import rendering_settings
from gateau_dagster.models.model_facts import short_window
from gateau_dagster.pipeline.asset import UNIQUE_IDS, Asset, Observed, Part, origin_key
from gateau_dagster.pipeline.scoring_assets import made_upstream, memory_settings
from gateau_dagster.storage.stamp import By, fingerprint

# Raise it when the same checks accept other samples.
SYNTHESIS_CODE_VERSION = "1"
LONG = "long"
DOCUMENT_FILES = "input/documents"
DEFAULT_NEAR = 4096  # tokens, without models.short


def document_keys(config: Config) -> list[str]:
    """Return the partition keys of the documents' shards; no key is that of a shard of samples."""
    options = SECTION.of(config)
    return [] if options is None else [f"d{key}" for key in shard_keys(options.shards)]


def document_number(key: str) -> int:
    """Return the number of the shard that a partition key names."""
    return int(key.removeprefix("d"))


def synthesis_assets(config: Config, options: SynthesisConfig) -> Iterator[Asset]:
    """Declare the tables of `synthesis`."""
    generator, made = options.generator, made_upstream(config, LONG)
    common: dict[str, Any] = {"partitions": DOCUMENTS, "group": "data", "own_rejects": False}
    benchmarks = asking_benchmarks(config).values()
    asked: dict[str, By] = made_upstream(config, config.training.model) if benchmarks else {}
    keys = document_keys(config)
    yield Asset(
        key=PASSAGES_TABLE,
        maker="synthetic_passages",
        kinds=("polars",),
        summary="passages of the documents that a question may be asked about",
        description="Two to four passages of a document that are far apart and share a term, for each candidate. "
        "Near-duplicates, and passages with n-grams of benchmarks' questions, are left out. Loads no model.",
        inputs=(DOCUMENT_FILES,),
        reads=asked,
        settings={
            f"synthesis.{name}": value
            for name, value in options.model_dump(
                mode="json", include={"preset", "lengths", "passage_words", "seed", *(["kinds"] * options.is_verified)}
            ).items()
        },
        parts={
            key: Part(
                reads=asked,
                settings={"candidates": quota(options, number)},
                observe=partial(_documents, config, key),
            )
            for number, key in enumerate(keys)
        },
        code_version=PASSAGES_CODE_VERSION,
        columns=PASSAGES,
        checks=(UNIQUE_IDS,),
        **common,
    )
    own = {"window", "opening"} if "self" in (options.kinds if options.is_verified else {}) else set()
    yield Asset(
        key=QUESTIONS_TABLE,
        maker="synthetic_questions",
        kinds=("openai",),
        summary="the generator's questions, answers and evidence",
        description="The generator sees the passages alone, and writes a question, its answer and the evidence of each "
        "passage. Every reply is kept. A candidate without a reply is in the rejected table.",
        reads={PASSAGES_TABLE: "fingerprint"},
        settings={
            "synthesis.generator.model": generator.model,
            "synthesis.generator.max_tokens": generator.max_tokens,
            **{f"synthesis.generator.{name}": value for name, value in generator.changed_sampling.items()},
            **{f"synthesis.generator.{name}": getattr(generator, name) for name in sorted(own)},
        },
        code_version=QUESTIONS_CODE_VERSION,
        columns=(*QUESTIONS, PROMPT_TOKENS, tables.UNREAD),
        checks=(UNIQUE_IDS,),
        means=means(generator),
        **common,
    )
    yield Asset(
        key=CONTEXTS_TABLE,
        maker="synthetic_contexts",
        kinds=("polars",),
        summary="a long context for each question, with the places of its evidence",
        description="The whole document, or the passages among hard negatives up to the length. Records the characters "
        "of each passage in the context, which are the truth.",
        inputs=(origin_key(config, LONG),),
        reads={PASSAGES_TABLE: "fingerprint", QUESTIONS_TABLE: "fingerprint", **made},
        observe=partial(_tokenizer, config),
        code_version=CONTEXTS_CODE_VERSION,
        columns=CONTEXTS,
        checks=(UNIQUE_IDS,),
        **common,
    )
    checked = options.checks if options.is_verified else None
    yield Asset(
        key=CHECKS_TABLE,
        maker="synthetic_checks",
        kinds=("pytorch", "openai"),
        summary="the figures of every candidate, and the first check that refuses it",
        description="The checks of each candidate, the cheapest first; the first that fails ends it. Figures of "
        "unchanged candidates are kept. A looser threshold asks only about candidates that newly come to a check.",
        inputs=(origin_key(config, LONG),),
        reads={QUESTIONS_TABLE: "fingerprint", CONTEXTS_TABLE: "fingerprint", **made},
        settings={} if checked is None else {"synthesis.checks": checked.model_dump(mode="json")},
        observe=partial(figure_settings, config),
        code_version=CHECKS_CODE_VERSION,
        columns=CHECKED,
        checks=(UNIQUE_IDS,),
        pool="gpu",
        means=fingerprint({"means": [means(generator), memory_settings(config), means(evaluation_of(config).judge)]}),
        **common,
    )
    yield Asset(
        key=SYNTHETIC_SAMPLES,
        maker="synthetic_long_sft",
        kinds=("parquet", "polars"),
        summary="the accepted synthetic samples; `synthetic:` in long_sft.path",
        description="The synthetic samples that no check refuses. Their source is synthetic/<kind>, so every table and "
        "plot counts them apart. long_sft.path reads them as `synthetic:`.",
        reads=dict.fromkeys((QUESTIONS_TABLE, CONTEXTS_TABLE, CHECKS_TABLE), "fingerprint"),
        code_version=SYNTHESIS_CODE_VERSION,
        columns=tables.RAW_LONG_SFT,
        checks=(UNIQUE_IDS,),
        goal=True,
        **common,
    )


def _documents(config: Config, key: str, observed: Observed) -> dict[str, Any]:
    # The questions count, too: passages that hold one are left out.
    benchmarks, digests = asking_benchmarks(config), observed.model_digests
    asked = {name: question_settings(config, each, digests) for name, each in benchmarks.items()}
    return {"documents": observed.partitions[key], **({"questions": fingerprint(asked)} if asked else {})}


def _tokenizer(config: Config, observed: Observed) -> dict[str, Any]:
    return {f"models.{LONG} weights": observed.model_digests[LONG]} if config.models[LONG].base is None else {}


def near_tokens(config: Config) -> int:
    """Return the tokens of a context's end that count as near."""
    options = section_of(config)
    window = short_window(config) if "short" in config.models else None
    return options.checks.near_tokens or window or DEFAULT_NEAR


def figure_settings(config: Config, observed: Observed) -> dict[str, Any]:
    """Return the settings of theta_B's figures and the second answers, besides the texts."""
    options, model, scoring, judge = section_of(config), config.models[LONG], config.scoring, comparing_judge(config)
    if not options.is_verified:
        return {}
    return {
        **_tokenizer(config, observed),
        f"models.{LONG}.rope_theta": model.rope_theta,
        f"models.{LONG}.context": model.context,
        f"models.{LONG}.window": model.window if model.context == "window" else None,
        f"models.{LONG}.opening": model.opening,
        "scoring.max_length": scoring.max_length,
        "scoring.template": scoring.template,
        **rendering_settings(scoring.template, observed.frame(config.origin(LONG))),
        "scoring.dtype": scoring.dtype,
        "near tokens": near_tokens(config),
        "second answers": [options.generator.model, options.generator.changed_sampling],
        "comparison": [options.checks.agreement, *([] if judge is None else [judge.model, judge.changed_sampling])],
    }


def comparing_judge(config: Config) -> JudgeConfig | None:
    """Return the judge that compares second answers, if one does."""
    return evaluation_of(config).judge if section_of(config).compares_by_judge else None


def figure_digests(config: Config, observed: Observed, version: str) -> FigureDigests:
    """Return the digests of what computes the figures of the checks, besides the texts.

    Args:
        config: the configuration.
        observed: the models' digests.
        version: of theta_B's weights.
    """
    settings = figure_settings(config, observed)
    near, answers, comparison = (
        fingerprint({"of": settings.pop(name, None)}) for name in ("near tokens", "second answers", "comparison")
    )
    model = fingerprint({"code": CHECKS_CODE_VERSION, "model": version, **settings})
    return FigureDigests(model=model, near=near, answers=answers, comparison=comparison)
