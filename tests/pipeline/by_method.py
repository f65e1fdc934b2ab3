"""Configurations by the methods that they name, with what each of these needs."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.features.evaluation.registry import all_benchmarks
from gateau_dagster.methods.registry import all_methods
from gateau_dagster.pipeline.project import check_project
from tests.features.whole import of_features

# Those that need neither files of others nor a judge.
BENCHMARKS = [name for name, each in all_benchmarks().items() if each.default]
_SHOWN = {"demonstrations": [{"instruction": "1 + 1?", "response": "2."}]}
# What a method is not offered without: its options, and a model beside the pair.
NEEDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gateau_unextended": ({"short": "third"}, {"third": {"path": "a/third"}}),
    "gateau_in_context": (
        {"short": "a", "long": "b"},
        {"a": {"path": "a/a", **_SHOWN}, "b": {"path": "a/b", **_SHOWN}},
    ),
    "hmg_non_homologous": ({"short": "third", "per": "character"}, {"third": {"path": "a/third"}}),
    "car": ({}, {"reward": {"path": "a/reward", "task": "reward"}}),
    "target": ({"encoder": "enc", "sources": ["wanted"]}, {"enc": {"path": "a/enc", "task": "embedding"}}),
}
JUDGE = {"base_url": "http://judge/v1", "model": "m"}
PAIR = {"short": {"path": "a/short", "context": "window", "window": 64}, "long": {"path": "a/long"}}


def by_method(
    method: str,
    *compare: str,
    models: dict[str, Any] | None = None,
    training: bool = False,
    variants: dict[str, Any] | None = None,
    scoring: dict[str, Any] | None = None,
    sections: Mapping[str, Any] | None = None,
    **selection: Any,
) -> Config:
    """Return a checked configuration.

    models: replaces the pair. sections: the sections of features, by key. selection: other keys of `selection`.
    """
    names = [name for name in (method, *compare) if name in NEEDS]
    further = {name: model for each in names for name, model in NEEDS[each][1].items()}
    options = {each: NEEDS[each][0] for each in names} | selection.pop("options", {})
    of_scores = {"scores": {"path": "scores.csv"}} if "scores" in (method, *compare) else {}
    config = Config.model_validate(
        {
            "long_sft": {"path": "long.jsonl", "shards": 2},
            "short_chat": {"path": "short.json"} if training else None,
            "models": (PAIR if models is None else models) | further,
            "selection": {"method": method, "compare": list(compare), "options": {**of_scores, **options}, **selection},
            "scoring": scoring or {},
            "training": {"enabled": training},
            "variants": variants,
            **(sections or {}),
            "evaluation": {"benchmarks": BENCHMARKS, "judge": JUDGE if "judge" in (method, *compare) else None},
        }
    )
    check_project(config)
    return config


@cache
def maximal() -> Config:
    """Every method, every kind of model that is made or read, and every part of the pipeline."""
    models = {
        "further": {"path": "homologous:short", "homologous": {"texts": "t", "length": 512, "tokens_per_step": 65_536}},
        "cherry": {"path": "pre_experienced:long"},
        "enc": {"path": "a/enc", "task": "embedding"},
    }
    return by_method(
        *all_methods(),
        models=PAIR | models,
        training=True,
        variants={"methods": ["gateau", "random"], "seeds": [1], "also": ["full", "short_only"]},
        rule="diverse",
        encoder="enc",
        segment_lengths=[64],
        evidence="control",
        sections=of_features("SECTION"),
        options={"ifd": {"model": "cherry"}},
    )
