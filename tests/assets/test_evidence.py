"""Run the pipeline to the table `evidence`; check the selection's columns and dropped dependencies."""

from dataclasses import replace

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.assets.runs.checks import checked
from gateau_dagster.assets.selection import unfilled
from gateau_dagster.assets.trained_model import provenance
from gateau_dagster.cli.show import print_sample
from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.features.report import build
from gateau_dagster.pipeline import choice
from gateau_dagster.pipeline.asset import FAR_SHARE, RESPONSE_SHARE
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.choice import dependence
from gateau_dagster.pipeline.recipes import CHECKPOINT_FOLDER, MIX
from gateau_dagster.selection import evidence
from gateau_dagster.selection.evidence import DEPENDENT
from gateau_dagster.selection.forecast import VERDICTS
from gateau_dagster.selection.rules import chosen_ids, left_out
from tests.assets.harness import Pipeline, value_of
from tests.features.report.viewer.builders import content_of, index_of
from tests.kit.project import change_config


def test_evidence_is_a_table_and_columns_of_the_selection_and_trains_nothing(
    small: Pipeline, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    store = small.state().store
    long = store.read_all("perplexity/long", small.state().shards)
    middle = float(long["mean_probability"].median() or 0)  # pyright: ignore[reportArgumentType]
    # The pair is untrained, so the better half of its predictions counts as predicted, and any gain as evidence.
    monkeypatch.setattr(evidence, "_PREDICTED", middle)
    monkeypatch.setattr(evidence, "NAMED_GAIN", 1e-3)
    # The spans must follow their samples in whatever order these are found.
    monkeypatch.setattr(choice, "dependencies", lambda cam, long: evidence.dependencies(cam, long).reverse())
    raw = store.read_all("raw_long_sft", small.state().shards)
    before = {asset: store.read(asset, None) for asset in ("selected_subset", "combined_scores")}
    events = small.made(selection={"evidence": True})
    assert {asset for asset, _ in events} == {"evidence", *before, "report"}
    found = store.read_all("evidence", small.state().shards)
    assert found.schema == tables.schema(tables.EVIDENCE) and {*found["sample_id"]} == {*raw["sample_id"]}
    spans = found.join(raw, on="sample_id").explode("evidence").drop_nulls("evidence").unnest("evidence")
    assert (
        spans.height
        and spans.filter(
            pl.col("end") > pl.col("context").str.len_chars(), pl.col("end") <= pl.col("start"), pl.col("gain") <= 0
        ).is_empty()
    )
    assert spans["tokens"].is_between(1, small.config.scoring.segment_length).all()
    of_sample = store.read_all("cam", small.state().shards).select("sample_id", "segment_gain")
    gains = found.join(of_sample, on="sample_id").select(
        "segment_gain", pl.col("evidence").list.eval(pl.element().struct["gain"])
    )
    assert gains.select(pl.col("evidence").list.set_difference("segment_gain").list.len().sum()).item() == 0
    check_sums(small)
    for asset, earlier in before.items():
        given = store.read(asset, None)
        columns = tables.schema(tables.DEPENDS).names()
        assert given.drop(columns).equals(earlier)
        assert given.select("sample_id", *columns).equals(
            given.select("sample_id").join(found.select("sample_id", *columns), on="sample_id", maintain_order="left")
        )
    chosen = store.read("selected_subset", None)
    counts = dict(chosen["dependency"].value_counts().iter_rows())
    assert value_of(events["selected_subset", None], "by_dependency") == counts
    verdict = value_of(events["selected_subset", None], "verdict")
    assert verdict in VERDICTS and value_of(events["selected_subset", None], "forecast_figures")["verdict"] == verdict
    page = store.files.read("report.html").decode()
    assert "What the responses depend on" in page and all(f'<th scope="row">{name}</th>' in page for name in counts)
    assert f"Forecast, before any training: {VERDICTS[verdict]}" in page
    check_shown(small, found, raw, capfd)


def check_sums(small: Pipeline) -> None:
    """The forecast reads the rows that it computes where a shard of `evidence` is missing or out of date."""
    state, store = small.state(), small.state().store
    read, shard = dependence(state).sort("sample_id"), state.shards[0]
    assert read.equals(store.read_all("evidence", state.shards, read.columns).sort("sample_id"))
    made, stamp = store.read("evidence", shard), small.stamp("evidence", shard)
    store.write(
        made.with_columns(far_sum=pl.lit(9.0)), "evidence", shard, replace(stamp, fingerprint="of other tables")
    )
    assert dependence(small.state()).sort("sample_id").equals(read)
    store.files.remove(store.table_name("evidence", shard))
    assert dependence(small.state()).sort("sample_id").equals(read)
    store.write(made, "evidence", shard, stamp)
    tokens = {row["sample_id"]: row for row in store.read_all("perplexity/long", state.shards).iter_rows(named=True)}
    rows = {row["sample_id"]: row for row in read.iter_rows(named=True)}
    for row in store.read_all("cam", state.shards).iter_rows(named=True):
        whole, near = tokens[row["sample_id"]]["token_probability"], row["near_probability"]
        gaps = [f - p for f, n, p in zip(row["far_probability"], near, whole, strict=True) if f - n >= DEPENDENT]
        found = rows[row["sample_id"]]
        assert found["far_tokens"] == len(gaps) and found["far_sum"] == pytest.approx(sum(gaps))
        assert found["response_tokens"] == len(whole)


def check_shown(small: Pipeline, found: pl.DataFrame, raw: pl.DataFrame, capfd: pytest.CaptureFixture[str]) -> None:
    """Check what the viewer and `gateau show` say of samples with and without evidence."""
    folder = small.file.parent / "store"
    index = index_of(folder / "explore.html")
    by_name = {name: {index["ids"][row] for row in rows} for name, rows in index["depends"].items()}
    kinds = dict(found.select("sample_id", "dependency").iter_rows())
    assert by_name == {name: {each for each in kinds if kinds[each] == name} for name in {*kinds.values()}}
    pages = [content_of(folder / "explore" / name) for shard in index["shards"] for name in shard["pages"]]
    samples = dict(zip(index["ids"], (sample for page in pages for sample in page), strict=True))
    contexts = dict(raw.select("sample_id", "context").iter_rows())
    for name, spans in found.select("sample_id", "evidence").iter_rows():
        assert samples[name]["depends"].startswith(f"{kinds[name]}: ")
        wanted = [(span["start"] + 1, span["end"], round(span["gain"], 4), span["tokens"]) for span in spans]
        assert [tuple(span[:4]) for span in samples[name]["spans"]] == wanted
        assert all(
            contexts[name][first - 1 : last].startswith(text) for first, last, _, _, text in samples[name]["spans"]
        )
    for name in (found.filter(pl.col("evidence").list.len() == length)["sample_id"][0] for length in (0, 1)):
        print_sample(small.config, name, None)
        said = " ".join(capfd.readouterr().out.split())
        assert f"The response depends on {samples[name]['depends']}" in said
        for first, last, gain, _, text in samples[name]["spans"]:
            assert f"characters {first:,} to {last:,}, gain {gain:.3f}: {text[:10]}" in said


def test_dropped_samples_are_not_chosen_but_counted(small: Pipeline) -> None:
    state = small.state()
    kinds = state.read("evidence", ["sample_id", "dependency"])
    chosen = state.read("selected_subset", ["sample_id", "dependency"])
    drop = chosen["dependency"][0]
    events = small.made(until="selected_subset", selection={"evidence": True, "drop": [drop]})
    assert {asset for asset, _ in events} == {"selected_subset"}
    state = small.state()
    assert drop not in state.read("selected_subset")["dependency"]
    count = kinds.filter(dependency=drop).height
    assert value_of(events["selected_subset", None], "left_out_by_dependency") == count > 0
    result = checked(state, state.asset("selected_subset"), FAR_SHARE)
    far = state.read("selected_subset")["dependency"].is_in(evidence.FAR).mean()
    assert result.passed == (far >= evidence.LEAST_FAR)  # pyright: ignore[reportOperatorIssue]
    assert result.metadata["left_out_by_selection_drop"].value == count
    assert result.metadata[drop].value == 0


def test_a_budget_of_response_tokens_is_spent_by_rank_and_few_of_them_are_warned_of(small: Pipeline) -> None:
    scores = small.state().read("combined_scores").sort("rank")
    tokens, before = scores["response_tokens"], small.file.read_text()
    budget = int(tokens.head(4).sum()) + 1
    wanted = scores["sample_id"].to_list()[: sum(sum(tokens[: n + 1]) <= budget for n in range(tokens.len()))]
    rule = {"rule": "token_budget", "budget": {"response_tokens": budget}, "fraction": None, "drop": []}
    events = small.made(until="selected_subset", selection=rule)
    state = small.state()
    assert state.read("selected_subset")["sample_id"].to_list() == wanted
    spent = sum(tokens[: len(wanted)])
    assert value_of(events["selected_subset", None], "response_tokens") == spent <= budget
    found = choice.response_share(state)
    assert found is not None
    assert (found.chosen, found.samples, found.chosen_tokens) == (len(wanted), scores.height, spent)
    assert checked(state, state.asset("selected_subset"), RESPONSE_SHARE).passed
    # The rarest tokens of a chosen sample: a share of tokens below half of the share of samples fails.
    shares = [choice.ResponseShare(chosen=1, samples=10, chosen_tokens=few, tokens=100) for few in (4, 5)]
    assert [each.is_small for each in shares] == [True, False]
    small.file.write_text(before)


def test_rules_by_class_make_the_choice_alone_and_say_what_auto_took(small: Pipeline) -> None:
    state = small.state()
    kinds = state.read("evidence", ["sample_id", "dependency"])
    far = kinds.filter(pl.col("dependency").is_in(evidence.FAR))["sample_id"]
    count, before = 4, small.file.read_text()
    rules: dict[str, dict[str, object]] = {
        "mix": {"rule": "mix", "count": count, "use": {"far": 0.5}},
        "lot": {"rule": "mix", "count": count, "use": {"far": 0.3}, "tau": 5.0, "seed": 3},
        "clean": {"rule": "clean", "count": count},
        "auto": {"rule": "auto", "count": count},
    }
    chosen: dict[str, list[str]] = {}
    for name, rule in rules.items():
        base = {"fraction": None, "evidence": True, "drop": [], "tau": 0, "seed": 0, "use": None}
        events = small.made(until="selected_subset", selection=base | rule)
        assert {asset for asset, _ in events} == {"selected_subset"}, name
        found = small.state().read("selected_subset", ["sample_id", "dependency"])
        chosen[name] = found["sample_id"].to_list()
        assert "unpredictable" not in found["dependency"] and found.height == count
        taken = small.stamp("selected_subset").rule
        assert value_of(events["selected_subset", None], "rule") == taken
        assert taken == ("clean" if name == "auto" else rule["rule"])
        assert value_of(events["selected_subset", None], "far_share") == found["dependency"].is_in(evidence.FAR).mean()
    assert small.made(until="selected_subset") == {}
    assert sum(one in far for one in chosen["mix"]) == min(count // 2, far.len())
    assert chosen["auto"] == chosen["clean"]
    reason = value_of(events["selected_subset", None], "rule_reason")
    assert "level" in str(reason) or "do not select" in str(reason)
    check_auto_that_pays(small)
    small.file.write_text(before)


def check_auto_that_pays(small: Pipeline) -> None:
    """Two samples of 24 are far, and the model answers them better from the far segment than from the whole text."""
    state, store = small.state(), small.state().store
    ids, is_far = state.read("evidence", ["sample_id"]), pl.col("sample_id").is_in(["s00003", "s00010"])
    originals = {shard: (store.read("evidence", shard), small.stamp("evidence", shard)) for shard in state.shards}
    assert ids.filter(is_far).height == 2 < ids.height == 24
    for shard, (table, stamp) in originals.items():
        far = table.with_columns(
            dependency=pl.when(is_far).then(pl.lit("one_far")).otherwise(pl.lit("near")),
            far_tokens=3 * is_far.cast(pl.UInt32),
            far_sum=1.2 * is_far.cast(pl.Float64),
            near_tokens=3 * (~is_far).cast(pl.UInt32),
            near_sum=pl.lit(0.0),
        )
        store.write(far.select(table.columns), "evidence", shard, stamp)
    events = small.made(until="selected_subset", selection={"rule": "auto", "count": 4, "use": {"far": 0.5}})
    values = {name: value_of(events["selected_subset", None], name) for name in ("rule", "rule_reason", "verdict")}
    assert small.stamp("selected_subset").rule == values["rule"] == "mix"
    assert values["verdict"] == "pays" and VERDICTS["pays"] in str(values["rule_reason"])
    taken = small.state().read("selected_subset", ["sample_id", "dependency"])
    assert taken.height == 4 and taken.filter(is_far).height == 2
    card = provenance(small.state(), CHECKPOINT_FOLDER, MIX)["Selection"]
    assert "(rule mix, which auto took); 50 % of the chosen samples depend on far text" in card
    changes = ({"tau": 1.0}, {"use": {"far": 0.3}}, {"rule": "mix"}, {"rule": "clean", "use": None})
    now = small.file.read_text()
    for change in changes:
        change_config(small.file, selection=change)
        assert {work.asset for work in small.state().plan().work} == {"selected_subset", "report"}, change
        small.file.write_text(now)
    for shard, (table, stamp) in originals.items():
        store.write(table, "evidence", shard, stamp)


@pytest.mark.parametrize(
    ("drop", "limit", "said"),
    [
        (["near"], 1, "selection.drop and selection.per_document leave too few samples: 3"),
        ([], 1, "selection.per_document leaves too few samples: 3"),
        (["near"], None, "selection.drop leaves too few samples: 1"),
    ],
)
def test_all_settings_that_leave_too_few_samples_are_named(drop: list[str], limit: int | None, said: str) -> None:
    samples = pl.DataFrame(
        {
            "sample_id": [*"abcde"],
            "digest": [*"abcde"],
            "score": [5.0, 4.0, 3.0, 2.0, 1.0],
            "rank": [1, 2, 3, 4, 5],
            "document": [*"xxxyy"],
            "dependency": ["one_far", "one_far", "one_far", "near", "one_far"],
        }
    )
    rule = RuleConfig.model_validate({"fraction": 1, "drop": drop, "per_document": limit})
    assert unfilled(left_out(samples, rule, chosen_ids(samples, rule))).startswith(said)


def test_without_segments_there_is_no_evidence_and_the_reason_is_told(small: Pipeline) -> None:
    assert small.state().pipeline.by_key.keys() >= {"evidence"}
    small.made(until="raw_long_sft", selection={"drop": [], "method": "length", "compare": []})
    state = small.state()
    assert "evidence" not in state.pipeline.by_key
    (reason,) = build.without_evidence(state.config)
    assert reason in checks_of(state).warnings and "gateau" in reason
    assert {"evidence", "dependency"}.isdisjoint(tables.schema(state.asset("selected_subset").columns).names())
