"""Define who is notified of failed runs: a web hook, mail, or both. Secret addresses come from the environment."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import HookVariable, PasswordVariable
from gateau_dagster.errors import GateauError

_ADDRESS = re.compile(r"[^@\s<>,]+@[^@\s<>,]+")


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise GateauError("execution.notify", "is not an e-mail address")
    return text


Address = Annotated[str, AfterValidator(_address)]


class MailConfig(Section):
    """A mail server, and the recipients."""

    to: list[Address] = Field(min_length=1, description="E-mail addresses.")
    sender: Address = Field(description="E-mail address that the mail comes from.")
    server: str = Field(default="localhost", min_length=1, description="Host of the SMTP server.")
    port: int = Field(default=25, ge=1, le=65_535)
    security: Literal["none", "starttls", "tls"] = Field(default="none", description="How the connection is secured.")
    user: str | None = Field(default=None, min_length=1, description="Name at the server, where it wants one.")
    key: PasswordVariable | None = Field(default=None, description="The environment variable that holds the password.")

    @model_validator(mode="after")
    def _both(self) -> "MailConfig":
        if (self.user is None) != (self.key is None):
            raise GateauError("execution.notify", "user and key belong together: give both or neither")
        if self.key is not None and self.security == "none":
            raise GateauError(
                "execution.notify", "security: none would send the password unencrypted: use starttls or tls"
            )
        return self


class NotifyConfig(Section):
    """`execution.notify`: recipients of the sensor `failures`, for runs that fail and checks that fail as errors."""

    webhook: HookVariable | None = Field(
        default=None,
        description='The environment variable that holds an address that takes {"text": …}: Slack, Mattermost, Chat.',
    )
    mail: MailConfig | None = None
    ui: str | None = Field(
        default=None, pattern=r"^https?://[^\s@]+$", description="Address of the Dagster UI, for links to the run."
    )

    @model_validator(mode="after")
    def _somebody(self) -> "NotifyConfig":
        if self.webhook is None and self.mail is None:
            raise GateauError("execution.notify", "names no recipient: give webhook or mail")
        return self
