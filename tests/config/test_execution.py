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
    ("execution", "scoring", "message"),
    [
        ({"pool": "ray"}, {}, "pool: ray needs a section ray"),
        ({"pool": "processes", "ray": {"workers": 2}}, {}, "leave one of them out"),
        ({"ray": {}}, {}, "workers"),
        ({"ray": {"workers": 2, "address": "ray://head:10001"}}, {}, "is a Ray Client's"),
        ({"ray": {"workers": 2, "gpus": 1.5}}, {}, "neither a part of one GPU nor a number"),
        ({"ray": {"workers": 2, "gpus": 1e-9}}, {}, "neither a part of one GPU"),
        ({"ray": {"workers": 2, "cpus": 1e-9}}, {}, r"cpus"),
        ({"ray": {"workers": 2, "scratch": "models"}}, {}, "begins in another folder on each node"),
        ({"ray": {"workers": 2}}, {"workers": 4}, r"scoring\.workers: 4, but execution\.ray\.workers is 2"),
        ({"ray": {"workers": 2}}, {"device": "cpu"}, r"scoring\.device: cpu, but each worker .* 1 GPUs"),
        ({"ray": {"workers": 2}}, {"device": "cuda:1"}, r"scoring\.device: cuda:1"),
        ({"ray": {"workers": 2, "gpus": 0}}, {"device": "cuda"}, r"scoring\.device: cuda"),
        ({"ray": {"workers": 2, "gpus": 2}}, {}, r"scoring\.device_map to auto"),
    ],
)
def test_what_contradicts_itself_is_refused(execution: dict[str, Any], scoring: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configured(execution, **scoring)


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
