"""Scores against the response's length: candidates, pairs, choices and segments follow their definitions."""

import json
import math
from pathlib import Path
from typing import Any

import common_selection
import figures
import numpy as np
import pytest
import real_text_kinds
import response_length
from common_selection import Tables
from hypothesis import given, settings
from hypothesis import strategies as st
from real_text_kinds import LENGTH_KINDS
from response_length import CANDIDATES, Labelled, Pool, ResponseTokens

from gateau_dagster.models.prompt import encode
from gateau_dagster.selection.combine import combine
from tests.benchmarks.questions import write_questions
from tests.kit import tiny_models
from tests.kit.project import write_model

FEW = ("far_1_bare", "mixed_2_prose", "near_2_bare", "nowhere_1_prose")
PROBABILITY = st.floats(0, 1, width=32)
TOKENS = st.lists(st.tuples(PROBABILITY, PROBABILITY, PROBABILITY, PROBABILITY), min_size=1, max_size=30)


def tokens_of(rows: list[tuple[float, float, float, float]], context: int = 100) -> ResponseTokens:
    short, long, near, far = (np.array(each) for each in zip(*rows, strict=True))
    return ResponseTokens(short=short, long=long, near=near, far=far, context=context)


def slow_mean(name: str, rows: list[tuple[float, float, float, float]]) -> float:
    """The mean over tokens of a candidate, token by token."""
    total = 0.0
    if name == "robust":
        largest = sorted((max(0.0, far - near) for _, _, near, far in rows), reverse=True)
        largest = largest[: max(2, math.ceil(0.1 * len(rows) - 1e-9))]
        gain = sum(long - short for short, long, _, _ in rows) / len(rows)
        return (gain + sum(largest) / len(largest)) / 2
    for row in rows:
        short, long, near, far = (max(each, 2.0**-149) for each in row)
        if name == "all_tokens":
            total += (max(0.0, row[1] - row[0]) + max(0.0, row[3] - row[2])) / 2
        else:
            best = max(near, far)
            least = float(name.removeprefix("clear_")) if name.startswith("clear") else -math.inf
            gains = (long * math.log(long / short), best * math.log(best / near))
            total += sum(gain for gain in gains if gain >= least) / 2
    return total / len(rows)


@settings(max_examples=60, deadline=None)
@given(rows=TOKENS, context=st.integers(0, 5000))
def test_candidates_follow_their_definitions(rows: list[tuple[float, float, float, float]], context: int) -> None:
    m = len(rows)
    factors = {"sum": m, "cost": m / (m + context), "sqrt": math.sqrt(m)}
    factors |= {f"saturating_{most}": m / (m + most) for most in (16, 64)}
    for name, score in CANDIDATES.items():
        mean = next(each for each in ("robust", *response_length.MEANS) if name.startswith(each))
        factor = factors[name.removeprefix(f"{mean}_")] if name != mean else 1.0
        expected = slow_mean(mean, rows) * factor
        assert score(tokens_of(rows, context)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pairs_are_counted_one_by_one(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 8))
    scores = np.array(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)), dtype=float)
    positive = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    weights = np.array(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), dtype=float)
    first, others = np.flatnonzero(positive), np.flatnonzero(~positive)
    pairs = np.array([[(i + j) % 3 > 0 for j in others] for i in first]).reshape(first.size, others.size)
    right, total = 0.0, 0.0
    for row, i in enumerate(first):
        for column, j in enumerate(others):
            if pairs[row, column]:
                total += weights[i] * weights[j]
                right += weights[i] * weights[j] * (1.0 if scores[i] > scores[j] else 0.5 * (scores[i] == scores[j]))
    (found,) = response_length.pair_auroc(scores, positive, pairs, weights[None])
    assert found == pytest.approx(right / total) if total else math.isnan(found)


def test_a_choice_ends_before_the_sample_that_exceeds_the_budget() -> None:
    found = response_length.choice(np.array([3, 0, 1, 2]), np.array([4, 9, 1, 2]), 7)
    assert found.tolist() == [3, 0]


def test_segments_are_ranked_by_their_gain() -> None:
    found = response_length.segment_figures([0.1, 0.9, -math.inf, 0.5], frozenset({0, 3}))
    assert found["first_1"] == 0 and found["first_3"] == 1
    assert (found["recall_1"], found["recall_3"], found["recall_5"]) == (0, 1, 1)
    assert found["auroc"] == 0.5  # 0.5 is before -inf and behind 0.9, as 0.1 is
    offsets = [(0, 2), (2, 5), (5, 6), (6, 9), (9, 12)]
    assert response_length.marked_segments(offsets, [[3, 6]], 2) == {0, 1}
    assert response_length.marked_segments(offsets, [[12, 13]], 2) == set()


def test_far_answers_are_those_whose_passage_is_far(tmp_path: Path) -> None:
    first, second = response_length.read_questions(write_questions(tmp_path / "nq.jsonl", 2))
    context = f"{first.shown}\n\n{second.shown}"
    border = len(first.shown)
    record = {"needs_far": True, "evidence": [[0, border], [border + 2, len(context)]], "places": ["far", "near"]}
    response = f"{second.answer}; {first.answer}"
    begin = len(second.answer) + 2
    found = response_length.far_answers(record, context, response, [second, first])
    assert found == [(begin, len(response))]
    assert response_length.far_answers({"needs_far": False}, context, response, [second, first]) == []
    # A meeting's answer is prose: no part of it is known to be near.
    assert response_length.far_answers(record, context, response, []) == [(0, len(response))]


def sample(length: int, gain: float, page: str, *, needs_far: bool, group: str = "30 kinds") -> Labelled:
    return Labelled(
        group=group,
        page=page,
        needs_far=needs_far,
        far_tokens=length // 2 if needs_far else 0,
        tokens=tokens_of([(0.1, 0.1 + gain, 0.1, 0.1 + gain)] * length, context=100 - length),
        marked=frozenset({0}),
        gains=(1.0, 0.0),
    )


def test_figures_of_a_pool_that_is_easily_counted() -> None:
    """Ten samples of 100 tokens each: a fifth of the tokens are two samples."""
    far = [sample(length, gain, f"page {length}", needs_far=True) for length, gain in ((4, 0.8), (20, 0.6), (60, 0.25))]
    others = [sample(10, 0.1, f"other {number}", needs_far=False) for number in range(6)]
    others.append(sample(60, 0.3, "page 60", needs_far=False))
    found = response_length.measured(Pool(samples=[*far, *others], draws=50))
    assert (found["samples"], found["far"]) == (10, 3)
    mean, total = (found["figures"][name] for name in ("all_tokens", "all_tokens_sum"))
    assert mean["all"].value == pytest.approx(20 / 21) and mean["49 to 96"].value == 0
    assert (mean["spearman"].value, total["spearman"].value) == pytest.approx((-1, 1))
    assert mean["far tokens"].value == pytest.approx(12 / 42) and mean["length"].value == 12 / 20
    assert total["far tokens"].value == pytest.approx(30 / 42) and total["length"].value == 3
    assert mean["far samples"].value == 1 and total["far samples"].value == 0.5
    assert mean["across"].value == mean["far longer"].value == mean["far shorter"].value == 1
    assert found["difference"]["robust"]["all"].value == 0 == found["difference"]["robust"]["all"].high
    assert found["evidence"]["far"]["first_1"] == 1 and found["evidence"]["near"]["auroc"] == 1
    for figure in mean.values():
        assert figure.low <= figure.high


def test_samples_of_one_page_are_resampled_together() -> None:
    samples = [sample(5, 0.1, page, needs_far=bool(number % 2)) for number, page in enumerate("aabbcc")]
    weights = Pool(samples=samples, draws=20).weights
    assert weights.shape == (21, 6) and (weights[0] == 1).all() and weights[1:].std() > 0
    assert (weights[:, ::2] == weights[:, 1::2]).all() and (weights[:, ::2].sum(axis=1) == 3).all()


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("lengths")
    write_model(folder / "tiny", seed=1, window=4096, tokenizer=tiny_models.tokenizer())
    where = ["--nq", str(write_questions(folder / "nq.jsonl")), "--model", str(folder / "tiny")]
    sizes = ["--tokens", "1500", "--window", "700", "--dtype", "float32", "--draws", "20"]
    return [*where, *sizes, "--folder", str(folder / "kept"), "--fold", "choose"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the kinds: all thirty would take long."""
    monkeypatch.setattr(response_length, "LENGTH_KINDS", {name: LENGTH_KINDS[name] for name in FEW})
    monkeypatch.setattr(response_length, "KINDS", {"near": real_text_kinds.KINDS["near"]})


@pytest.mark.usefixtures("few")
def test_the_script_measures_every_candidate_and_fills_the_page(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "response_length_report.json"
    given = [*arguments, "--length-seeds", "0", "1", "--today-seeds", "0", "--out", str(out)]
    response_length.main(given)
    found = json.loads(out.read_text())
    assert found["samples"] == 9 and found["far"] == 4 and found["figures"].keys() == CANDIDATES.keys()
    assert found["settings"]["model"] == "tiny" and "nq" not in found["settings"]
    monkeypatch.setattr(common_selection, "load_model", lambda *_, **__: pytest.fail("a model is loaded"))
    response_length.main(given)
    assert json.loads(out.read_text())["figures"] == found["figures"]
    assert figures.keep(tmp_path, tmp_path / "kept") == ["response_length_report.json"]
    names = [name for name, (files, _) in figures.TABLES.items() if files == ("response_length_report",)]
    page = "".join(f"<!-- figures: {name} -->\n\n<!-- end of figures -->\n" for name in names)
    text = figures.written(page, tmp_path / "kept")
    assert names and all(f"| `{name}` | " in text for name in CANDIDATES)


@pytest.mark.usefixtures("few")
def test_tokens_are_those_of_the_tables_and_of_the_far_answers(arguments: list[str]) -> None:
    options: dict[str, Any] = dict(zip(arguments[::2], arguments[1::2], strict=True))
    case = response_length.RealCase(
        folder=Path(options["--folder"]), model=options["--model"], nq=options["--nq"], tokens=1500, window=700,
        seed=0, per_kind=1, fold="choose", kinds=FEW,
    )  # fmt: skip
    tables, records = Tables(case), case.labelled()
    questions = {each.text: each for each in response_length.read_questions(Path(case.nq))}
    found = list(response_length.labelled(tables, records, "30 kinds", questions))
    parts = (tables["perplexity/short"], tables["perplexity/long"], tables["cam"])
    scores = dict(combine(*parts, preset="robust", alpha=None).select("sample_id", "score").iter_rows())
    for one, record, of in zip(found, records, tables.samples, strict=True):
        assert response_length.robust(one.tokens) == pytest.approx(scores[of.sample_id], abs=1e-6)
        assert one.tokens.context == record["context_tokens"] and one.needs_far == record["needs_far"]
        assert one.page == questions[record["questions"][0]].title
        far = [questions[asked].answer for asked in record["questions"] if is_far(questions[asked].answer, record)]
        least = sum(len(encode(tiny_models.tokenizer(), answer)) for answer in far)
        assert (one.far_tokens > 0) == bool(far) == record["needs_far"]
        assert abs(one.far_tokens - least) <= 2 * len(far)  # tokens at an answer's borders
        assert bool(one.marked) == bool(record["evidence"])


def is_far(answer: str, record: dict[str, Any]) -> bool:
    return record["context"].find(answer) in range(record["border"]) and answer in record["context"]
