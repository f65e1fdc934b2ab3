"""Send messages to people, as a Dagster resource: a web hook, mail, or both. Secrets come from the environment."""

# Why a few lines and no library: a message about a failed message must say what to change. Apprise returns no reason.
# Dagster's sensor for mail knows failed runs, but no failed checks (docs/architecture.md).
#
# The invariant: no error shows the address of a web hook, which is as secret as a password.

import http.client
import json
import os
import smtplib
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import EmailMessage
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from gateau_dagster.config.execution import MailConfig, NotifyConfig
from gateau_dagster.errors import GateauError, TransientError, secret_variable_named, together

_PATIENCE = 20.0  # seconds after which nothing is retried
_PASSING = {408, 429, 500, 502, 503, 504}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: urllib would follow one with a GET request that lacks the text."""

    def redirect_request(self, *_: Any) -> None:
        """Return nothing, which makes a redirect an error."""


_opener = urllib.request.build_opener(_NoRedirects)


class NotificationResource(dg.ConfigurableResource):
    """Sends a message to every place that a configuration names."""

    timeout: float = Field(default=10.0, gt=0, description="Seconds that a server may take to answer.")
    pauses: list[float] = Field(default=[2.0, 8.0], description="Seconds before each new try, where one may help.")

    def send(self, settings: NotifyConfig, subject: str, text: str) -> None:
        """Send to every place; a failure at one does not prevent the others.

        Raises:
            GateauError, TransientError: a server rejected the message; the error does not show its address.
        """
        ways: list[Callable[[], None]] = []
        if settings.webhook is not None:
            ways.append(partial(self._post, settings.webhook, f"{subject}\n{text}"))
        if settings.mail is not None:
            ways.append(partial(self._mail, settings.mail, subject, text))
        failures: list[GateauError] = []
        until = time.monotonic() + _PATIENCE
        for way in ways:
            try:
                self._patiently(way, until)
            except GateauError as error:
                failures.append(error)
        if failures:
            raise failures[0] if len(failures) == 1 else together("no message could be sent:", failures)

    def _patiently(self, way: Callable[[], None], until: float) -> None:
        """Retry with pauses: Dagster does not repeat a lost message, and limits its sensors to a minute."""
        for pause in self.pauses:
            try:
                return way()
            except TransientError:
                if time.monotonic() > until:
                    raise
                time.sleep(pause)
        return way()

    def _post(self, variable: str, text: str) -> None:
        """Post `{"text": …}`, the format of Slack, Mattermost and Google Chat."""
        place, address = "execution.notify.webhook", _secret("execution.notify.webhook", variable)
        if not address.startswith(("https://", "http://")):
            raise GateauError(
                "execution.notify", f"{place}: {variable} is not an http:// or https:// address. Correct it."
            )
        body = json.dumps({"text": text}).encode()
        try:
            request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
            with _opener.open(request, timeout=self.timeout):
                return
        except urllib.error.HTTPError as error:
            kind, code = (
                (TransientError, "execution.notify_failed")
                if error.code in _PASSING
                else (GateauError, "execution.notify")
            )
            raise kind(
                code, f"{place}: the server answered {error.code} {error.reason}. Check the address in {variable}."
            ) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise TransientError(
                "execution.notify_failed",
                f"{place}: the server of {variable} does not answer ({reason}). Check the address and the network.",
            ) from None
        except (http.client.HTTPException, ValueError) as error:  # their messages contain parts of the address
            raise GateauError(
                "execution.notify",
                f"{place}: {variable} is not the address of a web server ({type(error).__name__}). Correct it.",
            ) from None

    def _mail(self, mail: MailConfig, subject: str, text: str) -> None:
        message = EmailMessage()
        message["Subject"], message["From"], message["To"] = subject, mail.sender, ", ".join(mail.to)
        message.set_content(text)
        connect = smtplib.SMTP_SSL if mail.security == "tls" else smtplib.SMTP
        try:
            with connect(mail.server, mail.port, timeout=self.timeout) as server:
                if mail.security == "starttls":
                    server.starttls()
                if mail.user is not None and mail.key is not None:
                    server.login(mail.user, _secret("execution.notify.mail.key", mail.key))
                server.send_message(message)
        except (smtplib.SMTPException, OSError) as error:
            reason = " ".join(str(error).split())
            raise TransientError(
                "execution.notify_failed",
                f"execution.notify.mail: {mail.server}:{mail.port} did not accept the message ({reason}). Check "
                "server, port and security.",
            ) from error
        except UnicodeEncodeError:  # its message contains the user or the password
            raise GateauError(
                "execution.notify",
                f"execution.notify.mail: {mail.server} accepts only ASCII letters in user and password. Change them.",
            ) from None


def _secret(place: str, variable: str) -> str:
    secret_variable_named(variable)
    found = os.environ.get(variable, "").strip()
    if not found:
        raise GateauError(
            "config.variable_missing",
            f"{place}: the environment variable {variable} is not set for Dagster's daemon. Set it there, then "
            "restart the daemon.",
        )
    return found
