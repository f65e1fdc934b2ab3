"""Results of a comparison of methods and its sweeps, as one record that is stored as JSON."""

import json
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from gateau_dagster.errors import GateauError


@dataclass(frozen=True, kw_only=True)
class Point:
    """A ranking at one value of a parameter, against the configured ranking.

    `spearman`: correlation of the two orders, None for a single sample. `overlap`: share of common samples among the
    first `chosen`. `auroc`: of "needs far context"; None without a ground truth.
    """

    value: float
    spearman: float | None
    overlap: float
    auroc: float | None


@dataclass(frozen=True, kw_only=True)
class AlphaCurve:
    """One preset at each alpha."""

    preset: str
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class AlphaSweep:
    """Every preset over alpha, compared with the configured `preset` at the configured `alpha`."""

    preset: str
    alpha: float
    samples: int
    chosen: int
    curves: tuple[AlphaCurve, ...]


@dataclass(frozen=True, kw_only=True)
class SegmentLengthSweep:
    """The configured preset over segment lengths in tokens, compared with `configured` tokens.

    `single`: for each point, how many samples have fewer than two segments and rank last.
    """

    configured: int
    samples: int
    chosen: int
    points: tuple[Point, ...]
    single: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WindowPoint:
    """The choice at one window of theta_A in tokens; None: it sees the whole prompt.

    far_text, far, too_long: samples with far segments, whose response depends on one, and whose prompt without context
    does not fit. rule: that chose. chosen_far: of the `chosen` samples. common: the share of the stored choice that is
    chosen. jaccard: common samples divided by those of either choice. tokens: that theta_A reads.
    """

    window: int | None
    far_text: int
    far: int
    too_long: int
    rule: str
    chosen: int
    chosen_far: int
    common: float
    jaccard: float
    tokens: int


@dataclass(frozen=True, kw_only=True)
class WindowSweep:
    """The `stored` choice among `samples` samples, and the estimated ones of other windows, ascending."""

    samples: int
    stored: WindowPoint
    points: tuple[WindowPoint, ...]


@dataclass(frozen=True, kw_only=True)
class AttentionPoint:
    """Attention to segments of `length` tokens.

    `median_peak`: median over the samples of the largest segment mean divided by the mean of the whole context; 1 means
    that attention is spread evenly. `spearman`: correlation of the samples' peaks with those at the configured length;
    None where one side is constant.
    """

    length: int
    median_peak: float
    spearman: float | None


@dataclass(frozen=True, kw_only=True)
class AttentionSweep:
    """Peaks of the attention of `samples` samples, by segment length."""

    configured: int
    samples: int
    points: tuple[AttentionPoint, ...]


@dataclass(frozen=True, kw_only=True)
class FigureSpread:
    """Mean and quartiles of the `known` finite values of one figure."""

    known: int
    mean: float
    low: float
    median: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Figures of some samples; None for a figure that none of them has.

    `sources`: the share of each source, in the order of MethodComparison.sources.
    """

    samples: int
    context_tokens: FigureSpread | None
    response_tokens: FigureSpread | None
    perplexity: FigureSpread | None
    sources: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class MethodFacts:
    """Facts about one method; `best` is the profile of its best tenth.

    `auroc` ranks samples that the method cannot score last. `precision` is the share of samples that need far context
    among the method's first `chosen`. Both are None without a ground truth, or when the method scores nothing.
    """

    name: str
    title: str
    source: str
    scored: int
    best: Profile
    auroc: float | None
    precision: float | None


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Common samples among the first `wanted` of two methods.

    `overlap` is the number of `common` samples over the size of the larger set (a method may score fewer than
    `wanted`). `expected` is its mean when both sets are drawn at random from what each method scores. Both are None
    when a set is empty. `share` is `wanted` as a share of all samples, None for the selected number.
    """

    share: float | None
    wanted: int
    common: int
    overlap: float | None
    expected: float | None


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two methods, over the `common` samples that both score; a correlation is None where one side has no order."""

    first: str
    second: str
    common: int
    spearman: float | None
    kendall: float | None
    overlaps: tuple[Overlap, ...]


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The samples with `low` <= context tokens < `high` (None: no end), and how the methods agree on these alone.

    The pairs' overlaps are of the best tenth of the bucket; Kendall's tau is not computed.
    """

    low: int
    high: int | None
    samples: int
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, kw_only=True)
class Disputed:
    """A sample that methods rank far apart. `ranks`: by method, 1 is the best, None where it has no score.

    `spread` is the standard deviation of its rank shares, (rank - 1/2) / scored, over the methods that score it.
    """

    sample_id: str
    spread: float
    ranks: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class MethodComparison:
    """All methods on a data set of `samples` samples, `chosen` of which are selected by `selected_by`.

    `kendall_samples`: largest number of samples for Kendall's tau. `sources`: names of the shares in profiles.
    """

    samples: int
    chosen: int
    selected_by: str | None
    kendall_samples: int
    sources: tuple[str, ...]
    everything: Profile
    methods: tuple[MethodFacts, ...]
    pairs: tuple[Pair, ...]
    buckets: tuple[Bucket, ...]
    disputed: tuple[Disputed, ...]
    alpha: AlphaSweep | None = None
    segment_length: SegmentLengthSweep | None = None
    attention: AttentionSweep | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the methods' names, in the order given."""
        return tuple(facts.name for facts in self.methods)

    @property
    def reference(self) -> str:
        """Return the method that selects; the first one if no compared method does."""
        return self.selected_by or self.names[0]

    def to_json(self) -> str:
        """Return the record as one JSON object; no value in it is NaN or infinite."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "MethodComparison":
        """Return the record that `to_json` wrote. Raises GateauError for text that is not such a record."""
        try:
            return _ADAPTER.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the text"
            raise GateauError(
                "storage.out_of_date",
                f"the stored comparison of methods cannot be read ({place}: {first['msg']}): compute it again",
            ) from error


_ADAPTER = TypeAdapter(MethodComparison)


def spearman_matrix(names: tuple[str, ...], pairs: tuple[Pair, ...]) -> NDArray[np.float64]:
    """Return Spearman's rho of each pair of `names`, float64 [M, M]; 1 on the diagonal, NaN where it is undefined."""
    place = {name: number for number, name in enumerate(names)}
    matrix = np.full((len(names), len(names)), np.nan)
    np.fill_diagonal(matrix, 1.0)
    for pair in pairs:
        row, column = place[pair.first], place[pair.second]
        matrix[row, column] = matrix[column, row] = np.nan if pair.spearman is None else pair.spearman
    return matrix
