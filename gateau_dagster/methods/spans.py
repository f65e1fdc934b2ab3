"""Define what the spans of a sample's text add to its score under a method: the method's own evidence map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from gateau_dagster.config import Config

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Spans:
    """The amounts that the spans of a sample add to its score.

    of: the text that was cut into spans: the whole scoring prompt with the response and without the model's opening
    ('prompt'), the same without its bos ('prompt without bos'), or the truncated context ('context'). tokens: length of
    that text. first: the token at which the first span begins. length: tokens of a span; the last may be shorter.
    added: one value per span, in order; their sum is the score, or the term of it that `SpanMap.adds` names.
    """

    of: Literal["prompt", "prompt without bos", "context"]
    tokens: int
    first: int
    length: int
    added: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class SpanMap:
    """The place from which a method's spans are read.

    table: the table whose rows are read. model: key of `models`, whose tokens the spans count. adds: the name of the
    sum, for a reader. spans: maps a row to its spans; None if the method cannot score the sample.
    """

    table: str
    model: str
    adds: str
    spans: Callable[[Row], Spans | None]


def no_span_map(config: Config, options: Any) -> SpanMap | None:
    """Return None, for a method that reads no spans, or whose sum over them has no meaning."""
    del config, options
