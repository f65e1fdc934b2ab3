"""The section about the model that judges answers: where it is, what it costs, and how much of it may be spent."""

from __future__ import annotations

from typing import Annotated, Literal, get_args
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, model_validator

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import KeyVariable

_MOST_REQUESTS = 10_000_000
Characteristic = Literal["coherence", "necessity", "faithfulness", "helpfulness", "complexity"]
CHARACTERISTIC_NAMES: tuple[Characteristic, ...] = get_args(Characteristic)
Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


def _server_address(text: str) -> str:
    """An http address without credentials. Raises ValueError, which does not show what was given."""
    parts = urlsplit(text.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname or not _can_be_asked(parts):
        raise ValueError("is no http:// or https:// address: give one such as https://api.openai.com/v1")
    if parts.username or parts.password or parts.query:
        raise ValueError("holds credentials, or what looks like them: the key comes from the environment, see `key`")
    return text.strip().rstrip("/")


def _can_be_asked(parts: SplitResult) -> bool:
    try:
        return parts.port != 0 and not any(map(str.isspace, parts.geturl()))
    except ValueError:  # a port beyond all
        return False


class PricesConfig(Section):
    """What the server takes for a million tokens, in any currency."""

    prompt: float = Field(ge=0, description="Of what it reads.")
    reply: float = Field(ge=0, description="Of what it writes.")


class BudgetConfig(Section):
    """How much judging may take, over everything that the store holds of this judge; nothing runs above it."""

    requests: int | None = Field(default=None, ge=0, le=_MOST_REQUESTS, description="Requests in all.")
    money: float | None = Field(default=None, ge=0, description="In the currency of `prices`, which it needs.")


class JudgeConfig(Section):
    """`evaluation.judge`: a model behind an OpenAI-compatible server.

    The model's name alone decides what is asked again: the same name at another address is the same judge.
    """

    base_url: Annotated[str, AfterValidator(_server_address)] = Field(
        description="Of the server, such as https://api.openai.com/v1 or http://localhost:8000/v1."
    )
    model: str = Field(min_length=1, description="As the server names it.")
    key: KeyVariable | None = Field(
        default="OPENAI_API_KEY",
        description="The environment variable that holds the key; null: the server wants none.",
    )
    prices: PricesConfig | None = Field(default=None, description="Without them only requests and tokens are counted.")
    currency: str = Field(default="USD", min_length=1, max_length=8, description="Of the prices.")
    budget: BudgetConfig = BudgetConfig()
    repeats: int = Field(default=1, ge=1, le=100, description="Judgments of each answer; their mean counts.")
    concurrent: int = Field(default=8, ge=1, le=256, description="Requests at a time.")
    timeout: float = Field(default=120.0, gt=0, le=3600, description="Seconds that the server may be silent.")
    max_retries: int = Field(
        default=5, ge=0, le=100, description="After 429, 5xx and lost connections, with the pause that the server asks."
    )
    pairs: list[Pair] = Field(
        default=[],
        description="Variants whose answers are set against each other, in both orders, by benchmarks that can: "
        "[[robust-0.1, full]].",
    )
    characteristics: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Best and worst samples, so many of each by the score of selection.method, whose context, "
        "instruction and response are rated; GATEAU rates 100.",
    )
    token_limit: Literal["max_tokens", "max_completion_tokens"] = Field(
        default="max_tokens", description="How this server calls the limit of a reply's length."
    )

    @model_validator(mode="after")
    def _priced(self) -> JudgeConfig:
        if same := next((pair for pair in self.pairs if pair[0] == pair[1]), None):
            raise ValueError(f"pairs: [{same[0]}, {same[1]}] sets a variant against itself: name two variants")
        if self.budget.money is not None and self.prices is None:
            raise ValueError("budget.money needs prices: {prompt, reply}, per million tokens")
        return self
