"""Who is told: names of environment variables, never what they hold; no password is sent in the clear."""

from gateau_dagster.config.execution import NotifyConfig

MAIL = {"to": ["ann@example.org"], "sender": "gateau@example.org"}


def test_one_of_the_two_is_enough() -> None:
    assert NotifyConfig.model_validate({"webhook": "SLACK_URL"}).mail is None
    found = NotifyConfig.model_validate({"mail": MAIL}).mail
    assert found is not None and (found.server, found.port, found.security) == ("localhost", 25, "none")
