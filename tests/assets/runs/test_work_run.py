"""What a run is to do, and how people are told why."""

from gateau_dagster.assets.runs.launching import work_run
from gateau_dagster.pipeline.plan import Plan, Work
from tests.assets.harness import Pipeline


def test_reasons_are_named_once_with_their_shards(small: Pipeline) -> None:
    shards: dict[str | None, str] = {"1": "changed: input", "2": "missing", "3": "changed: input"}
    work = [Work(asset="cam", reasons=shards), Work(asset="report", reasons={None: "waits for cam"})]
    run = work_run(small.state(), Plan(work=work))
    assert run.why.splitlines() == ["cam: shards 1, 3 changed: input; shard 2 missing", "report: waits for cam"]
    assert (run.job, [key.to_user_string() for key in run.assets]) == ("everything", ["cam", "report"])
    assert [run.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end")] == ["1", "3"]


def test_a_long_plan_is_cut_short(small: Pipeline) -> None:
    many = [Work(asset="report", reasons={None: "missing"})] * 100
    assert len(work_run(small.state(), Plan(work=many)).why.splitlines()) < 60
