"""Define the section `execution`: how Dagster runs the steps, and where models score; it changes no result."""

import re
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from gateau_dagster.config.base import NOTHING, Section
from gateau_dagster.config.models import ScoringConfig
from gateau_dagster.config.values import DatabaseVariable, HookVariable, PasswordVariable, TimeZone
from gateau_dagster.errors import GateauError

_ADDRESS = re.compile(r"[^@\s<>,]+@[^@\s<>,]+")


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise GateauError("execution.notify", "is not an e-mail address: write one such as ann@example.org")
    return text


Address = Annotated[str, AfterValidator(_address)]


class MailConfig(Section):
    """A mail server, and the recipients."""

    to: list[Address] = Field(min_length=1, description="E-mail addresses.", examples=[["team@example.org"]])
    sender: Address = Field(description="E-mail address of the sender.", examples=["gateau@example.org"])
    server: str = Field(default="localhost", min_length=1, description="Host of the SMTP server.")
    port: int = Field(default=25, ge=1, le=65_535, description="Port of the SMTP server.")
    security: Literal["none", "starttls", "tls"] = Field(default="none", description="Encryption of the connection.")
    user: str | None = Field(
        default=None, min_length=1, description="User name on the server, if it requires one.", examples=["gateau"]
    )
    key: PasswordVariable | None = Field(
        default=None, description="The environment variable that holds the password.", examples=["GATEAU_MAIL_PASSWORD"]
    )

    @model_validator(mode="after")
    def _both(self) -> "MailConfig":
        if (self.user is None) != (self.key is None):
            raise GateauError("execution.notify", "user and key belong together: give both or neither")
        if self.key is not None and self.security == "none":
            raise GateauError(
                "execution.notify", "security: none would send the password unencrypted: set starttls or tls"
            )
        return self


class NotifyConfig(Section):
    """`execution.notify`: recipients of the sensor `failures`, for runs that fail and checks that fail as errors."""

    webhook: HookVariable | None = Field(
        default=None,
        description='The environment variable that holds an address that takes {"text": …}: Slack, Mattermost, Chat.',
        examples=["GATEAU_WEBHOOK"],
    )
    mail: MailConfig | None = Field(default=None, description="Recipients by e-mail; null: nobody.")
    ui: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s@]+$",
        description="Address of the Dagster UI, for links to the run.",
        examples=["https://dagster.example.org"],
    )

    @model_validator(mode="after")
    def _somebody(self) -> "NotifyConfig":
        if self.webhook is None and self.mail is None:
            raise GateauError("execution.notify", "names no recipient: give webhook or mail")
        return self


_OWNER = re.compile(r"team:[A-Za-z0-9_]+|[^@\s:]+@[^@\s:]+\.[^@\s:]+")
_TAG_KEY = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")


class CatalogueConfig(Section):
    """Display options of the assets; these change no result. Patterns are file-name patterns: `*`, `perplexity/*`,
    `report`.
    """

    owners: dict[str, list[str]] = Field(
        default={},
        description="Owners by pattern of assets: e-mail addresses, or teams as team:name.",
        examples=[{"selected_subset": ["team:data"]}],
    )
    tags: dict[str, str] = Field(
        default={}, description="Tags of every asset, for searches.", examples=[{"domain": "alignment"}]
    )
    code: str | None = Field(
        default=None,
        pattern=r"^https?://\S+$",
        description="Address of the source code, such as https://github.com/a/b/blob/main; default: the local files.",
        examples=["https://github.com/example/project/blob/main"],
    )
    fresh_within_hours: dict[str, float] = Field(
        default={},
        description="Greatest age in hours by pattern of assets; an asset without changes gets older, too.",
        examples=[{"report": 24}],
    )

    @field_validator("owners")
    @classmethod
    def _possible_owners(cls, owners: dict[str, list[str]]) -> dict[str, list[str]]:
        for name in (name for names in owners.values() for name in names):
            if not _OWNER.fullmatch(name):
                raise GateauError(
                    "execution.catalogue",
                    f"{name!r} is not an e-mail address or a team: write ann@example.org or team:data",
                )
        return owners

    @field_validator("tags")
    @classmethod
    def _possible_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        for key, value in tags.items():
            if not _TAG_KEY.fullmatch(key) or not _TAG_VALUE.fullmatch(value):
                raise GateauError(
                    "execution.catalogue",
                    f"{key}: {value!r} is not allowed: use at most 63 letters, digits, _, . and -",
                )
        return tags

    @field_validator("fresh_within_hours")
    @classmethod
    def _possible_hours(cls, hours: dict[str, float]) -> dict[str, float]:
        for pattern, value in hours.items():
            if not 0.1 <= value <= 100_000:
                raise GateauError(
                    "execution.catalogue", f"{pattern}: {value:g} is out of range: give hours from 0.1 to 100000"
                )
        return hours

    def owners_of(self, asset: str) -> list[str]:
        """Return the owners of every pattern that the asset matches, each once."""
        found = [owner for pattern, owners in self.owners.items() if fnmatchcase(asset, pattern) for owner in owners]
        return [*dict.fromkeys(found)]

    def hours_of(self, asset: str) -> float | None:
        """Return the fewest hours of the patterns that the asset matches; None for an asset that may be of any age."""
        found = [hours for pattern, hours in self.fresh_within_hours.items() if fnmatchcase(asset, pattern)]
        return min(found, default=None)


# Ray counts in these fractions.
_LEAST = 0.0001


class RayConfig(Section):
    """An existing Ray cluster whose nodes score. Each worker is an actor that loads the model once."""

    address: str = Field(
        default="auto",
        min_length=1,
        description="Address of the cluster, host:port; auto: RAY_ADDRESS, or the cluster that contains this machine.",
    )
    workers: int = Field(
        ge=1,
        le=4096,
        description="Number of actors that score in parallel. Actors without a place are demand for the autoscaler.",
        examples=[8],
    )
    gpus: float = Field(default=1, ge=0, le=64, description="GPUs of each worker; 0: it scores on the CPU.")
    cpus: float = Field(
        default=4,
        ge=_LEAST,
        le=1024,
        description="CPUs of each worker, and its number of threads; may be a part of one.",
    )
    piece_minutes: float = Field(
        default=2,
        gt=0,
        le=120,
        description="Approximate minutes of work that a worker receives at a time, the most that its loss costs.",
    )
    scratch: str = Field(
        default="",
        description="Folder on each node for copies of models that the pipeline makes; empty: below its temporary one.",
        examples=["/scratch/gateau"],
    )

    @field_validator("address")
    @classmethod
    def _no_client(cls, address: str) -> str:
        if "://" in address:
            raise GateauError(
                "execution.ray_address",
                f"{address} is an address of Ray Client, which is not supported. Run on a node of the cluster (`ray "
                "start --address host:6379 --num-cpus 0` adds this machine), and give auto or host:port",
            )
        return address

    @field_validator("gpus")
    @classmethod
    def _share_or_whole(cls, gpus: float) -> float:
        if (gpus > 1 and gpus != int(gpus)) or 0 < gpus < _LEAST:
            raise GateauError(
                "execution.ray",
                f"{gpus:g} is not a part of one GPU or a whole number: give a multiple of {_LEAST}",
            )
        return gpus

    @field_validator("scratch")
    @classmethod
    def _on_each_node(cls, scratch: str) -> str:
        if scratch and not scratch.startswith(("/", "~")):
            raise GateauError(
                "execution.ray",
                f"{scratch} is a relative path, which differs between nodes: give a path that begins with / or ~",
            )
        return scratch


class ExecutionConfig(Section):
    """The way in which Dagster runs the steps; this changes no result."""

    affects = NOTHING

    executor: Literal["in_process", "multiprocess"] = Field(
        default="in_process", description="Whether Dagster's steps run in one process, or each in its own."
    )
    max_concurrent: int = Field(
        default=1, ge=1, le=1024, description="Number of parallel steps, with the multiprocess executor."
    )
    pool: str = Field(
        default="",
        description=(
            "Pool that runs the scoring workers. Default: ray if that section is given, else processes of this machine."
        ),
        examples=["ray"],
    )
    ray: RayConfig | None = Field(default=None, description="A Ray cluster that scores; null: this machine scores.")
    postgres: DatabaseVariable | None = Field(
        default=None,
        description="Environment variable that holds the URL of the PostgreSQL database with Dagster's records; "
        "null: dagster.yaml in Dagster's home decides, by default SQLite files.",
        examples=["DAGSTER_POSTGRES_URL"],
    )
    shards_per_run: int = Field(
        default=64, ge=1, le=10_000, description="Shards of one backfill run, which loads a model once."
    )
    retries: int = Field(
        default=2,
        ge=0,
        le=16,
        description="Number of retries of a step that fails transiently, with exponential back-off.",
    )
    schedule: str = Field(default="0 3 * * *", description="Cron line of the nightly refresh, which is off by default.")
    timezone: TimeZone = Field(default="UTC", description="Time zone of the schedule, such as Europe/Berlin.")
    catalogue: CatalogueConfig = Field(default=CatalogueConfig(), description="How the assets are shown in the UI.")
    notify: NotifyConfig | None = Field(default=None, description="Recipients of messages about failed runs.")

    @property
    def pool_name(self) -> str:
        """Return the name of the pool that scores."""
        return self.pool or ("processes" if self.ray is None else "ray")

    @model_validator(mode="after")
    def _ray_where_it_is_named(self) -> "ExecutionConfig":
        if self.ray is None and self.pool == "ray":
            raise GateauError(
                "execution.pool", "pool: ray needs a section ray with the number of workers: add ray: {workers: 8}"
            )
        if self.ray is not None and self.pool not in {"", "ray"}:
            raise GateauError(
                "execution.pool", f"pool: is {self.pool}, but the section ray is given: remove one of them"
            )
        return self


def check_devices(execution: ExecutionConfig, scoring: ScoringConfig) -> None:
    """Check that `scoring` leaves Ray's decisions to Ray.

    Raises:
        ValueError: both set the number of workers, or the device.
    """
    ray = execution.ray
    if ray is None:
        return
    if scoring.workers != "auto":
        raise GateauError(
            "execution.ray",
            f"scoring.workers: is {scoring.workers}, but execution.ray.workers is {ray.workers}: remove "
            "scoring.workers",
        )
    kind = scoring.device.split(":")[0]
    if (kind != "auto" and (kind == "cpu") != (ray.gpus == 0)) or ":" in scoring.device:
        raise GateauError(
            "execution.ray",
            f"scoring.device: is {scoring.device}, but Ray assigns {ray.gpus:g} GPUs to each worker "
            "(execution.ray.gpus). Remove scoring.device, or set execution.ray.gpus to 0 for workers on the CPU",
        )
    if ray.gpus > 1 and scoring.device_map is None:
        raise GateauError(
            "execution.ray",
            f"execution.ray.gpus: gives each worker {ray.gpus:g} GPUs, but a model uses one: set it to 1, or "
            "scoring.device_map to auto",
        )
