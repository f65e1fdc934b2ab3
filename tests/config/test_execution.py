"""What of `execution` goes together."""

from typing import Any

import pytest

from gateau_dagster.config import Config


def configured(execution: dict[str, Any], **scoring: Any) -> Config:
    return Config.model_validate({"long_sft": {"path": "x.jsonl"}, "execution": execution, "scoring": scoring})


def test_the_pool_follows_from_the_section() -> None:
    assert configured({}).execution.pool_name == "processes"
    assert configured({"ray": {"workers": 2}}).execution.pool_name == "ray"
    assert configured({"pool": "ray", "ray": {"workers": 2}}).execution.pool_name == "ray"
    assert configured({"pool": "mine"}).execution.pool_name == "mine"


@pytest.mark.parametrize(
    ("ray", "scoring"),
    [
        ({"gpus": 0}, {"device": "cpu"}),
        ({"gpus": 0.5}, {"device": "cuda"}),
        ({"gpus": 4}, {"device_map": "auto"}),
        ({"address": "head:6379"}, {}),
    ],
)
def test_what_goes_together(ray: dict[str, Any], scoring: dict[str, Any]) -> None:
    found = configured({"ray": {"workers": 2, **ray}}, **scoring).execution.ray
    assert found is not None and found.workers == 2
