"""What the stretches of a sample's text add to its score under a method: the method's own evidence map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from gateau_dagster.config import Config

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Spans:
    """What each span of a sample adds to its score.

    of: what was cut into spans: the whole scoring prompt with the response and without the model's opening ('prompt'),
        that without its bos ('prompt without bos'), or the truncated context ('context').
    tokens: of that. first: the token at which the first span begins. length: tokens of a span; the last may be shorter.
    added: of each span, in order; together they are the score, or the term of it that `SpanMap.adds` names.
    """

    of: Literal["prompt", "prompt without bos", "context"]
    tokens: int
    first: int
    length: int
    added: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class SpanMap:
    """Where a method's spans are read.

    table: whose rows. model: key of `models`, whose tokens they count. adds: to what, for a reader.
    spans: of a row; None where the method cannot score the sample.
    """

    table: str
    model: str
    adds: str
    spans: Callable[[Row], Spans | None]


def no_span_map(config: Config, options: Any) -> SpanMap | None:
    """Of a method that reads no spans, or one whose sum over them means nothing."""
    del config, options
