"""Messages to people, as a Dagster resource: a web hook, mail, or both. What is secret comes from the environment."""

import json
import os
import smtplib
import urllib.error
import urllib.request
from email.message import EmailMessage

import dagster as dg
from pydantic import Field

from gateau_dagster.config.notify import MailConfig, NotifyConfig
from gateau_dagster.errors import GateauError, TransientError


class NotificationResource(dg.ConfigurableResource):
    """Sends a message wherever a configuration says."""

    timeout: float = Field(default=10.0, gt=0, description="Seconds that a server may take to answer.")

    def send(self, settings: NotifyConfig, subject: str, text: str) -> None:
        """Everywhere, or as far as it goes.

        Raises:
            GateauError, TransientError: one of the servers did not take it; the message does not show its address.
        """
        if settings.webhook is not None:
            self._post(settings.webhook, f"{subject}\n{text}")
        if settings.mail is not None:
            self._mail(settings.mail, subject, text)

    def _post(self, variable: str, text: str) -> None:
        """`{"text": …}`, as Slack, Mattermost and Google Chat take it."""
        place, address = "execution.notify.webhook", _secret("execution.notify.webhook", variable)
        if not address.startswith(("https://", "http://")):
            raise GateauError(f"{place}: what {variable} holds is no http:// or https:// address.")
        body = json.dumps({"text": text}).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout):
                return
        except urllib.error.HTTPError as error:
            raise GateauError(
                f"{place}: the server answered {error.code} {error.reason}. Look at {variable}."
            ) from None
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            raise TransientError(f"{place}: the server of {variable} does not answer ({reason}).") from None

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
                f"execution.notify.mail: {mail.server}:{mail.port} did not take it ({reason})."
            ) from error


def _secret(place: str, variable: str) -> str:
    found = os.environ.get(variable, "").strip()
    if not found:
        raise GateauError(f"{place}: the environment variable {variable} is not set where Dagster's daemon runs.")
    return found
