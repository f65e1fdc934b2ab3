"""The maps of methods that read spans: what each stretch of a context adds to the sample's score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.methods.spans import Spans
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.models.token_offsets import token_offsets
from gateau_dagster.report.evidence import Evidence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_UNLIMITED = 2**62  # tokens


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Characters [start, end) of a context, and what they add to the score."""

    start: int
    end: int
    added: float


@dataclass(frozen=True, kw_only=True)
class SpanStrip:
    """A sample's map by methods that share it. adds: to what, see SpanMap. elsewhere: what instruction and response
    add.
    """

    methods: Sequence[str]
    adds: str
    sample: Sample
    stretches: Sequence[Stretch]
    elsewhere: float


def segment_strip(methods: Sequence[str], adds: str, found: Evidence, spans: Spans) -> SpanStrip:
    """Of spans of the context, which are its map's segments."""
    stretches = [
        Stretch(start=segment.start, end=segment.end, added=added)
        for segment, added in zip(found.segments, spans.added, strict=True)
    ]
    return SpanStrip(methods=methods, adds=adds, sample=found.sample, stretches=stretches, elsewhere=0.0)


def prompt_strip(
    methods: Sequence[str],
    adds: str,
    sample: Sample,
    spans: Spans,
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
) -> SpanStrip:
    """Of spans of the scoring prompt; a span that holds some of the context is shown as that part of it.

    Raises:
        GateauError: the spans are not of this sample by this tokenizer.
    """
    whole = build_prompt(tokenizer, sample, max_length=_UNLIMITED, template=template)
    bos = int(spans.of == "prompt without bos" and whole.prefix[:1] == (tokenizer.bos_token_id,))
    before = len(whole.prefix) - bos
    dropped = whole.length - bos - spans.tokens
    if not 0 <= dropped <= len(whole.context):
        raise GateauError(
            f"{methods[0]}: sample {sample.sample_id} was measured with {spans.tokens} tokens, but its prompt has "
            f"{whole.length - bos} by that tokenizer: bring the tables up to date with `{gateau_command('run')}`"
        )
    # Tokens of the context that was seen, whose places begin behind the prefix.
    offsets = token_offsets(tokenizer, sample.context)[dropped:]
    stretches = [*_stretches(sample.context, offsets, spans, before)]
    elsewhere = sum(spans.added) - sum(one.added for one in stretches)
    return SpanStrip(methods=methods, adds=adds, sample=sample, stretches=stretches, elsewhere=elsewhere)


def _stretches(text: str, offsets: Sequence[tuple[int, int]], spans: Spans, before: int) -> Iterator[Stretch]:
    for number, added in enumerate(spans.added):
        begin = spans.first + number * spans.length - before
        first, last = max(begin, 0), min(begin + spans.length, len(offsets))
        if first < last:
            end = offsets[last][0] if last < len(offsets) else len(text)
            yield Stretch(start=offsets[first][0], end=end, added=added)
