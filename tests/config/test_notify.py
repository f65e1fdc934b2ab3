"""Who is told: names of environment variables, never what they hold; no password is sent in the clear."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateau_dagster.config.notify import NotifyConfig

MAIL = {"to": ["ann@example.org"], "sender": "gateau@example.org"}


def test_one_of_the_two_is_enough() -> None:
    assert NotifyConfig.model_validate({"webhook": "SLACK_URL"}).mail is None
    found = NotifyConfig.model_validate({"mail": MAIL}).mail
    assert found is not None and (found.server, found.port, found.security) == ("localhost", 25, "none")


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"webhook": "https://hooks.slack.com/services/T0/B0/secret"},
        {"mail": {**MAIL, "to": []}},
        {"mail": {**MAIL, "to": ["Ann <ann@example.org>"]}},
        {"mail": {**MAIL, "user": "ann"}},
        {"mail": {**MAIL, "user": "ann", "key": "secret", "security": "tls"}},
        {"mail": {**MAIL, "user": "ann", "key": "MAIL_PASSWORD"}},
        {"webhook": "SLACK_URL", "ui": "https://user:pass@host"},
    ],
)
def test_what_cannot_be_meant(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as error:
        NotifyConfig.model_validate(keys)
    assert "secret" not in str(error.value)
