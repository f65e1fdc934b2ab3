"""Owners, tags and ages by patterns of assets; what Dagster would refuse is named with its place."""

from gateau_dagster.config.execution import CatalogueConfig


def test_patterns() -> None:
    owners = {"*": ["team:data"], "perplexity/*": ["ann@example.org", "team:data"], "report": ["bob@example.org"]}
    found = CatalogueConfig(owners=owners, fresh_within_hours={"*": 48, "report": 24})
    assert found.owners_of("perplexity/short") == ["team:data", "ann@example.org"]
    assert found.owners_of("report") == ["team:data", "bob@example.org"]
    assert (found.hours_of("report"), found.hours_of("cam")) == (24, 48)
    assert CatalogueConfig().hours_of("report") is None and CatalogueConfig().owners_of("report") == []
