"""A small configuration, changed field by field, and the fingerprints that each comes to."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from gateau_dagster.config import Config
from gateau_dagster.features.text_mix.mix import text_key
from gateau_dagster.pipeline.asset import Asset, Observed
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.feature import features

BASE: dict[str, Any] = {
    "long_sft": {"path": "long.jsonl", "shards": 2},
    "short_chat": {"path": "short.json"},
    "models": {"short": {"path": "a/short", "context": "window", "window": 64}, "long": {"path": "a/long"}},
    "demo": {},
}


def all_fields(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted path of every field that is no section itself; `models.*` for both models."""
    for name, field in section.model_fields.items():
        if field.exclude:
            continue
        parts = [] if get_origin(field.annotation) is list else [field.annotation, *get_args(field.annotation)]
        inner = next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)
        if name == "models" and inner is not None:
            for model in ("short", "long"):
                yield from all_fields(inner, f"models.{model}.")
        elif inner is not None:
            yield from all_fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def configured(folder: Path, **changes: Any) -> Config:
    content: dict[str, Any] = {name: dict(section) for name, section in BASE.items()}
    content["models"] = {name: dict(model) for name, model in BASE["models"].items()}
    for path, value in changes.items():
        *sections, last = path.split(".")
        place = content
        for name in sections:
            place = place.setdefault(name, {})
        place[last] = value
    return Config.model_validate({**content, "folder": folder})


def resolved_assets(
    config: Config, digests: Mapping[str, str] | None = None, signature: str = "s", texts: str = "t"
) -> dict[str, Asset]:
    """What the planner compares, by asset in topological order, with made-up observations."""
    models = digests or {name: f"{model.path}@{model.revision}" for name, model in config.models.items()}
    of_texts = {text_key(name): texts for name in config.homologous_models}
    of_others = {name: each.other.path for name, each in config.variant_set.items() if each.other is not None}
    observed = Observed(
        model_digests=models,
        short_chat=signature,
        others=of_others,
        files={"scores": "s"},
        partitions=of_texts
        | {key: "d" for feature in features() for each in feature.partition_sets for key in each.keys(config)},
    )
    return {asset.key: asset for asset in pipeline_of(config).resolved(observed)}


def versions(config: Config, *observed: Any, **more: Any) -> dict[Any, str]:
    """The fingerprint of every output when all are up to date, and contents are functions of their origin.

    `observed`, `more`: as of `resolved_assets`.
    """
    pipeline = pipeline_of(config)
    found: dict[Any, str] = {}
    for asset in resolved_assets(config, *observed, **more).values():
        upstream = {
            name: ",".join(sorted(version for (key, _), version in found.items() if key == name))
            for name in asset.reads
        }
        for part in pipeline.partitions(asset.key):
            found[asset.key, part] = asset.of_partition(part).fingerprint(
                upstream or ({"input": f"{config.long_sft.shards}/{part}"} if part else {})
            )
    return found


def stale(before: Mapping[Any, str], after: Mapping[Any, str]) -> set[str]:
    return {key[0] for key, version in after.items() if before.get(key) != version}
