"""The comparison as a pure function, against a twin that simulates runs instead of reasoning about them."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster.pipeline.asset import Asset, Part
from gateau_dagster.pipeline.plan import AFTER, Partitions, ancestors, recorded_versions, staleness_of
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.stamp import By
from tests.kit.error_codes import refused
from tests.pipeline.world import World, declared

SHARDS = ["0", "1", "2"]
# A second partition set: what has it reads all shards, and the other way round.
SETS = {"fold": ["a", "b"]}
BYS: st.SearchStrategy[By] = st.sampled_from(["fingerprint", "content"])


def chain() -> list[Asset]:
    """raw → score (shards) → combined → selected —content→ mix → report."""
    return [
        declared("raw", partitions="shard"),
        declared("score", partitions="shard", reads={"raw": "fingerprint"}, settings={"length": 8}),
        declared("combined", reads={"score": "fingerprint"}, settings={"alpha": 0.8}),
        declared("selected", reads={"combined": "fingerprint", "raw": "fingerprint"}),
        declared("mix", reads={"selected": "content"}, settings={"seed": 1}),
        declared("report", reads={"mix": "fingerprint", "combined": "fingerprint"}),
    ]


def fresh() -> World:
    world = World(chain(), {shard: f"input {shard}" for shard in SHARDS})
    world.run_everything()
    assert not world.plan()
    return world


def change(world: World, asset: str, **settings_: Any) -> None:
    world.assets = [
        replace(each, settings={**each.settings, **settings_}) if each.key == asset else each for each in world.assets
    ]


def test_one_changed_shard_runs_its_chain_and_the_globals() -> None:
    world = fresh()
    world.inputs["1"] = "edited"
    plan = world.plan()
    assert [(work.asset, work.partitions) for work in plan.work[:2]] == [("raw", ["1"]), ("score", ["1"])]
    assert [work.asset for work in plan.work] == ["raw", "score", "combined", "selected", "mix", "report"]
    assert plan.work[0].reasons == {"1": "changed: input"}
    mix = plan.of("mix")
    assert mix is not None and mix.conditional and mix.reasons == {None: "waits for selected"}
    report = plan.of("report")
    assert report is not None and not report.conditional and report.reasons == {None: "changed: combined"}


def test_a_setting_runs_what_is_downstream_of_it_and_is_named() -> None:
    world = fresh()
    change(world, "combined", alpha=0.5)
    plan = world.plan()
    assert [work.asset for work in plan.work] == ["combined", "selected", "mix", "report"]
    assert plan.work[0].reasons == {None: "changed: alpha 0.8 → 0.5"}


def test_until_keeps_what_an_asset_needs() -> None:
    world = World(chain(), dict.fromkeys(SHARDS, "i"))
    plan = world.plan().until("selected", world.assets)
    assert [work.asset for work in plan.work] == ["raw", "score", "combined", "selected"]
    assert ancestors("raw", world.assets) == {"raw"}
    for other in ("x", "comparison", "document_split"):
        with refused("usage.asset"):
            plan.until(other, world.assets)


def test_what_has_to_wait_is_left_for_later() -> None:
    plan = World(chain(), dict.fromkeys(SHARDS, "i")).plan()
    assert [work.asset for work in plan.before({"mix", "report"}).work] == ["raw", "score", "combined", "selected"]
    assert plan.before({asset.key for asset in chain()}) is plan
    assert not World([], {}).plan().before(["mix"])


def test_one_partition_more_or_changed_leaves_the_others_alone() -> None:
    old = declared("model", partitions="fold", parts={name: Part(settings={"seed": 1}) for name in "ab"})
    world = World([old, declared("table", reads={"model": "content"})], {}, sets=SETS)
    world.run_everything()
    new = replace(old, parts={**old.parts, "a": Part(settings={"seed": 2}), "c": Part()})
    world.assets, world.sets = [new, *world.assets[1:]], {"fold": ["a", "b", "c"]}
    plan = world.plan()
    work = plan.of("model")
    assert work is not None and work.reasons == {"a": "changed: seed 1 → 2", "c": "missing"}
    assert world.run(plan) == {("model", "a"), ("model", "c"), ("table", None)}
    assert not world.plan()


def test_a_stamp_that_says_nothing_of_its_inputs_is_stale() -> None:
    world = fresh()
    world.stored["combined", None] = Stamp(fingerprint="of another program")
    work = world.plan().of("combined")
    assert work is not None and "alpha unset → 0.8" in work.reasons[None]


def parts_of(upstream: Mapping[str, By]) -> st.SearchStrategy[Part]:
    """A partition that reads some of its asset's upstreams, and has a setting of its own."""
    reads = st.sets(st.sampled_from([*upstream])).map(lambda names: {name: upstream[name] for name in sorted(names)})
    return st.builds(Part, reads=reads, settings=st.sampled_from([{}, {"y": 1}]))


@st.composite
def graphs(draw: st.DrawFn) -> list[Asset]:
    """Random graphs in topological order; the first asset, and others without upstream, read the shards' input."""
    assets: list[Asset] = []
    for number in range(draw(st.integers(1, 7))):
        partitions = draw(st.sampled_from(["shard", "fold", ""])) if number else "shard"
        above = [asset.key for asset in assets]
        chosen = draw(st.lists(st.sampled_from(above), unique=True, max_size=3)) if above else []
        if not chosen and partitions == "fold":
            chosen = above[:1]
        upstream: dict[str, By] = {name: draw(BYS) for name in chosen}
        asset = declared(f"n{number}", partitions=partitions, reads=upstream, settings={"x": 0})
        if partitions == "fold" and draw(st.booleans()):
            asset = replace(asset, parts={part: draw(parts_of(upstream)) for part in SETS["fold"]})
        assets.append(asset)
    return assets


@settings(max_examples=300, deadline=None)
@given(assets=graphs(), seed=st.integers(0, 10_000))
def test_random_changes_are_planned_as_the_twin_makes_them(assets: list[Asset], seed: int) -> None:
    rng = random.Random(seed)
    constant = {asset.key for asset in assets if rng.random() < 0.3}
    world, twin = (World(assets, dict.fromkeys(SHARDS, "i"), constant, SETS) for _ in range(2))
    twin.run_everything()
    assert not any(work.conditional for work in world.plan().work), "nothing is stored"
    assert world.run(world.plan()) == set(twin.stored)
    lost = {*twin.stored}
    for step in range(3):
        for kind in rng.sample(["input", "setting", "lost"], rng.randint(0, 3)):
            shard, asset, key = rng.choice(SHARDS), rng.choice(assets), rng.choice(sorted(twin.stored, key=str))
            for each in (world, twin):
                if kind == "input":
                    each.inputs = {**each.inputs, shard: f"edit {step}"}
                elif kind == "setting":
                    change(each, asset.key, x=step + 1)
                else:
                    each.stored.pop(key, None)
        plan = world.plan()
        planned = {(work.asset, part): why for work in plan.work for part, why in work.reasons.items()}
        assert {key for key, why in planned.items() if why == "missing"} == lost - {*twin.stored}
        sure = {key for key, why in planned.items() if not why.startswith(AFTER)}
        wanted = twin.run_everything()
        assert wanted <= {*planned}, "nothing that is stale is forgotten"
        assert sure <= wanted, "what is said to run for sure does run"
        certain = {work.asset for work in plan.work if not work.conditional}
        assert certain == {asset for asset, _ in sure}, "an asset of which one partition runs for sure"
        assert world.run(plan) == wanted
        assert world.stored == twin.stored
        assert not world.plan(), "one run is enough"


@settings(max_examples=100, deadline=None)
@given(assets=graphs())
def test_versions_of_what_is_stored_agree_with_the_twin(assets: list[Asset]) -> None:
    world = World(assets, {shard: f"i{shard}" for shard in SHARDS}, sets=SETS)
    world.run_everything()
    partitions = Partitions.between(assets, world.sets)
    for asset in assets:
        for partition in world.parts(asset.key):
            if asset.reads:
                found = recorded_versions(asset.of_partition(partition), partition, partitions, world.stored)
                assert found == world.versions(asset, partition)


def made(**inputs: object) -> Stamp:
    return Stamp(fingerprint="f", inputs=inputs)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (
            {"code": "1", "settings": {"a": 1, "b": None, "same": 2}, "upstream": {}},
            {"code": "1", "settings": {"a": 2, "b": "x", "same": 2}, "upstream": {}},
            "a 1 → 2; b unset → x",
        ),
        (
            {"settings": {"evaluation.needle": {"lengths": [1], "repeats": 3}}},
            {"settings": {"evaluation.needle": {"lengths": [1, 2], "repeats": 3}}},
            "evaluation.needle.lengths [1] → [1, 2]",
        ),
        (
            {"code": "1", "settings": {}, "upstream": {"raw": "x", "cam": "y"}},
            {"code": "2", "settings": {}, "upstream": {"raw": "z", "cam": "y", "new": "n"}},
            "code version; new; raw",
        ),
        (
            {"settings": {"x": "0123456789abcdef" * 2}},
            {"settings": {"x": "fedcba9876543210" * 2}},
            "x 0123456789ab… → fedcba987654…",
        ),
    ],
)
def test_what_changed_is_named(before: dict[str, Any], after: dict[str, Any], change: str) -> None:
    assert staleness_of(made(**before), after) == f"changed: {change}"


def test_long_values_are_cut_and_the_unexplained_is_said() -> None:
    text = staleness_of(made(settings={"x": "a" * 100}), {"settings": {"x": "b"}})
    assert len(text) < 50 and "…" in text
    assert staleness_of(made(code="1"), {"code": "1"}) == "changed"
