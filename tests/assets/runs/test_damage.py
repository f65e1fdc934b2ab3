"""A flipped bit anywhere in the store ends a run with the file's name; the next run computes that file again."""

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.resources.history import History, asset_statuses
from gateau_dagster.storage import Store, documents, store
from gateau_dagster.storage.documents import fetched_folder
from gateau_dagster.storage.store import DamagedTableError
from tests.assets.harness import Pipeline, pipeline_on, value_of
from tests.kit.project import change_config, gateau
from tests.runs.stores import assert_same_rows, assert_same_tables, assert_same_weights
from tests.storage.builders import flipped


def flip(file: Path, byte: int) -> None:
    file.write_bytes(flipped(file.read_bytes(), 8 * byte + 2))


def looks(state: State, scratch: Path) -> Iterator[Callable[[], object]]:
    """Yield every reader of a store: the status, and those of each table, its rejects and each model."""
    yield lambda: asset_statuses(state, History())
    for asset in state.pipeline.assets:
        for part in state.pipeline.partitions(asset.key):
            if Path(state.store.address(asset.key, part)).exists():
                yield partial(state.store.verify, asset.key, part)
                yield partial(state.store.read_rejected, asset.key, [part])
        if asset.folder and (Path(state.store.root) / asset.key).exists():
            yield partial(fetched_folder, state.store, asset.key, scratch)


def noticed(state: State) -> list[str]:
    """Return the faults that these readers and the plan find, which also sets damaged tables aside."""
    store._known.clear()
    documents._as_written.clear()
    found = [f"plan: {work.asset}" for work in state.plan().work]
    for look in looks(state, state.config.work_folder / "scratch"):
        try:
            look()
        except DamagedTableError as error:
            found.append(str(error))
    return [*found, *(warning for warning in checks_of(state).warnings if "is not what the training wrote" in warning)]


def contents(root: Path) -> dict[Path, bytes]:
    """Every file of a store but the leases, which are of runs that have ended."""
    files = [file for file in sorted(root.rglob("*")) if file.is_file() and file.parent.name != "_lease"]
    return {file: file.read_bytes() for file in files}


def flipped_somewhere(file: Path, data: bytes, rng: random.Random) -> bytes:
    """With another bit, but for the first four bytes of a table, which hold nothing."""
    return flipped(data, rng.randrange(32 if file.suffix == ".parquet" else 0, 8 * len(data)))


def test_a_bit_in_every_file_and_one_run_repairs_all(small: Pipeline) -> None:
    root, rng = Path(small.state().store.root), random.Random(1)
    shutil.copytree(root, undisturbed := small.file.parent / "undisturbed")
    whole = contents(root)
    for file, data in whole.items():
        file.write_bytes(flipped_somewhere(file, data, rng))
    assert noticed(small.state())
    small.refresh()
    assert noticed(small.state()) == []
    for file in root.rglob("*.damaged"):
        file.unlink()
    assert len(contents(root)) == len(whole), "some of the viewer's are named by scores, which rounding changes"
    assert_same_tables(Store(str(root)), Store(str(undisturbed)))


@pytest.mark.long
def test_a_flipped_bit_in_a_table_is_named_and_the_table_made_again(small: Pipeline) -> None:
    """The footer is whole, so that the plan takes the table for current until it is read."""
    store = small.state().store
    before = store.read("perplexity/long", "1")
    file = small.file.parent / "store" / "perplexity" / "long" / "1.parquet"
    flip(file, 300)
    change_config(small.file, selection={"alpha": 0.4})
    with pytest.raises(GateauError) as caught:
        small.refresh()
    assert str(caught.value).startswith("combined_scores: ")
    assert f"{file} is damaged" in str(caught.value) and "only this table is recomputed" in str(caught.value)
    plan = {work.asset: work.partitions for work in small.state().plan().work}
    assert plan["perplexity/long"] == ["1"] and "cam" not in plan
    made = small.made()
    assert ("perplexity/long", "1") in made and ("perplexity/long", "0") not in made
    assert_same_rows(store.read("perplexity/long", "1"), before)
    assert not small.state().plan()


@pytest.mark.long
def test_a_damaged_table_gives_no_rows_to_its_successor(small: Pipeline) -> None:
    """The rows of the old table are kept where they still hold, so it is read when it is replaced."""
    store, data = small.state().store, small.file.parent / "long.jsonl"
    data.write_text(data.read_text().replace('"recall ', '"recall the ', 1))
    [shard] = small.state().plan().of("raw_long_sft").partitions  # type: ignore[union-attr]
    flip(small.file.parent / "store" / "perplexity" / "short" / f"{shard}.parquet", 200)
    event = small.made("combined_scores")["perplexity/short", shard]
    samples = store.read("raw_long_sft", shard).height
    assert (value_of(event, "samples_computed"), value_of(event, "samples_kept")) == (samples, 0)


@pytest.mark.long
def test_every_flip_in_a_store_with_a_model_is_noticed(whole_run: Path, tmp_path: Path) -> None:
    """One at a time, at two places of each file; then one in every file at once, and a run repairs all."""
    shutil.copytree(whole_run.parent, folder := tmp_path / "project")
    with pipeline_on(folder / "gateau.yaml") as pipeline:
        root, rng = folder / "store", random.Random(0)
        whole = contents(root)
        for file, data in whole.items():
            for _ in range(2):
                file.write_bytes(flipped_somewhere(file, data, rng))
                assert noticed(pipeline.state()), file
                for left in contents(root).keys() - whole.keys():
                    left.unlink()
                for each, good in whole.items():
                    if not each.exists() or each == file:
                        each.write_bytes(good)
        assert noticed(pipeline.state()) == []
    for file, data in whole.items():
        file.write_bytes(flipped_somewhere(file, data, rng))
    for file in (root / "_lease").glob("*.json"):
        file.write_bytes(flipped(file.read_bytes(), 77))
    noticed(state_of(config=load_project(folder / "gateau.yaml")))
    gateau("run", folder=folder)
    assert noticed(state_of(config=load_project(folder / "gateau.yaml"))) == []
    for left in root.rglob("*.damaged"):
        left.unlink()
    one, other = Store(str(root)), Store(str(whole_run.parent / "store"))
    assert_same_tables(one, other)
    assert_same_weights(root / "checkpoint", whole_run.parent / "store/checkpoint")
