"""LADM's score of samples and plain texts, against its equations in plain loops over eager matrices in float64."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gateau_dagster.data.sample import Reject
from gateau_dagster.models import memory
from gateau_dagster.models.flops import ForwardWork
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring import span_scorer
from gateau_dagster.scoring.documents import Document, sample_documents, text_ids
from gateau_dagster.scoring.focus_scores import FocusPlan, FocusWeights, Variant
from gateau_dagster.scoring.span_scorer import MeasuredSpans, measure_documents
from tests.error_codes import refused
from tests.scoring.reference import reference_parts
from tests.scoring.scored import measured_text, text_score
from tests.scoring.slow_ladm import eager_matrices, slow_cds
from tests.tiny_models import loaded_model, passages, tokenizer

PLAN = FocusPlan(span_length=16, local_spans=2, earlier_stride=2, later_stride=3, first_scored=5)
PROGRAM = FocusPlan(span_length=16, earlier_stride=2, later_stride=3, variant="program")
LICENCE = (Path(__file__).parents[2] / "LICENSE").read_text()


def _slow(loaded: LoadedModel, ids: Sequence[int], variant: Variant, weights: FocusWeights) -> float | None:
    return slow_cds(
        eager_matrices(loaded.model, ids),
        length=16,
        m=1,
        n=2,
        d=2,
        d_later=3,
        n0=5,
        program=variant == "program",
        deviation=weights.deviation,
        interval=weights.interval,
        position=weights.position,
    )


@pytest.mark.parametrize("plan", [PLAN, PROGRAM])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_text_agrees_with_the_equations_on_real_prose(kind: str, plan: FocusPlan) -> None:
    loaded = loaded_model(kind)
    ids = text_ids(tokenizer(), LICENCE[3000:5000], max_tokens=310)
    for weights in (FocusWeights(), FocusWeights(deviation=False), FocusWeights(interval=False, position=False)):
        want = _slow(loaded, ids, plan.variant, weights)
        assert want is not None and want > 0
        assert text_score(loaded, ids, plan, weights) == pytest.approx(want, rel=1e-4)


def test_sample_is_its_prompt_with_the_response() -> None:
    loaded, work = loaded_model("llama"), ForwardWork()
    documents = sample_documents(loaded.tokenizer, passages(), max_length=300, template="gateau")
    measured = list(measure_documents(loaded, documents, plan=PLAN, work=work))
    lengths = []
    for sample, got in zip(passages(), measured, strict=True):
        assert isinstance(got, MeasuredSpans) and (got.name, got.digest) == (sample.sample_id, sample.digest)
        prefix, context, suffix, response = reference_parts(tokenizer(), sample, "gateau")
        room = 300 - len(prefix + suffix + response)
        ids = prefix + (context[-room:] if room < len(context) else context) + suffix + response
        want = _slow(loaded, ids, "paper", FocusWeights())
        assert want is not None and text_score(loaded, ids, PLAN) == pytest.approx(want, rel=1e-4)
        assert (got.tokens, got.spans) == (len(ids), len(ids) // 16)
        lengths.append(len(ids))
    assert len(set(lengths)) > 1 and work.tokens == sum(lengths)


def test_short_text_costs_no_pass_and_has_no_score() -> None:
    loaded, work = loaded_model("llama"), ForwardWork()
    ids = text_ids(tokenizer(), LICENCE[:900])
    got = measured_text(loaded, ids[: 5 * 16 + 15], PLAN, work)
    assert isinstance(got, MeasuredSpans) and (got.spans, got.sums.later, work.tokens) == (5, (), 0)
    assert text_score(loaded, ids[: 5 * 16 + 15], PLAN) is None
    assert text_score(loaded, ids[: 6 * 16], PLAN) == 0.0  # one scored span with one score: no deviation
    assert text_score(loaded, (), PLAN) is None


def test_outcomes_come_in_order_with_rejects_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model("llama")
    own = span_scorer.pairwise_focus_scores

    def small_memory(one: LoadedModel, ids: Sequence[int], plan: FocusPlan, work: ForwardWork) -> object:
        if len(ids) > 500:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return own(one, ids, plan, work)

    monkeypatch.setattr(span_scorer, "pairwise_focus_scores", small_memory)
    monkeypatch.setattr(memory, "release_memory", lambda: None)
    texts = [("long", LICENCE[:3000]), ("fits", LICENCE[:500]), ("short", "word")]
    documents = [Document(name=name, ids=text_ids(tokenizer(), text, max_tokens=1000)) for name, text in texts]
    given = [*documents[:2], Reject(sample_id="broken", reason="no tokens"), documents[2]]
    long, fits, broken, short = measure_documents(loaded, given, plan=PLAN, work=ForwardWork())
    assert isinstance(long, Reject) and long.short_of_memory and "out of memory on a prompt of 1000" in long.reason
    assert isinstance(fits, MeasuredSpans) and fits.sums.later
    assert broken == Reject(sample_id="broken", reason="no tokens")
    assert isinstance(short, MeasuredSpans) and not short.sums.later


def test_attention_that_is_not_finite_is_a_reject() -> None:
    loaded = loaded_model("llama")
    for parameter in loaded.model.parameters():
        parameter.fill_(float("nan"))
    ids = text_ids(tokenizer(), LICENCE[:900])
    assert measured_text(loaded, ids, PLAN) == Reject(
        sample_id="", reason="attention between spans is not finite: try dtype bfloat16 or float32"
    )


def test_model_whose_attention_cannot_be_seen_is_refused_before_any_text() -> None:
    read: list[Document] = []

    def documents():
        read.append(Document(name="a", ids=(1, 2)))
        yield read[-1]

    with refused("models.no_attention"):
        next(measure_documents(loaded_model("mamba"), documents(), plan=PLAN, work=ForwardWork()))
    assert not read


def test_layers_are_kept_apart() -> None:
    loaded = loaded_model("llama")
    got = measured_text(loaded, text_ids(tokenizer(), LICENCE[:900]), PLAN)
    assert isinstance(got, MeasuredSpans)
    assert got.sums.deviation.shape == got.sums.focus.shape == (2, len(got.sums.later))
    assert not np.allclose(*got.sums.deviation)
