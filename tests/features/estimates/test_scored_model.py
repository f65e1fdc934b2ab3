"""Tokens of prompts, from the lengths of texts."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateau_dagster.data.sample import Sample
from gateau_dagster.features.estimates.scored_model import ScoredModel
from gateau_dagster.models.model_facts import local_facts
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.token_rates import token_rates
from tests.kit.project import make_project, sample


@pytest.fixture
def state(tmp_path: Path) -> State:
    return state_of(config=load_project(make_project(tmp_path, samples=20, shards=2)))


def test_against_tokenising_everything(state: State) -> None:
    """Compare exact sums: all of so few samples are read."""
    tokenizer = local_facts(state.config, "long").tokenizer
    assert tokenizer is not None
    texts = [Sample.of_row({"sample_id": "", **sample(n)}) for n in range(20)]
    prompts = [build_prompt(tokenizer, text, max_length=10**6) for text in texts]
    found = ScoredModel(state, "long").sample_tokens(state.index.accepted).prompts(opening=True)
    assert found.prompt.sum() == pytest.approx(sum(prompt.length for prompt in prompts), rel=0.02)
    assert found.response.sum() == pytest.approx(sum(len(prompt.response) for prompt in prompts), rel=0.1)
    rates, blank = token_rates(state, "long"), replace(texts[0], context="", instruction="")
    nothing = build_prompt(tokenizer, blank, max_length=99)
    assert (rates.samples, rates.around["frame"]) == (20, len(nothing.prefix) + len(nothing.suffix))
    assert 0 < rates.seconds < 1
