"""A message reaches a real HTTP server and a real mail server; what does not is said without the address's secret."""

import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from typing import Any

import pytest

from gateau_dagster.config.execution import NotifyConfig
from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.resources.notification import NotificationResource
from tests.kit.error_codes import refused
from tests.kit.local_server import QuietHandler, served

VARIABLE = "GATEAU_TEST_WEBHOOK"
HOOK = NotifyConfig.model_validate({"webhook": VARIABLE})


@contextmanager
def hook_server(*answers: int, location: str = "") -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """A port, and what was posted; `answers`: the status of each, then 200."""
    posted: list[dict[str, Any]] = []

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers[len(posted) - 1] if len(posted) <= len(answers) else 200)
            if location:
                self.send_header("Location", location)
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    with served(HTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield port, posted


class MailHandler(socketserver.StreamRequestHandler):
    """As much of SMTP as a mail takes."""

    mails: list[str]

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = []
                while (text := self.rfile.readline()) != b".\r\n":
                    lines.append(text.decode())
                self.mails.append("".join(lines))
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


def test_a_web_hook_gets_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with hook_server() as (port, posted):
        monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{port}/T0/secret")
        NotificationResource().send(HOOK, "a run failed", "cam: why\nstore")
    assert posted == [{"text": "a run failed\ncam: why\nstore"}]


def test_mail_is_delivered() -> None:
    MailHandler.mails = []
    with served(socketserver.TCPServer(("127.0.0.1", 0), MailHandler)) as port:
        mail = {"to": ["a@x.org", "b@x.org"], "sender": "g@x.org", "server": "127.0.0.1", "port": port}
        NotificationResource().send(NotifyConfig.model_validate({"mail": mail}), "a run failed", "cam: why")
    (found,) = MailHandler.mails
    assert "Subject: a run failed" in found and "To: a@x.org, b@x.org" in found and "cam: why" in found


def test_an_answer_that_is_none_is_said_without_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with hook_server(404) as (port, _):
        monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{port}/T0/secret")
        with refused("execution.notify", f"404.*{VARIABLE}") as failure:
            NotificationResource().send(HOOK, "s", "t")
    with pytest.raises(TransientError) as silent:  # the server has ended
        NotificationResource(pauses=[]).send(HOOK, "s", "t")
    monkeypatch.delenv(VARIABLE)
    with refused("config.variable_missing", VARIABLE) as unset:
        NotificationResource().send(HOOK, "s", "t")
    assert not any("secret" in str(error.value) for error in (failure, silent, unset))


def test_a_hook_that_leads_elsewhere_has_not_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followed, it would be a page that anybody gets."""
    with hook_server(302, location="/sign-in") as (port, _):
        monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{port}/T0/secret")
        with refused("execution.notify", "302"):
            NotificationResource().send(HOOK, "s", "t")


@pytest.mark.parametrize(
    "address",
    [
        "http://me:the-secret@127.0.0.1/T0",
        "http://127.0.0.1:the-secret/T0",
        "http://127.0.0.1/T0/the secret",
        "http://127.0.0.1/T0/the-secret\u20ac",
        "http://[the-secret/T0",
    ],
)
def test_an_address_that_is_none_is_not_told(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(VARIABLE, address)
    with refused("execution.notify", f"^execution.notify.webhook: .*{VARIABLE}") as failure:
        NotificationResource().send(HOOK, "s", "t")
    assert "secret" not in str(failure.value) and failure.value.__suppress_context__


def test_a_hook_that_fails_keeps_no_mail_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "http://127.0.0.1:1/T0")
    MailHandler.mails = []
    with served(socketserver.TCPServer(("127.0.0.1", 0), MailHandler)) as port:
        mail = {"to": ["a@x.org"], "sender": "g@x.org", "server": "127.0.0.1", "port": port}
        both = NotifyConfig.model_validate({"webhook": VARIABLE, "mail": mail})
        with refused("execution.notify_failed", r"execution\.notify\.webhook"):
            NotificationResource(pauses=[]).send(both, "a run failed", "cam: why")
    assert len(MailHandler.mails) == 1


def test_a_hook_that_is_away_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for answers, reached in (([503, 429, 200], 3), ([404, 200], 1), ([503] * 4, 3)):
        with hook_server(*answers) as (port, posted):
            monkeypatch.setenv(VARIABLE, f"http://127.0.0.1:{port}/T0/x")
            try:
                NotificationResource(pauses=[0.0, 0.0]).send(HOOK, "s", "t")
            except GateauError as error:
                assert isinstance(error, TransientError) is (answers[0] == 503)
                assert answers[reached - 1] != 200
            else:
                assert answers[reached - 1] == 200
        assert len(posted) == reached
