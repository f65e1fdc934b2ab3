"""Each asset names the inputs that its fingerprint is made from, and no others; groups and edges of the graph."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from gateau_dagster.config import Config
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.errors import GateauError
from gateau_dagster.features.demo.prepare import embedded_demo
from gateau_dagster.features.text_mix.mix import text_key
from gateau_dagster.pipeline.asset import CHAT, Asset, Observed, origin_key, other_key
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.input_versions import _facts, input_versions
from gateau_dagster.pipeline.inputs import inputs_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.pipeline import Pipeline

CONTENT: dict[str, Any] = {
    "long_sft": {"path": "long.jsonl", "shards": 2},
    "short_chat": {"path": ["a.json", "b.json"]},
    "models": {
        "short": {"path": "a/short", "context": "window", "window": 512},
        "long": {"path": "homologous:short", "homologous": {"texts": "books/*.txt", "length": 4096}},
        "cherry": {"path": "pre_experienced:short"},
        "reward": {"path": "a/reward", "task": "reward"},
    },
    "selection": {"compare": ["ifd", "car", "ladm"]},
    "training": {"model": "long"},
    "variants": {"methods": ["gateau"], "fractions": [0.1], "also": ["full", {"name": "released", "path": "a/other"}]},
    "evaluation": {"benchmarks": ["heldout", "needle"]},
}


class Asked(Mapping[str, str]):
    """Texts by name; notes those that are taken."""

    def __init__(self, keys: Mapping[str, str], note: Callable[[str], object]) -> None:
        self.keys_of, self.note = keys, note

    def __getitem__(self, name: str) -> str:
        self.note(self.keys_of[name])
        return "digest"

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_of)

    def __len__(self) -> int:
        return len(self.keys_of)


class Noting:
    """In the place of `Observed`."""

    def __init__(self, config: Config) -> None:
        self.noted: set[str] = set()
        note = self.noted.add
        self.model_digests = Asked({name: origin_key(config, name) for name in config.models}, note)
        self.partitions = Asked({text_key(name): text_key(name) for name in config.homologous_models}, note)
        self.others = Asked({name: other_key(name) for name in config.other_models}, note)

    @property
    def short_chat(self) -> str:
        self.noted.add(CHAT)
        return "digest"

    instructions = "digest"  # of the samples, which `raw_long_sft` reads

    def frame(self, model: str) -> tuple[str, str]:
        """A part of the model's folder, whose digest is asked for beside it."""
        del model
        return "", ""


def asked_for(asset: Asset, config: Config) -> set[str]:
    """The inputs that the asset's settings look at."""
    noting = Noting(config)
    for observe in (asset.observe, *(part.observe for part in asset.parts.values())):
        if observe is not None:
            with suppress(GateauError):  # a model that is not here; which one it is has been asked before
                observe(cast("Observed", noting))
    return noting.noted


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return pipeline_of(Config.model_validate(CONTENT))


def test_an_asset_s_inputs_are_those_of_its_fingerprint(pipeline: Pipeline) -> None:
    inputs = {asset.key: {*asset.inputs} for asset in pipeline.assets}
    assert inputs["raw_long_sft"] == {"input/long_sft"}, "by the content of each shard, see Asset.reads_input"
    del inputs["raw_long_sft"]
    assert inputs == {asset.key: asked_for(asset, pipeline.config) for asset in pipeline.assets if asset.key in inputs}
    assert inputs["perplexity/short"] == {"input/short_model"}
    assert inputs["perplexity/long"] == set(), "made here, from input/short_model"
    assert inputs["homologous_mix/long"] == {"input/long_texts", "input/short_model"}
    assert inputs["variant/checkpoint"] == {"input/short_model", "input/variant_released_model"}


def test_every_input_is_read_and_every_one_that_is_read_is_known(pipeline: Pipeline) -> None:
    known = {each.key: each.path for each in inputs_of(pipeline.config)}
    assert {*known} == {key for asset in pipeline.assets for key in asset.inputs}
    assert known == {
        "input/long_sft": "long.jsonl",
        "input/short_chat": "a.json, b.json",
        "input/long_texts": "books/*.txt",
        "input/short_model": "a/short",
        "input/reward_model": "a/reward",
        "input/variant_released_model": "a/other",
    }


def test_a_page_names_only_what_nothing_else_that_it_names_is_made_from(pipeline: Pipeline) -> None:
    shown, read = pipeline.shown_reads("report"), pipeline.by_key["report"].reads
    assert len(shown) < len(read) / 2
    assert pipeline.ancestors(shown) == pipeline.ancestors(read), "nothing is lost"
    assert not any(each in pipeline.ancestors([other]) for each in shown for other in shown if each != other)
    assert pipeline.shown_reads("selected_subset") == [*pipeline.by_key["selected_subset"].reads]


def test_members_of_a_family_stand_in_a_group_of_their_own(pipeline: Pipeline) -> None:
    groups = {asset.key: asset.shown_group for asset in pipeline.assets}
    assert (groups["perplexity/short"], groups["cam"], groups["variant/checkpoint"]) == (
        "perplexity",
        "scoring",
        "variant",
    )
    inputs = {each.key: "input" for each in inputs_of(pipeline.config)}
    names = [(group, key.rsplit("/", 1)[-1]) for key, group in {**groups, **inputs}.items()]
    assert len({*names}) == len(names), "group and node name an asset"
    assert "long" not in {key.rsplit("/", 1)[-1] for key in inputs}, "a node shows only this part of its key"


def test_a_time_beyond_all_years_is_left_out() -> None:
    whole = SourceFile(address="/a", size=3, stamp=str(2 * 10**18))
    damaged = [SourceFile(address="/b", size=4, stamp=stamp) for stamp in (str(2**62 * 2**7), "9" * 40)]
    sizes = {"files": 3, "size_bytes": 11}
    assert _facts([whole, *damaged]) == {**sizes, "last_change": datetime.fromtimestamp(2e9, UTC)}
    assert _facts(damaged) == {"files": 2, "size_bytes": 8}


def test_a_new_demo_has_inputs_before_anything_else_reads_its_data(tmp_path: Path) -> None:
    """A run of `refresh` in a new project records the inputs first."""
    state = state_of(config=embedded_demo(tmp_path))
    assert len(input_versions(state, inputs_of(state.config)[0])) == state.config.long_sft.shards
