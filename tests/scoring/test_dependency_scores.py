"""Dependency strength, distance and specificity on paper, and against plain loops."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.models import forward, memory
from gateau_dagster.models.loaded import ForwardWork, LoadedModel
from gateau_dagster.scoring.dependency_scores import (
    DependencyRule,
    SegmentPairs,
    Variant,
    choose_pairs,
    dependency_distance,
    dependency_specificity,
    dependency_strength,
    long_dependency_score,
)
from gateau_dagster.scoring.segment_pairs import MeasuredPairs, PairPlan, measure_segment_pairs
from tests.kit.tiny_models import loaded_model, passages, samples
from tests.scoring.builders import reference_model, reference_parts, scoring, slow_lds, slow_perplexities

# Three segments: P(1) = 10, P(2) = 20; P(1|0) = 5, P(2|0) = 20 - ln 3, P(2|1) = 20.
ALONE = [99.0, 10.0, 20.0]
BEHIND = {(1, 0): 5.0, (2, 0): 20.0 - math.log(3), (2, 1): 20.0}


def _pairs(alone: list[float], behind: dict[tuple[int, int], float]) -> SegmentPairs:
    return SegmentPairs(
        alone=np.array(alone),
        later=np.array([i for i, _ in behind], dtype=np.int64),
        earlier=np.array([j for _, j in behind], dtype=np.int64),
        behind=np.array(list(behind.values())),
    )


def test_strength_distance_and_specificity_on_paper() -> None:
    pairs = _pairs(ALONE, BEHIND)
    # (10 - 5) / 10, ln 3 / 20, 0 / 20
    np.testing.assert_allclose(dependency_strength(pairs), [0.5, math.log(3) / 20, 0.0])
    # 1, 2 and 1 segments apart of at most N - 1 = 2; of a window of 5 segments: of at most 4.
    np.testing.assert_allclose(dependency_distance(pairs, DependencyRule(window_segments=None)), [0.5, 1.0, 0.5])
    np.testing.assert_allclose(dependency_distance(pairs, DependencyRule(window_segments=5)), [0.25, 0.5, 0.25])
    # Segment 1 has one pair: 1. Segment 2 gains ln 3 and 0: the softmax is 3/4 and 1/4, its entropy
    # 2 ln 2 - 3/4 ln 3, of at most ln 2.
    two = 1 - (2 * math.log(2) - 0.75 * math.log(3)) / math.log(2)
    np.testing.assert_allclose(dependency_specificity(pairs), [1.0, two, two])


def test_segment_that_all_others_help_alike_is_not_specific() -> None:
    pairs = _pairs([1.0] * 3 + [900.0], {(3, 0): 2.0, (3, 1): 2.0, (3, 2): 2.0})
    np.testing.assert_allclose(dependency_specificity(pairs), 0.0, atol=1e-12)
    # One helps by so much that the others' weight is 0 in float64: as specific as can be.
    pairs = _pairs([1.0] * 3 + [1e6], {(3, 0): 2.0, (3, 1): 1e5, (3, 2): 1e5})
    np.testing.assert_allclose(dependency_specificity(pairs), 1.0)


@pytest.mark.parametrize("variant", ["paper", "program"])
@pytest.mark.parametrize("threshold", [-1.0, 0.1, 0.6])
def test_agrees_with_plain_loops(variant: Variant, threshold: float) -> None:
    rng = np.random.default_rng(0)
    alone = rng.lognormal(1, 0.5, 12).tolist()
    behind = {(i, j): alone[i] * rng.uniform(0.2, 1.1) for i, j in choose_pairs(12, 40, "seed")}
    rule = DependencyRule(variant=variant, threshold=threshold, alpha=0.7, beta=1.9, window_segments=8)
    want = slow_lds(alone, behind, segments=8, threshold=threshold, alpha=0.7, beta=1.9, program=variant == "program")
    assert long_dependency_score(_pairs(alone, behind), rule) == pytest.approx(want, rel=1e-12)
    assert want > 0


def test_sample_without_a_pair_has_no_score() -> None:
    assert long_dependency_score(_pairs([3.0], {}), DependencyRule()) is None


@pytest.mark.parametrize(("segments", "limit"), [(0, 5), (1, 5), (2, 1), (10, 45), (10, 5000)])
def test_few_pairs_are_all_taken(segments: int, limit: int) -> None:
    everything = [(i, j) for i in range(segments) for j in range(i)]
    assert choose_pairs(segments, limit, "a") == everything


def test_many_pairs_are_a_sample_that_the_seed_decides() -> None:
    chosen = choose_pairs(60, 500, "a")
    assert len(set(chosen)) == len(chosen) == 500
    assert chosen == sorted(chosen) and all(0 <= j < i < 60 for i, j in chosen)
    assert choose_pairs(60, 500, "a") == chosen != choose_pairs(60, 500, "b")
    # Every pair may come, with the same chance: 500 of 1770; over 40 seeds each is expected 11.3 times.
    counts = np.zeros((60, 60))
    for seed in range(40):
        for i, j in choose_pairs(60, 500, str(seed)):
            counts[i, j] += 1
    taken = counts[np.tril_indices(60, -1)]
    assert taken.min() > 0 and taken.max() < 26
    assert abs(taken[:885].mean() - taken[885:].mean()) < 0.5


PLAN = PairPlan(segment_length=24, pairs=12)
TOLERANCE = 5e-6  # relative, of a perplexity: float32 through two layers against float64


def _measured(
    loaded: LoadedModel, some: list[Sample], plan: PairPlan = PLAN, work: ForwardWork | None = None, **changes: object
) -> list[MeasuredPairs | Reject]:
    return list(
        measure_segment_pairs(
            loaded, some, plan=plan, max_length=300, scoring=scoring(**changes), work=work or ForwardWork()
        )
    )


def _ids(loaded: LoadedModel, sample: Sample) -> list[int]:
    """The prompt of at most 300 tokens without its bos, from the design's formula."""
    prefix, context, suffix, response = reference_parts(loaded.tokenizer, sample, "gateau")
    room = 300 - len(prefix + suffix + response)
    whole = prefix + (context[-room:] if room < len(context) else context) + suffix + response
    return whole[1:] if loaded.tokenizer.bos_token_id is not None else whole


@pytest.mark.parametrize(("bos", "batch_tokens"), [(True, 1), (False, 400), (True, 100_000)])
def test_agrees_with_one_pass_each_on_real_prose(bos: bool, batch_tokens: int) -> None:
    loaded = loaded_model("llama", bos=bos)
    twin = reference_model(loaded.model)
    for sample, got in zip(passages(), _measured(loaded, passages(), batch_tokens=batch_tokens), strict=True):
        assert isinstance(got, MeasuredPairs) and got.sample == sample
        ids = _ids(loaded, sample)
        pairs = choose_pairs(len(ids) // 24, 12, sample.digest)
        alone, behind = slow_perplexities(twin, ids, 24, pairs)
        assert got.tokens == len(ids)
        assert list(zip(got.pairs.later.tolist(), got.pairs.earlier.tolist(), strict=True)) == pairs
        np.testing.assert_allclose(got.pairs.alone, alone, rtol=TOLERANCE)
        np.testing.assert_allclose(got.pairs.behind, list(behind.values()), rtol=TOLERANCE)
        measured = dict(zip(pairs, got.pairs.behind.tolist(), strict=True))
        want = slow_lds(got.pairs.alone.tolist(), measured, segments=12, threshold=-0.05)
        # Random models: the threshold is one that some pairs pass and others do not.
        rule = DependencyRule(threshold=-0.05, window_segments=12)
        assert long_dependency_score(got.pairs, rule) == pytest.approx(want, rel=1e-9)


def test_short_sample_costs_no_pass_and_has_no_pairs() -> None:
    loaded, work = loaded_model("llama"), ForwardWork()
    (got,) = _measured(loaded, samples()[2:3], PairPlan(segment_length=100), work)
    assert isinstance(got, MeasuredPairs) and got.tokens < 200
    assert got.pairs.alone.size == got.pairs.behind.size == work.tokens == 0


def test_sample_that_cannot_be_tokenised_is_rejected_in_its_place() -> None:
    broken = Sample(sample_id="b", source="t", context="c", instruction="i", response="")
    first, second, third = _measured(loaded_model("llama"), [passages()[0], broken, passages()[1]])
    assert isinstance(first, MeasuredPairs) and isinstance(third, MeasuredPairs)
    assert second == Reject(sample_id="b", reason="the response has no tokens")


def test_lack_of_memory_rejects_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(forward, "response_nll", no_memory)
    monkeypatch.setattr(memory, "release_memory", lambda: None)  # a full collection for each attempt
    (got,) = _measured(loaded_model("llama"), passages()[:1])
    assert isinstance(got, Reject) and got.short_of_memory
    assert got.reason.startswith("out of memory on a prompt of 24 tokens: use a shorter segment_length")


def test_perplexity_that_is_not_finite_names_the_segments() -> None:
    loaded = loaded_model("llama")
    for parameter in loaded.model.parameters():
        parameter.fill_(float("nan"))
    (got,) = _measured(loaded, passages()[:1])
    assert isinstance(got, Reject) and got.reason.startswith("segment 0: mean NLL of the response is nan")


def test_samples_are_not_read_long_before_they_are_needed() -> None:
    read: list[str] = []

    def reading() -> Iterator[Sample]:
        for index in range(40):
            sample = passages()[index % 4]
            read.append(sample.sample_id)
            yield sample

    measured = measure_segment_pairs(
        loaded_model("llama"),
        reading(),
        plan=PLAN,
        max_length=300,
        scoring=scoring(batch_tokens=300),
        work=ForwardWork(),
    )
    next(measured)
    measured.close()
    assert 0 < len(read) < 12
