"""Far gain: score how much likelier each response token is given far context than given near text, as a probability.

The method reads per-token columns of the tables: p_A and p_B (`token_probability` of theta_A and theta_B given the
whole prompt), and near_t and the largest far p_t of `cam`. The far-segment gain follows from the latter as in
scoring.segments.far_gain:

    long-model gain = mean_t [p_B(y_t|c,x) - p_A(y_t|c within W,x)]
    score = alpha · long-model gain + (1 - alpha) · far-segment gain

Both are probabilities, so nothing is normalised and a sample's score depends only on that sample.
scoring.segments.near_and_far defines what is near. The far-segment gain is 0 if nothing is far: without context, or if
the only segment is near. A single segment of which theta_A sees no token is far, and counts.

With the default `top` and equal alpha, preset `robust` of `gateau` ranks alike, with one exception. It gives samples
with fewer than two segments no far-segment gain, even if the single segment is far, and ranks them after all others.
"""

# What it costs: nothing beside the tables of the pair, and a sort per response. A score depends on one sample only. So
# an edit costs one shard, where a method with a normalisation over the data set computes all scores again.
#
# When another way is better: `information_gain` and `far_gain_hmp` need no segments, and so only one pass of each
# model. They do not show which text helped. docs/evidence/real_text_methods.md compares all methods on real text.

from typing import ClassVar

import polars as pl
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.methods.method import Method, Reads, Tables
from gateau_dagster.methods.token_contrast import SHARED, check_same_version, same_sight, token_pairs
from gateau_dagster.scoring.segments import TOP_SHARE, counted_tokens

SHORT, LONG, CAM = "perplexity/short", "perplexity/long", "cam"
_NEAR, _FAR = "near_probability", "far_probability"
_ROWS = 2**15  # rows per block: their tokens are copied as float64


class FarGainOptions(Section):
    """The share of tokens that count."""

    top: float = Field(default=TOP_SHARE, gt=0, le=1, description="Share of the response tokens whose gain counts.")


class BothOptions(FarGainOptions):
    """The share of tokens that count, and the weight of the two parts."""

    alpha: float = Field(
        default=0.5, ge=0, le=1, description="Weight of the long-model gain; the rest is the far-segment gain's."
    )


def far_gain(cam: pl.DataFrame, *, top: float) -> pl.DataFrame:
    """Return `sample_id`, `fg` f64 in [0, 1]: the far-segment gain of each row of `cam` (`sample_id`,
    `near_probability`, `far_probability`).

    It is 0 if nothing is far, that is, if `far_probability` is zero; the number of segments does not matter.
    """
    near, far = (pl.col(name).cast(pl.List(pl.Float64)) for name in (_NEAR, _FAR))
    parts = [cam.select("sample_id", fg=pl.lit(None, pl.Float64)).clear()]
    for part in cam.iter_slices(_ROWS):
        counted = pl.Series(counted_tokens(part[_NEAR].list.len().to_numpy(), top=top))
        # The largest differences are the largest gains, so only those taken need clipping.
        parts.append(
            part.select("sample_id", gains=(far - near).list.sort(descending=True), counted=counted)
            .select("sample_id", gains=pl.col("gains").list.head(pl.col("counted")))
            .select("sample_id", fg=pl.col("gains").list.eval(pl.element().clip(lower_bound=0.0)).list.mean())
        )
    return pl.concat(parts)


def probability_guidance(short: pl.DataFrame, long: pl.DataFrame) -> pl.DataFrame:
    """Return `sample_id`, `hmp` f64 in [-1, 1]: the long-model gain of the samples of both tables (`sample_id`,
    `token_probability`).

    Raises GateauError as `token_pairs` does.
    """
    means = pl.col("long").list.mean() - pl.col("short").list.mean()
    return token_pairs(short, long).select("sample_id", hmp=means)


class _Gain(Method):
    """A score from per-token columns of one version of each sample."""

    per_sample = True
    assets: ClassVar[tuple[str, ...]]

    def reads(self) -> Reads:
        return {asset: ["sample_id", "digest", *([_NEAR, _FAR] if asset == CAM else [SHARED])] for asset in self.assets}

    def warnings(self, accepted: pl.DataFrame) -> list[str]:
        return same_sight(self.config) if SHORT in self.assets else []


class FarGain(_Gain):
    """Score by the weighted sum of both gains."""

    name = "far_gain"
    title = "Far segments make tokens of the response likelier than near text does, and the long model uses them."
    source = "Ours: long-model and far-segment gain, weighted"
    assets = (SHORT, LONG, CAM)
    options: BothOptions

    def score(self, tables: Tables) -> pl.DataFrame:
        check_same_version({asset: tables[asset] for asset in self.assets})
        gain = far_gain(tables[CAM], top=self.options.top)
        both = probability_guidance(tables[SHORT], tables[LONG]).join(gain, on="sample_id")
        alpha = self.options.alpha
        return both.select("sample_id", score=alpha * pl.col("hmp") + (1 - alpha) * pl.col("fg"))


class FarGainAlone(_Gain):
    """Score by the far-segment gain."""

    name = "far_gain_fg"
    title = "Some far segment alone makes tokens of the response likelier than any near text does; 0 if none is far."
    source = "Ours: far-segment gain alone"
    assets = (CAM,)
    options: FarGainOptions

    def score(self, tables: Tables) -> pl.DataFrame:
        return far_gain(tables[CAM], top=self.options.top).rename({"fg": "score"})


class ProbabilityGuidance(_Gain):
    """Score by the long-model gain."""

    name = "far_gain_hmp"
    title = "The long model gives the response's tokens a higher probability than the short one does."
    source = "Ours: long-model gain alone"
    assets = (SHORT, LONG)

    def score(self, tables: Tables) -> pl.DataFrame:
        check_same_version({asset: tables[asset] for asset in self.assets})
        return probability_guidance(tables[SHORT], tables[LONG]).rename({"hmp": "score"})
