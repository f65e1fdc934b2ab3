"""Explain a sample's score: which segments of its context raised which tokens of its response.

The map is made of rows of `cam` and `perplexity/<model>`, the sample's texts and the tokenizer. No model runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.models.prompt import response_offsets, token_offsets
from gateau_dagster.scoring.segments import cut_segments
from gateau_dagster.selection.evidence import NAMED_GAIN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Row = Mapping[str, Any]

CAM_COLUMNS = (
    "sample_id", "digest", "segment_perplexity", "segment_attention", "near_segments", "no_context_probability",
    "near_probability", "far_probability", "far_segment", "segment_gain",
)  # fmt: skip
PERPLEXITY_COLUMNS = ("sample_id", "digest", "token_probability", "context_tokens", "truncated_tokens")


@dataclass(frozen=True, kw_only=True)
class EvidenceRows:
    """A sample's rows: `cam` with CAM_COLUMNS, `short` and `long` of theta_A and theta_B with PERPLEXITY_COLUMNS.

    short: None if theta_A has no row of the sample.
    """

    cam: Row
    long: Row
    short: Row | None


@dataclass(frozen=True, kw_only=True)
class EvidenceSegment:
    """Segment s_i of the context that theta_B saw, and what it adds.

    index: from 0, as in the tables.
    start, end: characters of the context; a segment ends where the next one starts.
    tokens: number of the context's tokens in it.
    near: whether theta_A saw any of it.
    gain: `cam.segment_gain`, in probability, summed over the response tokens.
    attention: the raw mean of Eq. 4; None if it was not observed.
    perplexity: of the response given this segment alone; None, and no gain, if screening left the segment out.
    named: whether some response token depends on it and on nothing near; see NAMED_GAIN.
    """

    index: int
    start: int
    end: int
    tokens: int
    near: bool
    gain: float
    perplexity: float | None
    attention: float | None
    named: bool


@dataclass(frozen=True, kw_only=True)
class EvidenceToken:
    """A response token y_t, and its probability p(y_t | …, x, y_<t).

    text: with the preceding characters that belong to no token, so that all texts together are the response.
    short: under theta_A, within its window; None if it has no figures.
    none, near, far, full: under theta_B without context; given the best near (or no) segment alone; given the best far
        one alone; given everything.
    gain: max(0, far - near).
    segment: the far segment behind `gain`; None if `gain` is 0.
    """

    text: str
    short: float | None
    none: float
    near: float
    far: float
    full: float
    gain: float
    segment: int | None

    @property
    def named(self) -> bool:
        """Return whether the token depends on its segment and on nothing near."""
        return self.segment is not None and self.gain >= NAMED_GAIN


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence map of a sample.

    unseen: characters at the context's start that no model saw.
    window: the first character of the context that theta_A saw; None if it has no figures.
    """

    sample: Sample
    segments: Sequence[EvidenceSegment]
    tokens: Sequence[EvidenceToken]
    unseen: int
    window: int | None

    @property
    def named(self) -> list[int]:
        """Return the segments that the map names, ascending."""
        return [segment.index for segment in self.segments if segment.named]


def check_version(table: str, row: Row, sample: Sample) -> None:
    """Raise GateauError if a table's row is of other texts than the sample's."""
    if row["digest"] != sample.digest:
        raise GateauError(
            "storage.out_of_date",
            f"{table}: sample {sample.sample_id} is another version there: run `{gateau_command('run')}`",
        )


def evidence(
    sample: Sample,
    rows: EvidenceRows,
    tokenizer: PreTrainedTokenizerBase,
    *,
    segment_length: int,
    template: Template = "gateau",
) -> Evidence:
    """Return the evidence map of a sample.

    Args:
        sample: the texts that the rows describe.
        rows: of the tables.
        tokenizer: theta_B's, and so theta_A's.
        segment_length: `scoring.segment_length`, in tokens.
        template: `scoring.template`.

    Raises:
        GateauError: the rows do not match these texts or this tokenizer, or it does not give token offsets.
    """
    for name, row in (("cam", rows.cam), ("perplexity/long", rows.long), ("perplexity/short", rows.short)):
        if row is not None:
            check_version(name, row, sample)
    context = token_offsets(tokenizer, sample.context)
    response = response_offsets(tokenizer, sample, template)
    _check_tokens(sample, rows, len(context), len(response), segment_length)
    tokens = _tokens(sample.response, response, rows)
    cut = rows.long["truncated_tokens"]
    short = rows.short
    window = None if short is None else _character(sample.context, context, short["truncated_tokens"])
    unseen = _character(sample.context, context, cut)
    return Evidence(
        sample=sample,
        segments=_segments(sample.context, context, cut, rows.cam, segment_length, named_segments(tokens)),
        tokens=tokens,
        unseen=unseen if window is None else min(unseen, window),
        window=window,
    )


def named_segments(tokens: Sequence[EvidenceToken]) -> set[int]:
    """Return the segments that some token depends on."""
    return {token.segment for token in tokens if token.segment is not None and token.named}


def _check_tokens(sample: Sample, rows: EvidenceRows, context: int, response: int, segment_length: int) -> None:
    seen = context - rows.long["truncated_tokens"]
    wanted = (rows.long["context_tokens"], len(rows.long["token_probability"]), len(rows.cam["segment_gain"]))
    found = (seen, response, len(cut_segments(max(seen, 0), segment_length)))
    for name, one, other in zip(("context tokens", "response tokens", "segments"), wanted, found, strict=True):
        if one != other:
            raise GateauError(
                "storage.out_of_date",
                f"cam: sample {sample.sample_id} was scored with {one} {name}, but its texts have {other} by the "
                "tokenizer of models.long, so the model's folder may have changed. Update the tables with "
                f"`{gateau_command('run')}`",
            )


def _character(text: str, offsets: Sequence[tuple[int, int]], token: int) -> int:
    """Return the character at which a token starts; the first token includes what precedes it."""
    if token == 0:
        return 0
    return offsets[token][0] if token < len(offsets) else len(text)


def _segments(
    text: str, offsets: Sequence[tuple[int, int]], cut: int, cam: Row, segment_length: int, named: set[int]
) -> list[EvidenceSegment]:
    """Return the segments behind the first `cut` tokens, which theta_B did not see; they cover the rest of the text."""
    spans = cut_segments(len(offsets) - cut, segment_length)
    starts = [_character(text, offsets, cut + begin) for begin, _ in spans]
    ends = [*starts[1:], len(text)]
    near = len(spans) - cam["near_segments"]
    attention = cam["segment_attention"] or [None] * len(spans)
    return [
        EvidenceSegment(
            index=index,
            start=starts[index],
            end=ends[index],
            tokens=last - first,
            near=index >= near,
            gain=cam["segment_gain"][index] or 0.0,
            perplexity=cam["segment_perplexity"][index],
            attention=attention[index],
            named=index in named,
        )
        for index, (first, last) in enumerate(spans)
    ]


def _tokens(text: str, offsets: Sequence[tuple[int, int]], rows: EvidenceRows) -> list[EvidenceToken]:
    cam, count = rows.cam, len(offsets)
    short = [None] * count if rows.short is None else rows.short["token_probability"]
    ends = [0, *(end for _, end in offsets)]
    ends[-1] = len(text)
    columns = ("no_context_probability", "near_probability", "far_probability", "far_segment")
    none, near, far, segment = (cam[name] for name in columns)
    return [
        EvidenceToken(
            text=text[ends[place] : ends[place + 1]],
            # A theta_A of another family has different tokens.
            short=short[place] if len(short) == count else None,
            none=none[place],
            near=near[place],
            far=far[place],
            full=rows.long["token_probability"][place],
            gain=max(0.0, far[place] - near[place]),
            segment=segment[place],
        )
        for place in range(count)
    ]
