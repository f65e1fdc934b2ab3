"""The keys about how questions are asked; each benchmark's own are tested with it."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateau_dagster.features.evaluation.config import EngineConfig, EvaluationConfig


def evaluation(**given: Any) -> EvaluationConfig:
    return EvaluationConfig.model_validate(given)


def test_what_is_not_given_is_not_shown() -> None:
    """A report's fingerprint holds the section: it stays what it was before these keys were known."""
    assert evaluation().model_dump(mode="json") == {"enabled": True, "benchmarks": None}
    given = {"template": "chat", "input_length": 64_000, "engine": {"base_url": "http://localhost:8000/v1"}}
    shown = evaluation(**given).model_dump(mode="json")
    assert shown["template"] == "chat" and shown["engine"]["model"] == "{variant}"
    assert evaluation(**shown) == evaluation(**given)
    assert evaluation(other={"x": 1}).sections == {"other": {"x": 1}}


@pytest.mark.parametrize(
    "address",
    ["localhost:8000", "ftp://host/v1", "https://user:secret@host/v1", "https://host/v1?key=secret", "https:///v1"],
)
def test_a_server_s_address_holds_no_secret_and_is_one(address: str) -> None:
    with pytest.raises(ValidationError) as raised:
        EngineConfig(base_url=address)
    assert "secret" not in str(raised.value)


def test_an_address_may_name_the_variant_and_a_key_names_a_variable() -> None:
    assert EngineConfig(base_url="http://host:80/{variant}/v1", key="OPENAI_API_KEY").concurrency == 8
    with pytest.raises(ValidationError):
        EngineConfig(base_url="http://host/v1", key="sk-12345")


@pytest.mark.parametrize("name", ["temperature", "top_p", "seed"])
def test_sampling_is_the_benchmark_s_unless_it_is_set_or_left_out(name: str) -> None:
    address, asked = "http://host/v1", {"temperature": 0.0, "top_p": 0.9, "seed": 4}
    for value, sent in (("benchmark", asked), (None, {**asked, name: None}), (1, {**asked, name: 1})):
        config = EngineConfig.model_validate({"base_url": address, name: value})
        assert config.sampling(**asked) == {key: each for key, each in sent.items() if each is not None}
        assert (config.changed_sampling == {}) == (value == "benchmark")
    for value in (-1, "other", True):
        with pytest.raises(ValidationError):
            EngineConfig.model_validate({"base_url": address, name: value})
