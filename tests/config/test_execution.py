"""The section `execution`: what goes together, who receives messages, and the catalogue's patterns."""

from typing import Any

import pytest

from gateau_dagster.config.execution import CatalogueConfig, NotifyConfig
from tests.kit.project import configured


def test_the_pool_follows_from_the_section() -> None:
    assert configured(execution={}).execution.pool_name == "processes"
    assert configured(execution={"ray": {"workers": 2}}).execution.pool_name == "ray"
    assert configured(execution={"pool": "ray", "ray": {"workers": 2}}).execution.pool_name == "ray"
    assert configured(execution={"pool": "mine"}).execution.pool_name == "mine"


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
    found = configured(execution={"ray": {"workers": 2, **ray}}, scoring=scoring).execution.ray
    assert found is not None and found.workers == 2


MAIL = {"to": ["ann@example.org"], "sender": "gateau@example.org"}


def test_one_of_the_two_is_enough() -> None:
    assert NotifyConfig.model_validate({"webhook": "SLACK_URL"}).mail is None
    found = NotifyConfig.model_validate({"mail": MAIL}).mail
    assert found is not None and (found.server, found.port, found.security) == ("localhost", 25, "none")


def test_patterns() -> None:
    owners = {"*": ["team:data"], "perplexity/*": ["ann@example.org", "team:data"], "report": ["bob@example.org"]}
    found = CatalogueConfig(owners=owners, fresh_within_hours={"*": 48, "report": 24})
    assert found.owners_of("perplexity/short") == ["team:data", "ann@example.org"]
    assert found.owners_of("report") == ["team:data", "bob@example.org"]
    assert (found.hours_of("report"), found.hours_of("cam")) == (24, 48)
    assert CatalogueConfig().hours_of("report") is None and CatalogueConfig().owners_of("report") == []
