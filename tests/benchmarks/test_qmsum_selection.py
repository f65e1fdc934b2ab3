"""The benchmark on meetings: figures follow their definitions, and a stopped run resumes."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import common_selection
import figures
import numpy as np
import polars as pl
import pytest
import qmsum_selection
from common_selection import JoinedTables, Tables
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from qmsum import KINDS, make_samples, read_meetings
from qmsum_selection import MeetingCase, evidence_figures, mixed
from real_text_passages import Room
from response_length import CANDIDATES, Labelled, ResponseTokens

from tests.benchmarks.meetings import write_meetings
from tests.kit import tiny_models
from tests.kit.project import write_model

PARTS = 2


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("qmsum")
    write_model(folder / "tiny", seed=1, window=4096, tokenizer=tiny_models.tokenizer())
    where = ["--qmsum", str(write_meetings(folder / "meetings.jsonl")), "--models", str(folder / "tiny")]
    size = ["--tokens", "1600", "--window", "560", "--parts", str(PARTS), "--dtype", "float32"]
    return [*where, *size, "--fold", "choose", "--draws", "20", "--folder", str(folder / "kept")]


@pytest.fixture(scope="module")
def found(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("out") / "found.json"
    qmsum_selection.main([*arguments, "--out", str(out)])
    return json.loads(out.read_text())["results"]["tiny"]


def test_every_kind_is_measured(found: dict[str, Any]) -> None:
    assert found["samples"] == {kind: PARTS if kind in ("far", "near") else 1 for kind in KINDS}
    assert {"robust", "information", "gateau[robust]", "perplexity", "random"} <= set(found["auroc"])
    # The candidate is a twin of the method.
    assert found["auroc"]["robust"] == found["auroc"]["gateau[robust]"]
    for tasks in found["auroc"].values():
        assert set(tasks) == set(qmsum_selection.TASKS)
        assert all(0 <= each["low"] <= each["value"] <= each["high"] <= 1 for each in tasks.values())
    assert {kind: sum(counts.values()) for kind, counts in found["dependency"].items()} == found["samples"]
    marked = [row for row in found["rows"] if "by_chance" in row]
    assert [row["sample"].split("-")[0] for row in marked] == ["far", "near", "far_long", "far", "near", "far_and_near"]


def test_figures_of_evidence_are_means_of_the_rows(found: dict[str, Any]) -> None:
    rows = {kind: [row for row in found["rows"] if row["sample"].startswith(f"{kind}-")] for kind in KINDS}
    rows["far evidence"] = rows["far"] + rows["far_long"] + rows["far_and_near"]
    for group, figures_ in found["evidence"].items():
        assert figures_["samples"] == len(rows[group])
        for name in ("listed_1", "by_gain_3", "segments_auroc", "by_chance"):
            assert figures_[name]["value"] == pytest.approx(np.mean([row[name] for row in rows[group]]))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_the_first_segments_are_found_one_by_one(data: st.DataObject) -> None:
    gains = data.draw(st.lists(st.floats(0, 5), min_size=2, max_size=8))
    places = st.integers(0, len(gains) - 1)
    segments = sorted(data.draw(st.sets(places)))
    marked = frozenset(data.draw(st.sets(places)))
    figures_ = evidence_figures(segments, gains, marked)
    for name, order in (("listed", segments), ("by_gain", sorted(segments, key=lambda place: (-gains[place], place)))):
        for count in (1, 3, 5):
            hits = 0
            for number, place in enumerate(order):
                hits += number < count and place in marked
            assert figures_[f"{name}_{count}"] == (hits > 0)
    assert figures_["evidence"] == bool(segments)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_pairs_of_segments_are_those_of_one_side(data: st.DataObject) -> None:
    gains = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=2, max_size=8))
    near = data.draw(st.integers(0, len(gains)))
    places = st.integers(0, len(gains) - 1)
    marked = frozenset(data.draw(st.sets(places, min_size=1, max_size=len(gains) - 1)))
    one = replace(sample("a", "p", True, 0.5), marked=marked, gains=tuple(gains))
    wins = pairs = 0.0
    for first in marked:
        for second in set(range(len(gains))) - marked:
            if (first >= len(gains) - near) == (second >= len(gains) - near):
                pairs += 1
                wins += 1.0 if gains[first] > gains[second] else 0.5 if gains[first] == gains[second] else 0.0
    found = qmsum_selection._of_sample([], one, near)["same_side"]
    assert found == pytest.approx(wins / pairs) if pairs else np.isnan(found)


def test_parts_are_the_first_samples_of_each_kind_in_any_order(arguments: list[str], tmp_path: Path) -> None:
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    same: dict[str, Any] = {"folder": tmp_path, "model": options["--models"], "nq": options["--qmsum"], "seed": 0}
    same |= {"tokens": 1600, "window": 560, "fold": "choose"}
    parts = {part: MeetingCase(part=part, **same).labelled() for part in (3, 0, 40, 2, 1)}
    room = Room(tokenizer=tiny_models.tokenizer(), tokens=1600, window=560)
    whole = make_samples(read_meetings(Path(options["--qmsum"])), room, fold="choose", per_kind=50, seed=0)
    by_kind = {kind: [each for each in whole if each["source"] == kind] for kind in KINDS}
    assert min(map(len, by_kind.values())) >= 4 and max(map(len, by_kind.values())) < 50
    for part, records in parts.items():
        others = ("far_and_near", "whole") if part % 2 else ("far_long", "other")
        numbers = dict.fromkeys(("far", "near"), part) | dict.fromkeys(others, part // 2)
        expected = [by_kind[kind][number] for kind, number in numbers.items() if number < len(by_kind[kind])]
        assert records == expected


def test_joined_tables_are_those_of_one_data_set(arguments: list[str], found: dict[str, Any]) -> None:
    assert found["samples"]
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    same: dict[str, Any] = {"folder": Path(options["--folder"]), "model": options["--models"], "dtype": "float32"}
    same |= {"nq": options["--qmsum"], "tokens": 1600, "window": 560, "seed": 0, "fold": "choose"}
    parts = [Tables(MeetingCase(part=part, **same)) for part in range(PARTS)]
    joined = JoinedTables(parts)
    for asset in ("perplexity/long", "cam"):
        expected = pl.concat([part[asset] for part in parts])
        assert joined[asset].equals(expected.sort("sample_id"))
    assert joined["raw_long_sft"].height == joined["combined_scores"].height == len(joined.samples)
    # One pass over a sample gives both tables the rows that each has from a pass for itself, up to float32's rounding:
    # other prompts stand beside it in the row.
    same["folder"] = Path(options["--folder"]) / "alone"
    alone = Tables(MeetingCase(part=0, **same))
    for asset in ("perplexity/long", "cam"):
        table = alone._made[asset]
        (rows,) = alone._scored([table])
        found_rows = pl.DataFrame(rows, schema=parts[0][asset].schema).sort("sample_id")
        assert_frame_equal(found_rows, parts[0][asset], rel_tol=1e-5, abs_tol=1e-6)


def test_a_run_resumes_and_may_stop_early(
    arguments: list[str], found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(common_selection, "load_model", refuse)
    qmsum_selection.main([*arguments, "--out", str(tmp_path / "again.json")])
    assert json.loads((tmp_path / "again.json").read_text())["results"]["tiny"] == found
    qmsum_selection.main([*arguments, "--minutes", "0", "--out", str(tmp_path / "first.json")])
    first = json.loads((tmp_path / "first.json").read_text())["results"]["tiny"]
    assert first["parts"] == 1 and first["rows"] == found["rows"][:4]


def test_its_figures_fill_the_page(found: dict[str, Any], tmp_path: Path) -> None:
    nothing = {"value": 0.25, "low": 0.0, "high": 0.5}
    shares = dict.fromkeys(("auroc", "meetings", "short answers"), nothing)
    pool = {"samples": {"meetings": 8, "short answers": 4}, "far": {"meetings": 5, "short answers": 2}}
    mixed_pool = pool | {"candidates": {"robust": shares}}
    measured = {"settings": {}, "machine": {}, "results": {"tiny": found | {"mixed": mixed_pool}}}
    (tmp_path / "qmsum_report.json").write_text(json.dumps(measured))
    other = measured | {"results": {"second": measured["results"]["tiny"]}}
    (tmp_path / "qmsum_gemma3.json").write_text(json.dumps(other))
    assert {*figures.keep(tmp_path, tmp_path / "kept")} == {"qmsum_report.json", "qmsum_gemma3.json"}
    tables = [name for name, (files, _) in figures.TABLES.items() if files[0] == "qmsum"]
    assert len(tables) == 4
    page = "".join(f"<!-- figures: {name} -->\n\n<!-- end of figures -->\n" for name in tables)
    text = figures.written(page, tmp_path / "kept")
    value = found["auroc"]["gateau[robust]"]["far against near"]["value"]
    assert re.search(rf"^\| `robust`.* \| {value:.3f} \(", text, re.MULTILINE)
    for model in ("tiny", "second"):
        assert all(re.search(rf"^\| {model} \| `{kind}` \|", text, re.MULTILINE) for kind in KINDS)
        assert f"| {model} | `robust` | 0.250 (0.000-0.500) | 25 % (0-50) of 5 |" in text


def sample(group: str, page: str, far: bool, gain: float) -> Labelled:
    values = [np.array([0.1]), np.array([0.1 + gain]), np.array([0.1]), np.array([0.1 + gain])]
    tokens = ResponseTokens(**dict(zip(("short", "long", "near", "far"), values, strict=True)), context=9)
    empty: dict[str, Any] = {"far_tokens": 0, "marked": frozenset(), "gains": ()}
    return Labelled(group=group, page=page, needs_far=far, tokens=tokens, **empty)


def test_a_mixed_pool_s_shares_are_those_of_the_best_by_score() -> None:
    samples = [
        *(sample("a", f"a{number}", number < 4, 0.9 if number < 3 else 0.1) for number in range(8)),
        *(sample("b", f"b{number}", number < 4, 0.5 if number < 2 else 0.2) for number in range(8)),
    ]
    shares = mixed(samples, 10)["candidates"]
    assert set(shares) == set(CANDIDATES)
    # Eight need far text. The best eight: three of a, two of b, and of the next, which are alike, the first three.
    assert shares["all_tokens"]["a"].value == 0.75 and shares["all_tokens"]["b"].value == 1.0
