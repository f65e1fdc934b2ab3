"""Define the section about the judge model: where it is, what it costs, and the budget."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, Self, get_args
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, JsonValue, model_validator

from gateau_dagster.config.base import NOTHING, Affects, Section
from gateau_dagster.config.values import KeyVariable
from gateau_dagster.errors import GateauError

_MOST_REQUESTS = 10_000_000
Characteristic = Literal["coherence", "necessity", "faithfulness", "helpfulness", "complexity"]
CHARACTERISTIC_NAMES: tuple[Characteristic, ...] = get_args(Characteristic)
Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


def _server_address(text: str) -> str:
    """Return an http address without credentials. Raises ValueError, which does not show what was given."""
    parts = urlsplit(text.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname or not _can_be_asked(parts):
        raise GateauError(
            "config.server_address", "is not an http:// or https:// address: give one such as https://api.openai.com/v1"
        )
    if parts.username or parts.password or parts.query:
        raise GateauError(
            "config.credentials",
            "seems to contain credentials: remove them, and name the key's environment variable in `key`",
        )
    return text.strip().rstrip("/")


def _can_be_asked(parts: SplitResult) -> bool:
    try:
        return parts.port != 0 and not any(map(str.isspace, parts.geturl()))
    except ValueError:  # a port out of range
        return False


_OWN_SETTINGS = {"temperature", "top_p", "seed"}
_OWN_BODY = {"model", "messages", "prompt", "stream", "n"}
_LIMITS = {"max_tokens", "max_completion_tokens"}
_RENAMED = {"concurrent": "concurrency", "max_retries": "retries"}
_AS_ASKED = "benchmark"
AsAsked = Literal["benchmark"]
"""The value that means: send what the request itself asks for, which is the benchmark's choice."""


def _extra_body(found: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for name in found:
        if name in _OWN_SETTINGS:
            raise GateauError(
                "evaluation.extra_body", f"{name} has its own key in this section: use that, and remove it here"
            )
        if name in _LIMITS:
            raise GateauError(
                "evaluation.extra_body",
                f"{name} is set by the benchmark: remove it; token_limit gives its name in requests",
            )
        if name in _OWN_BODY:
            raise GateauError("evaluation.extra_body", f"{name} is set by GATEAU: remove it")
    try:
        json.dumps(found, allow_nan=False).encode()
    except ValueError as error:
        raise GateauError(
            "evaluation.extra_body",
            "contains a value that JSON cannot represent, such as .nan: give finite numbers and text",
        ) from error
    return found


class ServerConfig(Section):
    """The settings that judges and engines share: how to reach a server, and with which parameters."""

    limit_key: ClassVar[str] = ""
    """The section's key for the greatest length of a reply, if it has one."""

    key: Annotated[KeyVariable | None, NOTHING] = Field(
        default=None, description="Environment variable that holds the server's key; null: it asks for none."
    )
    concurrency: Annotated[int, NOTHING] = Field(
        default=8, ge=1, le=1024, description="Number of parallel requests; `concurrent` is its earlier name."
    )
    retries: Annotated[int, NOTHING] = Field(
        default=5,
        ge=0,
        le=100,
        description="Number of retries after 429, 5xx and lost connections, within `timeout`, with the pause that "
        "the server requests; `max_retries` is its earlier name.",
    )
    timeout: Annotated[float, NOTHING] = Field(
        default=120.0,
        gt=0,
        le=86_400,
        description="Seconds from the first attempt of an answer to its end, retries included.",
    )
    token_limit: Annotated[Literal["max_tokens", "max_completion_tokens"] | None, NOTHING] = Field(
        default="max_tokens",
        exclude_if=lambda value: value == "max_tokens",
        description="The server's name for the limit of an answer's length; null: it is not sent.",
    )
    temperature: Annotated[float, Field(ge=0)] | AsAsked | None = Field(
        default=_AS_ASKED,
        exclude_if=lambda value: value == _AS_ASKED,
        description="benchmark: the value of each request, mostly 0. A number replaces it; null omits it, for "
        "servers that reject it.",
    )
    extra_body: Annotated[dict[str, JsonValue], AfterValidator(_extra_body)] = Field(
        default={},
        exclude_if=lambda value: not value,
        description="Other keys of each request, such as {reasoning_effort: low}; a key with null is omitted.",
        examples=[{"top_k": 1}],
    )

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, data: Any) -> Any:
        """Accept earlier names of keys."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for earlier, name in _RENAMED.items():
            if earlier in data:
                if name in data:
                    raise GateauError(
                        "config.renamed_key", f"{name} and its earlier name {earlier} are both given: keep {name}"
                    )
                data[name] = data.pop(earlier)
        return data

    def sampling(self, **asked: float | int | None) -> dict[str, Any]:
        """Return the sampling parameters to send: those that a request asks for, unless a setting replaces them."""
        sent: dict[str, Any] = {}
        for name in ("temperature", "top_p", "seed"):
            value = getattr(self, name)
            value = asked.get(name) if value == _AS_ASKED else value
            if value is not None:
                sent[name] = value
        return sent

    @property
    def changed_sampling(self) -> dict[str, Any]:
        """Return the settings that change an answer; the defaults leave requests unchanged."""
        names = {"temperature", "top_p", "seed", "extra_body"}
        return self.model_dump(mode="json", include=names)


class PricesConfig(Section):
    """The price of a million tokens, in any currency."""

    prompt: float = Field(ge=0, description="Price of a million prompt tokens.", examples=[2.5])
    reply: float = Field(ge=0, description="Price of a million reply tokens.", examples=[10.0])


class BudgetConfig(Section):
    """The budget, over everything that the store holds of this model's replies; nothing is asked above it."""

    affects = Affects("report")

    requests: int | None = Field(
        default=None, ge=0, le=_MOST_REQUESTS, description="Greatest number of requests.", examples=[1000]
    )
    money: float | None = Field(
        default=None, ge=0, description="Greatest cost in the currency of `prices`, which it needs.", examples=[20.0]
    )


ServerAddress = Annotated[str, AfterValidator(_server_address)]
_BASE_URL = Field(
    description="Address of the server, such as https://api.openai.com/v1 or http://localhost:8000/v1.",
    examples=["https://api.openai.com/v1"],
)
_KEY = Field(
    default="OPENAI_API_KEY", description="Environment variable that holds the key; null: the server needs no key."
)


class AskedConfig(ServerConfig):
    """The settings that the judge and a feature's generator share: a model behind an OpenAI-compatible server.

    The model's name alone identifies it: the same name at another address reuses its replies.
    """

    place: ClassVar[str]
    """The section's place in the file."""
    replies_folder: ClassVar[str]
    """The folder of the store that keeps its replies."""
    doing: ClassVar[str]
    less: ClassVar[str]
    """The words for the requests, and for fewer of them, for the message about the budget."""

    base_url: Annotated[ServerAddress, NOTHING] = _BASE_URL
    model: str = Field(min_length=1, description="The server's name of the model.", examples=["gpt-4o"])
    key: Annotated[KeyVariable | None, NOTHING] = _KEY
    prices: PricesConfig | None = Field(
        default=None, description="Prices of tokens; null: only requests and tokens are counted."
    )
    currency: str = Field(default="USD", min_length=1, max_length=8, description="Currency of the prices.")
    budget: BudgetConfig = BudgetConfig()
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        exclude_if=lambda value: value is None,
        description="null: it is not sent.",
        examples=[0.9],
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**31,
        exclude_if=lambda value: value is None,
        description="Seed of the first request; each repeat and each new attempt adds 1; null: it is not sent.",
        examples=[1],
    )

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if self.budget.money is not None and self.prices is None:
            raise GateauError(
                "evaluation.judge", "budget.money needs prices: add prices: {prompt: …, reply: …}, per million tokens"
            )
        return self


class JudgeConfig(AskedConfig):
    """`evaluation.judge`: a model behind an OpenAI-compatible server.

    The model's name alone identifies the judge: the same name at another address reuses its replies.
    """

    place = "evaluation.judge"
    replies_folder = "_judge_replies"
    doing = "judging"
    less = "judge less: fewer variants, questions or repeats"

    # Unlike the generator's, both are in the fingerprint of stored reports.
    base_url: Annotated[ServerAddress, Affects("report")] = _BASE_URL
    key: Annotated[KeyVariable | None, Affects("report")] = _KEY
    repeats: int = Field(default=1, ge=1, le=100, description="Number of judgments of each answer; their mean counts.")
    pairs: list[Pair] = Field(
        default=[],
        description="Pairs of variants whose answers are compared, in both orders, by benchmarks that support it: "
        "[[robust-0.1, full]].",
        examples=[[["robust-0.1", "full"]]],
    )
    characteristics: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Number of best and of worst samples, by the score of selection.method, that the judge rates; "
        "GATEAU rates 100.",
        examples=[50],
    )

    @model_validator(mode="after")
    def _different(self) -> Self:
        if same := next((pair for pair in self.pairs if pair[0] == pair[1]), None):
            raise GateauError(
                "evaluation.judge",
                f"pairs: [{same[0]}, {same[1]}] compares a variant with itself: name two variants",
            )
        return self
