"""What was rejected or cut off is said: by the checks, by `gateau run` in the end, and before a ranking of nothing."""

import io
from pathlib import Path

import dagster as dg
from rich.console import Console

from gateau_dagster.assets.runs.checks import checked
from gateau_dagster.assets.runs.launching import failure_of
from gateau_dagster.assets.runs.refresh import Refreshed
from gateau_dagster.assets.selection import scored
from gateau_dagster.cli.run import _conclude
from gateau_dagster.pipeline.losses import unseen_shares
from gateau_dagster.progress import silent
from tests.assets.harness import Pipeline, value_of
from tests.assets.runs.tampering import cut_to, reject_first, tamper
from tests.kit.error_codes import refused
from tests.kit.project import change_config, sample, write_samples


def one_check(pipeline: Pipeline, asset: str, name: str) -> dg.AssetCheckResult:
    """One check without a run around it."""
    state = pipeline.state()
    return checked(state, state.asset(asset), name)


def concluded(pipeline: Pipeline, result: Refreshed, until: str | None = None) -> list[str]:
    """What `gateau run` says in the end."""
    text = io.StringIO()
    _conclude(Console(file=text, width=1000), pipeline.state(), until, True, result)
    return text.getvalue().splitlines()


def test_a_run_announces_what_it_was_asked_for(current: Pipeline) -> None:
    """A report that lies there from before is none of it; in the UI's log stand the same notes."""
    result = Refreshed(run_ids=["r"], recorded=2, ended_runs=1, failed_checks=["cam: check finite_values failed"])
    lines = concluded(current, result)
    assert lines[:2] == [
        "Ended 1 earlier run whose process had died.",
        "Updated Dagster's records of 2 unchanged outputs.",
    ]
    assert "! cam: check finite_values failed" in lines and any(line.startswith("Report: ") for line in lines)
    assert not any(line.startswith("Report: ") for line in concluded(current, result, "perplexity/short"))
    assert result.summary == f"Done by run r. {' '.join(lines[:2])} ! cam: check finite_values failed."


def test_mass_rejection_of_the_input_warns_and_is_said_once(current: Pipeline, store: Path) -> None:
    bad = [sample(number) | {"response": ""} for number in range(100, 130)]
    write_samples(current.file.parent / "long.jsonl", [*(sample(number) for number in range(24)), *bad])
    result = current.refresh(until="raw_long_sft")
    sentence = "30 of 54 records rejected (55.6 %): 30 x empty response"
    assert [line for line in result.failed_checks if line.startswith("raw_long_sft: check rejected_share failed")]
    assert [line for line in concluded(current, result) if sentence in line] == [f"! raw_long_sft: {sentence}"]
    found = one_check(current, "raw_long_sft", "rejected_share")
    assert not found.passed and found.severity is dg.AssetCheckSeverity.WARN
    assert (value_of(found, "summary"), value_of(found, "rejected")) == (sentence, 30)  # type: ignore[arg-type]
    change_config(current.file, long_sft={"max_rejected": 0.5})
    assert one_check(current, "raw_long_sft", "rejected_share").severity is dg.AssetCheckSeverity.ERROR
    done = current.execute(["raw_long_sft"], fails=True, partition_key="0")
    assert not done.success and "long_sft.max_rejected: 30 of 54" in str(failure_of(done.all_events))
    change_config(current.file, long_sft={"max_rejected": 0.6})
    assert one_check(current, "raw_long_sft", "rejected_share").passed


def test_what_models_could_not_score_warns_with_the_reasons(current: Pipeline, store: Path) -> None:
    state = current.state()
    for shard in state.shards:
        reject_first(state, "cam", shard, 2)
    found = one_check(current, "cam", "rejected_share")
    assert not found.passed and one_check(current, "cam", "full_coverage").passed
    count = 2 * len(state.shards)
    assert value_of(found, "rejected") == count  # type: ignore[arg-type]
    assert value_of(found, "share") == 0.333  # type: ignore[arg-type]
    lines = concluded(current, Refreshed(run_ids=[], recorded=0, ended_runs=0, failed_checks=[]))
    assert any(line.startswith(f"! cam: {count} of 24 samples rejected") for line in lines)
    assert any(line.endswith(f"{count} x out of memory on a prompt of 600 to 601 tokens") for line in lines)


def test_where_nothing_could_be_scored_the_ranking_ends_with_the_reasons(current: Pipeline, store: Path) -> None:
    state = current.state()
    for shard in state.shards:
        reject_first(state, "cam", shard, 24)
    with refused("data.empty_table", match=r"cam has no row: 24 of 24 samples rejected \(100 %\): 24 x out of memory"):
        scored(state, silent)


def test_what_is_cut_off_is_counted_by_table(current: Pipeline, store: Path) -> None:
    state = current.state()
    before = state.read("perplexity/short", ["context_tokens", "truncated_tokens"]).sum().row(0)
    for shard in state.shards:
        tamper(state, "perplexity/long", shard, cut_to(25, 75))
    found, passing = (one_check(current, f"perplexity/{model}", "truncated_share") for model in ("long", "short"))
    assert not found.passed and found.severity is dg.AssetCheckSeverity.WARN
    assert passing.passed, "it is to see its window of 64 tokens only"
    assert value_of(passing, "truncated_tokens") == before[1]  # type: ignore[arg-type]
    lines = concluded(current, Refreshed(run_ids=[], recorded=0, ended_runs=0, failed_checks=[]))
    cut = "24 of 24 samples cut, 1,800 of 2,400 context tokens (75 %) lost: scoring.max_length is 512"
    assert f"! perplexity/long: {cut}" in lines
    assert any(line.startswith("perplexity/short: ") for line in lines) == (before[1] > 0)


def test_no_model_saw_what_all_of_them_saw_cut(current: Pipeline, store: Path) -> None:
    state = current.state()
    assets = [state.asset(key) for key in ("perplexity/short", "cam", "perplexity/long")]
    assert unseen_shares(state, assets).is_empty(), "theta_B saw everything"
    tamper(state, "perplexity/long", "0", cut_to(25, 75))
    tamper(state, "perplexity/short", "0", cut_to(0, 100))
    found = unseen_shares(state, assets)
    assert {*found["sample_id"]} == {*state.store.read("perplexity/long", "0")["sample_id"]}
    assert {*found["unseen"]} == {0.75}
    assert unseen_shares(state, assets[:2]).is_empty(), "cam's model saw it too, and this does not say how much of it"
    tamper(state, "perplexity/long", "0", cut_to(0, 0))
    assert unseen_shares(state, assets).is_empty(), "a sample without context loses nothing"
