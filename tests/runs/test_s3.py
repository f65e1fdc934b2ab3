"""The store on S3: the same tables as on a disk, and a server that is lost for a while or for good."""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem
from transformers import AutoModelForCausalLM

from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.storage.files import local_copy
from gateau_dagster.storage.store import Store
from tests.assets.harness import Pipeline, key_of, pipeline_on
from tests.kit.project import change_config, copied, sample, write_samples
from tests.runs.conftest import Connection
from tests.runs.stores import assert_same_scores, assert_same_stamps, assert_same_tables, assert_same_weights
from tests.storage.test_faults import Fault, faulty

pytestmark = pytest.mark.slow
ROOT = "s3://store-bucket/team/gateau"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory, s3: Connection, whole_run: Path) -> Iterator[Pipeline]:
    """A project that has run on a disk, on S3 up to its scores: in another folder with another Dagster home."""
    file = copied(whole_run, tmp_path_factory.mktemp("remote") / "project")
    change_config(file, storage={"root": ROOT})
    with pipeline_on(file) as pipeline:
        pipeline.refresh("combined_scores")
        yield pipeline


@pytest.fixture
def whole(remote: Pipeline) -> Pipeline:
    """The same, with everything after the scores."""
    remote.refresh()
    return remote


def test_the_same_scores_and_a_second_run_does_nothing(remote: Pipeline, whole_run: Path) -> None:
    assert_same_scores(remote.state(), state_of(config=load_project(whole_run)))
    result = remote.refresh("combined_scores")
    assert (result.run_ids, result.recorded) == ([], 0)
    assert not remote.state().store.files.exists("_partial")


@pytest.mark.long
def test_the_same_tables_and_the_same_model(whole: Pipeline, whole_run: Path, tmp_path: Path) -> None:
    one, other = whole.state(), state_of(config=load_project(whole_run))
    assert_same_tables(one.store, other.store)
    found, wanted = one.recorded(), other.recorded()
    assert_same_stamps(found, wanted)
    folder = local_copy(one.store.files, "checkpoint", tmp_path)
    assert_same_weights(folder, whole_run.parent / "store" / "checkpoint")
    assert AutoModelForCausalLM.from_pretrained(folder).config.model_type == "llama"


@pytest.mark.long
def test_the_report_is_there(whole: Pipeline) -> None:
    page = whole.state().store.files.read("report.html").decode()
    assert "<html" in page
    assert "combined_scores" in page


@pytest.mark.long
def test_a_second_run_does_nothing_and_nothing_of_the_work_is_left(whole: Pipeline) -> None:
    result = whole.refresh()
    assert (result.run_ids, result.recorded) == ([], 0)
    assert not whole.state().store.files.exists("_partial")


def lose_the_server(monkeypatch: pytest.MonkeyPatch, s3: Connection, *, seconds: float | None) -> None:
    """The connection is cut when the first table of `cam` is about to be written; None: for good."""
    original = Store.write
    lost: list[bool] = []

    def write(self: Store, frame: object, asset: str, *arguments: object, **options: object) -> object:
        if asset == "cam" and not lost:
            lost.append(True)
            s3.cut()
            if seconds is not None:
                threading.Timer(seconds, s3.restore).start()
        return original(self, frame, asset, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "write", write)


def changed(pipeline: Pipeline, number: int) -> None:
    records = [sample(n) for n in range(36)]
    records[number]["response"] = f"changed {number} ."
    write_samples(pipeline.file.parent / "long.jsonl", records)


@pytest.mark.long
def test_a_server_that_is_back_in_time_costs_a_retry(
    whole: Pipeline, s3: Connection, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_config(whole.file, execution={"retries": 4})
    changed(whole, 3)
    lose_the_server(monkeypatch, s3, seconds=3.0)
    result = whole.refresh()
    run = whole.instance.all_logs(result.run_ids[0])
    retries = [entry for entry in run if entry.is_dagster_event and entry.get_dagster_event().is_step_restarted]
    assert "perplexity__long_and_cam" in {entry.step_key for entry in retries}
    warnings = [entry.user_message for entry in run if "Trying again in" in (entry.user_message or "")]
    assert "Trying again in 2 s." in warnings[0]
    assert not whole.state().plan()


@pytest.mark.long
def test_a_server_that_is_gone_is_one_message_and_costs_nothing_done(
    whole: Pipeline, s3: Connection, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_config(whole.file, execution={"retries": 0})
    changed(whole, 4)
    with monkeypatch.context() as patch:
        lose_the_server(patch, s3, seconds=None)
        with pytest.raises(GateauError) as caught:
            whole.refresh()
    message = str(caught.value)
    # While `cam` waits for its next attempt, checks that can run do, and fail likewise.
    assert re.match(r"(perplexity/\w+( \+ cam)?|check_\w+): Cannot ", message)
    assert "the storage server does not answer" in message
    assert "AWS_ENDPOINT_URL" in message
    with pytest.raises(GateauError, match="the storage server does not answer"):
        whole.refresh()
    s3.restore()
    assert not whole.state().plan().of("raw_long_sft"), "what was written before stands"
    result = whole.refresh()
    made = {asset for asset, _ in map(key_of, whole.materialised(result.run_ids[0]))}
    assert "raw_long_sft" not in made
    assert not whole.state().plan()


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "words"), [("page", "answers with a web page"), ("gateway", "is overloaded or fails")]
)
def test_a_gateway_that_answers_with_html_is_one_message_and_costs_nothing_done(
    fault: Fault, words: str, whole: Pipeline, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login page or a page about an error takes the server's place when the first table of `cam` is to be written."""
    change_config(whole.file, execution={"retries": 0})
    changed(whole, 5 if fault == "page" else 6)
    original = Store.write
    with faulty(os.environ["AWS_ENDPOINT_URL"], [fault], share=0.0) as gateway:
        monkeypatch.setenv("AWS_ENDPOINT_URL", gateway.address)
        S3FileSystem.clear_instance_cache()

        def write(self: Store, frame: object, asset: str, *arguments: object, **options: object) -> object:
            if asset == "cam":
                gateway.share = 1.0
            return original(self, frame, asset, *arguments, **options)  # type: ignore[arg-type]

        with monkeypatch.context() as patch, pytest.raises(GateauError, match=words) as caught:
            patch.setattr(Store, "write", write)
            whole.refresh()
        assert gateway.done[fault] and "\n" not in str(caught.value) and "Traceback" not in str(caught.value)
        with pytest.raises(GateauError, match=words):
            whole.refresh()
        gateway.share = 0.0
        assert not whole.state().plan().of("raw_long_sft"), "what was written before stands"
        whole.refresh()
        assert not whole.state().plan()
    S3FileSystem.clear_instance_cache()
