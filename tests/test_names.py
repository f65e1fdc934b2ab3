"""No name of a model, variant, method, benchmark or table makes a path outside the store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateau_dagster.config import Config
from gateau_dagster.config.variants import OtherModel
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import Benchmark
from gateau_dagster.methods.method import Method
from gateau_dagster.registry import PluginFile, with_plugins
from gateau_dagster.scoring.sample_table import SampleTable
from gateau_dagster.storage import Stamp, Store
from gateau_dagster.tables import DIGEST, SAMPLE_ID

PARTS = [
    "..",
    ".",
    "/",
    "\\",
    "\0",
    "~",
    "C:",
    "nul",
    "CON",
    "a",
    "B",
    "é",
    "ﬀ",
    "\u202e",
    "\ud800",
    " ",
    "\n",
    "-",
    "%2e",
    "x" * 120,
]
NAMES = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=5).map("".join),
    st.text(max_size=30),
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,110}", fullmatch=True),
)
METHOD = """
from gateau_dagster.methods.method import Method
class Own(Method):
    name, title, source, per_sample = {name!a}, "", "", True
    def reads(self): return {{}}
    def score(self, tables): return None
"""
BENCHMARK = """
from gateau_dagster.features.evaluation.benchmark import MeasuredBenchmark
class Own(MeasuredBenchmark):
    name, title, description, unit = {name!a}, "", "", ""
    def measure(self, materials, variant): return None
"""


def of_plugin(source: str, kind: type[Any], family: str) -> Callable[[str], list[str]]:
    def assets(name: str) -> list[str]:
        file = PluginFile(place="p", path=Path("own.py"), source=source.format(name=name).encode())
        return [f"{family}/{each}" for each in with_plugins({}, [file], kind, returned={})]

    return assets


def of_a_model(name: str) -> list[str]:
    content = {"long_sft": {"path": "a"}, "models": {name: {"path": "b/c"}}, "training": {"enabled": False}}
    return [f"perplexity/{each}" for each in Config.model_validate(content).models]


def of_a_variant(name: str) -> list[str]:
    return [f"scores/x/{OtherModel(name=name, path='b/c').name}"]


def of_a_table(name: str) -> list[str]:
    from gateau_dagster.methods.registry import check_table_name

    table = SampleTable(
        asset=name, model="long", columns=(SAMPLE_ID, DIGEST), description="", score=lambda *_: iter(())
    )
    check_table_name(table, "own.py")
    return [table.asset]


WAYS = {
    "method": of_plugin(METHOD, Method, "method_scores"),
    "benchmark": of_plugin(BENCHMARK, Benchmark, "evaluation"),
    "model": of_a_model,
    "variant": of_a_variant,
    "table": of_a_table,
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60, deadline=None)
@given(name=NAMES)
def test_an_accepted_name_stays_in_the_store(tmp_path_factory: pytest.TempPathFactory, way: str, name: str) -> None:
    try:
        assets = WAYS[way](name)
    except ValueError:  # a GateauError, or Pydantic's
        return
    store, root = Store("/some/root"), Path("/some/root")
    for asset in assets:
        for partition in (None, "0", asset.rpartition("/")[2]):
            for found in (store.table_name(asset, partition), store.rejected_name(asset, partition)):
                place = Path(store.files.address(found))
                assert place.resolve().is_relative_to(root) and place != root
                assert all(len(part.encode()) <= 255 for part in place.parts) and str(place).isprintable()


@settings(max_examples=200, deadline=None)
@given(name=NAMES)
def test_the_storage_refuses_every_other_name(name: str) -> None:
    for root in ("/some/root", "s3://bucket/prefix"):
        store = Store(root)
        try:
            address = store.files.address(store.table_name(name, None))
        except GateauError as error:
            assert error.code == "storage.outside"
            continue
        inside = Path("/some/root") / address.removeprefix(f"{root}/")
        assert ".." not in address.split("/") and Path(*inside.parts).is_relative_to("/some/root")


def test_a_table_is_not_written_outside(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    with pytest.raises(GateauError, match="leads out of the store"):
        store.write(
            pl.DataFrame({"a": [1]}), "method_scores/../../x", None, Stamp(fingerprint="", inputs={}, scorer="")
        )
    assert [*tmp_path.rglob("*")] == []


@pytest.mark.parametrize(
    "sections",
    [
        {"models": {"long": {"path": "a/b"}, "Long": {"path": "a/c"}}},
        {"models": {"long": {"path": "a/b"}}, "variants": {"also": [{"name": "Base", "path": "a/c"}]}},
    ],
)
def test_names_that_differ_in_case_only_are_refused(sections: dict[str, Any]) -> None:
    from gateau_dagster.pipeline.recipes import check_variants

    with pytest.raises(ValueError, match="in case only"):
        check_variants(Config.model_validate({"long_sft": {"path": "a"}, **sections}))
