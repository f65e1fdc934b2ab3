"""dagster-postgres's driver is the one that is asked for, however the URL is written."""

from typing import Any

import pytest

from resources.postgres import with_driver

_DATABASE = {"username": "u", "password": "p", "hostname": "h", "db_name": "d"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("postgresql://u:p@h/d", "postgresql+psycopg2://u:p@h/d"),
        ("postgres://u:p@h/d", "postgresql+psycopg2://u:p@h/d"),
        ("postgresql+psycopg2://u:p@h/d", "postgresql+psycopg2://u:p@h/d"),
        ("postgresql+psycopg2cffi://u:p@h/d", "postgresql+psycopg2cffi://u:p@h/d"),
        ("postgresqlx://postgresql://", "postgresqlx://postgresql://"),
    ],
)
def test_a_url_gets_a_driver_unless_it_names_one(given: str, wanted: str) -> None:
    assert with_driver({"postgres_url": given}) == {"postgres_url": wanted}


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [
        ({}, "postgresql+psycopg2"),
        ({"scheme": "postgresql"}, "postgresql+psycopg2"),
        ({"scheme": "postgresql+psycopg2cffi"}, "postgresql+psycopg2cffi"),
    ],
)
def test_a_database_by_its_parts_gets_it_as_its_scheme(scheme: dict[str, Any], wanted: str) -> None:
    found = with_driver({"postgres_db": {**_DATABASE, **scheme}, "should_autocreate_tables": False})
    assert found == {"postgres_db": {**_DATABASE, "scheme": wanted}, "should_autocreate_tables": False}
