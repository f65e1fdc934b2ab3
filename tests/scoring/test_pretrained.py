"""Every figure of real pretrained models against the slow obvious reference: `make test-pretrained MODELS="folder"`."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gateau_dagster.config import ModelConfig
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.loading import load_model
from tests.kit.tiny_models import passages
from tests.scoring.builders import compare, scoring

MODELS = os.environ.get("GATEAU_TEST_MODELS", "").split()
WINDOW = 288  # of theta_A
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not MODELS, reason='no pretrained model was named: make test-pretrained MODELS="folder folder"'),
]


@pytest.fixture(scope="module", params=MODELS or [""], ids=lambda path: Path(path).name)
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    model = ModelConfig(path=request.param)
    return load_model(model, dtype="float32", device="cpu", folder=Path())


@pytest.mark.parametrize("template", ["gateau", "chat"])
def test_all_that_theta_b_sees_and_cam_agree(loaded: LoadedModel, template: str) -> None:
    if template == "chat" and not loaded.tokenizer.chat_template:
        pytest.skip("the tokenizer has no chat template")
    some = passages()[:2]
    assert compare(loaded, scoring(template=template, segment_length=128), 4096, some, WINDOW) == 0


def test_what_theta_a_sees_agrees(loaded: LoadedModel) -> None:
    assert compare(loaded, scoring(segment_length=64), WINDOW, passages()) > 0


def test_answers_of_one_word_agree(loaded: LoadedModel) -> None:
    """They begin as in plain text: with the space before them as part of their first token."""
    some = [replace(sample, response=sample.response.split()[0]) for sample in passages()[:2]]
    assert compare(loaded, scoring(segment_length=128), 4096, some, WINDOW) == 0
