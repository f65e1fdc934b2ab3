"""Publish the selection: check the data set's content, when it gets a new revision, and what is not uploaded."""

import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import polars as pl
import pytest
import yaml
from secret_table import KINDS, SURROUNDINGS, row_with

from gateau_dagster import tables
from gateau_dagster.assets.runs import checks
from gateau_dagster.assets.runs.checks import check_result
from gateau_dagster.data import secret_scan
from gateau_dagster.features.evaluation.contamination import OVERLAPS
from gateau_dagster.features.publish.feature import ANYWAY, COLUMNS
from gateau_dagster.pipeline.asset import UNIQUE_IDS
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.storage import Stamp
from tests.assets.harness import Pipeline, failure_of, value_of, version_of, versions_on_record
from tests.features.evaluation.quiz import quiz
from tests.kit.hub_writing import TOKEN, Hub, hub
from tests.kit.project import change_config, command_environment, gateau, make_project, sample

__all__ = ["hub", "quiz"]
NAME, PUBLISHED = "team/selection", "published/main"
SECTION: dict[str, Any] = {"repository": NAME, "license": "cc-by-4.0"}


@pytest.fixture
def kept(small: Pipeline) -> Iterator[Pipeline]:
    """Yield a finished project that publishes; restore it afterwards."""
    before, table = small.file.read_text(), Path(small.state().store.address("selected_subset"))
    selected = table.read_bytes()
    change_config(small.file, publish=SECTION)
    yield small
    small.file.write_text(before)
    table.write_bytes(selected)
    for folder in ("published", "contamination", "evidence", "variant", "method_scores"):
        small.state().store.files.remove(folder)


def card_of(hub: Hub, name: str = NAME) -> tuple[dict[str, Any], str]:
    """Return the front matter and the text of the card."""
    _, header, text = hub.repositories[name].files["README.md"].decode().split("---\n", 2)
    return yaml.safe_load(header), text


def table_of(hub: Hub, config: str) -> pl.DataFrame:
    (path,) = (each["data_files"][0]["path"] for each in card_of(hub)[0]["configs"] if each["config_name"] == config)
    return pl.read_parquet(io.BytesIO(hub.repositories[NAME].files[path]))


def test_a_private_data_set_with_a_card_is_one_commit_whose_sha_is_the_version(kept: Pipeline, hub: Hub) -> None:
    assert [work.asset for work in kept.state().plan().work] == [PUBLISHED], "the report does not depend on it"
    left = kept.file.parent / ".gateau" / "publish" / "left.txt"  # by a killed upload
    left.parent.mkdir(parents=True)
    left.touch()
    ((key, event),) = kept.made(PUBLISHED).items()
    made, state = hub.repositories[NAME], kept.state()
    assert key == (PUBLISHED, None) and made.private and len(made.commits) == 2
    assert version_of(event) == made.sha == versions_on_record(kept.instance, state, PUBLISHED)[None]
    assert value_of(event, "data_set") == f"{hub.address}/datasets/{NAME}/tree/{made.sha}"
    chosen = state.read("selected_subset").sort("rank")
    selected = table_of(hub, "selected")
    assert selected["sample_id"].to_list() == chosen["sample_id"].to_list()
    assert selected["messages"][0][1] == {"role": "assistant", "content": chosen["response"][0]}
    assert table_of(hub, "scores").equals(state.read("combined_scores").drop("evidence", "dependency", strict=False))
    assert state.read(PUBLISHED)["rows"].to_list() == [chosen.height, 24]
    header, text = card_of(hub)
    assert header["license"] == "cc-by-4.0" and header["size_categories"] == ["n<1K"]
    assert [each.get("default") for each in header["configs"]] == [True, None]
    assert not left.parent.exists() and left.name not in made.files
    for fact in ("6 of 24 long", "preset robust", kept.stamp("selected_subset").fingerprint, "| far | 12 | ", "secret"):
        assert fact in text.lower() or fact in text
    assert made.files["charts/lengths.png"].startswith(b"\x89PNG")
    assert not kept.state().plan() and TOKEN not in str(made.files)

    sent = len(hub.puts)
    change_config(kept.file, publish={"license": "apache-2.0"})
    assert kept.make(PUBLISHED).success
    assert len(made.commits) == 3 and card_of(hub)[0]["license"] == "apache-2.0"
    assert len(hub.puts) == sent and kept.stamp(PUBLISHED).content == made.sha


def planned(kept: Pipeline) -> tuple[str, list[str]]:
    """Return why the data set on the hub is out of date, if it is, and what could not be compared."""
    state = state_of(config=kept.config, asks_hub=True)
    work = state.plan().of(PUBLISHED)
    return "" if work is None else work.reasons[None], state.on_hub[1]


def test_what_happens_to_a_data_set_on_the_hub_is_noticed(kept: Pipeline, hub: Hub) -> None:
    kept.made(PUBLISHED)
    files, sha = hub.repositories[NAME].files, hub.repositories[NAME].sha
    assert planned(kept) == ("", [])

    del hub.repositories[NAME]
    assert "no longer has" in planned(kept)[0] and not kept.state().plan(), "only who asks has to wait for the hub"
    assert {key for key, _ in kept.made(PUBLISHED)} == {PUBLISHED}
    assert hub.repositories[NAME].files == files and planned(kept) == ("", [])

    made = hub.repositories[NAME]
    made.commits.append({**made.files, "data/selected.parquet": b"theirs", "LICENSE": b"theirs"})
    assert made.sha in planned(kept)[0] and made.sha != sha
    assert kept.make(PUBLISHED).success
    assert made.files == {**files, "LICENSE": b"theirs"} and kept.stamp(PUBLISHED).content == made.sha
    made.commits.append({**made.files, "NOTICE": b"theirs"})
    commits = len(made.commits)
    assert planned(kept)[0] and kept.make(PUBLISHED).success
    assert planned(kept) == ("", []) and len(made.commits) == commits, "their own files are left alone"

    made.private = False
    assert "public" in planned(kept)[0] and "publish.private" in refusal(kept)
    made.private, hub.renamed = True, {NAME: "team/other"}
    hub.repositories["team/other"] = hub.repositories.pop(NAME)
    assert "team/other" in planned(kept)[0] and "is now team/other" in refusal(kept)
    assert len(made.commits) == commits and [*hub.repositories] == ["team/other"]


@pytest.mark.parametrize("fault", [502, (200, b"<!doctype html>Sign in"), 401, "offline", "no token"])
def test_a_hub_that_cannot_be_asked_stops_no_plan(
    fault: Any, kept: Pipeline, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = kept.state()
    stamp = state.wanted_stamp(PUBLISHED, None)
    row = {"config": "selected", "rows": 6, "bytes": 1, "repository": NAME, "revision": "1" * 40, "url": "u"}
    state.store.write(pl.DataFrame([row], tables.schema(COLUMNS)), PUBLISHED, None, stamp)
    if fault == "offline":
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    elif fault == "no token":
        monkeypatch.delenv("HF_TOKEN")
    else:
        hub.faults = {"GET /api/datasets": [fault]}
    reason, unknown = planned(kept)
    assert reason == "" and len(unknown) == 1 and unknown[0].startswith(f"{PUBLISHED}: not compared with the hub")
    assert "\n" not in unknown[0]


def refusal(kept: Pipeline) -> str:
    return failure_of(kept.make(PUBLISHED, fails=True)) or ""


def plant(kept: Pipeline, text: str) -> None:
    """Put a text into the first chosen sample, as the store holds it."""
    store, stamp = kept.state().store, kept.stamp("selected_subset")
    table = store.read("selected_subset").with_row_index("row")
    table = table.with_columns(context=pl.when(pl.col("row") == 0).then(pl.lit(text)).otherwise("context"))
    store.write(table.drop("row"), "selected_subset", None, stamp)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"export HF_TOKEN={TOKEN}", "key of a service"),
        ("see\n-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7bq", "private key"),
    ],
)
def test_a_text_with_a_secret_is_named_and_never_uploaded(text: str, kind: str, kept: Pipeline, hub: Hub) -> None:
    plant(kept, text)
    said = refusal(kept)
    assert "publish: secrets in s000" in said and f"(messages[0].content: {kind})" in said and text[-9:] not in said
    listed = (kept.file.parent / ".gateau" / "samples-with-secrets.csv").read_text()
    assert listed.startswith("sample_id,field,kind,hash\ns000") and kind in listed and text[-9:] not in listed
    assert hub.received == []
    hashes = pl.read_csv(io.StringIO(listed), schema_overrides={"hash": pl.String})["hash"].unique().to_list()
    change_config(kept.file, publish={"accepted_findings": ["0" * 16]})
    assert kind in refusal(kept)
    change_config(kept.file, publish={"accepted_findings": hashes})
    assert kept.make(PUBLISHED).success
    assert f"other than {len(hashes)} finding" in card_of(hub)[1]


def test_without_the_scanner_only_a_private_data_set_is_written(
    kept: Pipeline, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_scan, "SCANNER", "not-installed")
    change_config(kept.file, publish={"private": False})
    assert "pip install 'gateau-dagster[publish]'" in refusal(kept) and hub.received == []
    change_config(kept.file, publish={"private": True})
    assert kept.make(PUBLISHED).success
    assert "was not installed" in card_of(hub)[1]


def test_a_selection_that_a_benchmark_asks_about_is_not_published(kept: Pipeline, hub: Hub, quiz: str) -> None:
    change_config(kept.file, training={"enabled": True}, evaluation={"benchmarks": [quiz], quiz: {"texts": ["Who?"]}})
    first, *others = kept.state().read("selected_subset")["sample_id"]
    rows = [(first, "q0", 3, 0.5, 0.1), (others[0], "q0", 1, 0.01, 0.1), ("elsewhere", "q0", 9, 1.0, 1.0)]
    for shard in kept.state().shards:
        table = pl.DataFrame(rows if shard == "0" else [], tables.schema(OVERLAPS), orient="row")
        kept.state().store.write(table, f"contamination/{quiz}", shard, Stamp(fingerprint="f"))
    said = refusal(kept)
    assert "1 of 6 chosen samples contain a question of quiz" in said and first in said and others[0] not in said
    assert hub.received == []
    change_config(kept.file, publish={"max_contaminated": 0.2})
    assert kept.make(PUBLISHED).success
    assert "1 of 6 chosen samples contain a question of quiz" in card_of(hub)[1]


def test_nothing_is_uploaded_past_an_error_and_the_card_names_what_failed(
    kept: Pipeline, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(error: bool) -> None:
        found = check_result(UNIQUE_IDS, False, error=error, summary="s00001 is there twice")
        monkeypatch.setitem(checks._OF_PARTS, UNIQUE_IDS, lambda state, asset, parts: found)

    failing(error=True)
    said = str(failure_of(kept.make(PUBLISHED, fails=True)))
    assert "selected_subset: check unique_ids failed (s00001 is there twice)" in said and "--anyway" in said
    assert NAME not in hub.repositories
    monkeypatch.setenv(ANYWAY, "1")
    kept.made(PUBLISHED)
    text = card_of(hub)[1]
    assert "selected\\_subset: check unique\\_ids failed (s00001 is there twice)" in text
    assert "## Trust" in text and "| Sources | Chosen: " in text
    monkeypatch.delenv(ANYWAY)
    failing(error=False)
    kept.state().store.files.remove("published")
    kept.made(PUBLISHED)  # a warning stops nothing


def test_without_a_token_nothing_is_asked(kept: Pipeline, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert "HF_TOKEN" in refusal(kept) and hub.received == []
    assert not checks_of(kept.state()).findings() and "HF_TOKEN is not set" in "".join(checks_of(kept.state()).warnings)
    monkeypatch.setenv("HF_TOKEN", '"hf_abc"')
    assert [error.code for error in checks_of(kept.state()).findings()] == ["hub.token"]


def test_the_card_of_a_variant_gives_its_samples_again(kept: Pipeline, hub: Hub) -> None:
    name, own = "random-s7", "team/random"
    change_config(
        kept.file,
        training={"enabled": True},
        evaluation={"benchmarks": []},
        variants={"methods": ["gateau", "random"], "seeds": [7], "equal": "samples"},
        publish={"variants": {name: own}},
    )
    plan = kept.state().plan_until(f"published/{name}")
    assert "published/main" not in {work.asset for work in plan.work}
    events = kept.made(f"published/{name}")
    assert version_of(events[f"published/{name}", None]) == hub.repositories[own].sha and NAME not in hub.repositories
    state = kept.state()
    chosen = state.store.read("variant/selected_subset", name).sort("rank")
    files = hub.repositories[own].files
    assert pl.read_parquet(io.BytesIO(files["data/selected.parquet"]))["sample_id"].equals(chosen["sample_id"])
    assert "data/scores.parquet" not in files, "the method's table holds the draw of another seed"
    text = card_of(hub, own)[1]
    assert kept.stamp("variant/selected_subset", name).fingerprint in text and "same files give" not in text

    before = kept.file.read_text()
    change_config(kept.file, variants={"seeds": [7, 8]})
    assert kept.state().plan_until(f"published/{name}").of(f"published/{name}") is None, "it reads its variant alone"
    storage = yaml.safe_load(before)["storage"]
    kept.file.write_text(text.partition("```yaml\n")[2].partition("```")[0])
    change_config(kept.file, storage=storage)
    kept.refresh(until="selected_subset")
    assert kept.config.selection.count == chosen.height
    assert kept.state().read("selected_subset")["sample_id"].to_list() == chosen["sample_id"].to_list()


@pytest.mark.long
def test_a_killed_command_is_completed_and_other_libraries_read_the_data_set(
    kept: Pipeline, hub: Hub, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: make setup")
    folder = kept.file.parent
    change_config(kept.file, selection={"evidence": True})
    command = [sys.executable, "-m", "gateau_dagster.cli", "publish", "--config", str(kept.file)]
    environment = command_environment(HF_HUB_DISABLE_XET="1", HF_HUB_OFFLINE="0")
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True) as child:
        hub.faults = {f"POST /api/datasets/{NAME}/commit": [lambda: os.killpg(child.pid, signal.SIGKILL)]}
        assert child.wait(120) == -signal.SIGKILL
    assert kept.state().stamp(PUBLISHED, None) is None and len(hub.repositories[NAME].commits) == 2
    subprocess.run(command, cwd=folder, env=environment, check=True)
    made = hub.repositories[NAME]
    assert len(made.commits) == 2 and kept.stamp(PUBLISHED).content == made.sha
    for name, content in made.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for config, rows in (("selected", 6), ("scores", 24), ("evidence", 24)):
        kept_rows = datasets.load_dataset(str(tmp_path), config, split="train", cache_dir=str(tmp_path / "cache"))
        assert kept_rows.num_rows == rows
    assert (
        datasets.load_dataset(str(tmp_path), cache_dir=str(tmp_path / "cache"))["train"].column_names[0] == "messages"
    )


def test_a_secret_in_the_source_of_a_sample_that_is_not_chosen_is_found(kept: Pipeline, hub: Hub) -> None:
    state = kept.state()
    chosen = {*state.read("selected_subset")["sample_id"]}
    (secret,) = (make(random.Random(0)) for make in KINDS["xAI"])
    shard = next(shard for shard in state.shards if {*state.store.read("raw_long_sft", shard)["sample_id"]} - chosen)
    table, stamp = state.store.read("raw_long_sft", shard), state.store.stamp("raw_long_sft", shard)
    assert stamp is not None
    (sample, *_) = table.filter(~pl.col("sample_id").is_in([*chosen]))["sample_id"].sort()
    source = pl.when(pl.col("sample_id") == sample).then(pl.lit(f"logs/{secret}")).otherwise("source")
    state.store.write(table.with_columns(source=source), "raw_long_sft", shard, stamp)
    try:
        said = refusal(kept)
        assert f"secrets in {sample} (source: key of a service)." in said and secret[-9:] not in said
        assert hub.received == []
    finally:
        state.store.write(table, "raw_long_sft", shard, stamp)


# Of the input's own texts, and the names of samples: they are the user's data, and in every table.
_OF_INPUT = {"sample_id", "source", "context", "instruction", "response", "conversation"}
_SURROUNDINGS = (
    *("escaped newline", "escaped tab", "arguments of a call", "JSON in JSON in JSON", "tool definition", "CRLF"),
    *("after `_`", "after a letter", "`source`", "`sample_id`", "diff", "in quotes", "Read, `1→`", "plain sentence"),
    "quoted mail",
)


def parts_of(secret: str) -> list[str]:
    """Return a part of each line of a secret that nothing else holds."""
    return [line[-12:] for line in secret.strip('"').replace("@", "\n").split("\n") if ":5432" not in line]


def bytes_of(content: bytes, *, without: Collection[str] = ()) -> bytes:
    """Return the bytes of a file; of a table its values, without some columns."""
    if not content.startswith(b"PAR1"):
        return content
    return pl.read_parquet(io.BytesIO(content)).drop(without, strict=False).write_json().encode()


@pytest.mark.long
def test_no_byte_of_fifteen_secrets_leaves(hub: Hub, tmp_path: Path) -> None:
    secrets, records = [], []
    for number, (kind, surrounding) in enumerate(zip(KINDS, _SURROUNDINGS, strict=True)):
        secret = KINDS[kind][0](random.Random(number))
        row = {**row_with(secret, "plain sentence"), "context": "A document.", "sample_id": f"planted-{number}"}
        row |= SURROUNDINGS[surrounding](secret)
        sample_id, conversation = row.pop("sample_id"), row.pop("conversation", "")
        given = {"source": row["source"], **json.loads(conversation)} if conversation else row
        records.append({"id": sample_id, **given})
        secrets += [part for part in parts_of(secret) if len(part) == 12 and "PRIVATE" not in part]
    plain = [sample(number) for number in range(9)]
    make_project(tmp_path, selection={"fraction": 1.0}, publish=SECTION)
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*records, *plain]))

    done = gateau("publish", folder=tmp_path, check=False, HF_HUB_DISABLE_XET="1", HF_HUB_OFFLINE="0")
    assert done.returncode == 1 and "publish.secrets" in done.stdout + done.stderr, done.stdout + done.stderr
    listed = pl.read_csv(tmp_path / ".gateau" / "samples-with-secrets.csv")
    assert len({*listed["sample_id"]}) == 15, listed
    assert hub.repositories == {} and hub.objects == {}
    searched = {
        "terminal": (done.stdout + done.stderr).encode(),
        **{path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()},
    }
    del searched["long.jsonl"]
    for name, content in searched.items():
        text = bytes_of(content, without=_OF_INPUT)
        assert not [part for part in secrets if part.encode() in text], name

    (tmp_path / "long.jsonl").write_text("".join(json.dumps(record) + "\n" for record in plain))
    gateau("publish", folder=tmp_path, HF_HUB_DISABLE_XET="1", HF_HUB_OFFLINE="0")
    for name, content in {**hub.repositories[NAME].files, **hub.objects}.items():
        assert not [part for part in secrets if part.encode() in bytes_of(content)], name
