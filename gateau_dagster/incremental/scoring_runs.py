"""What one model computes of a shard's samples: the tables of GATEAU's pair, or a table that a method brings along."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from gateau_dagster.config import Config
from gateau_dagster.data.sample import Reject
from gateau_dagster.incremental.shard_work import Asked, Outcomes, Row
from gateau_dagster.incremental.short_sight import short_sight
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.methods.sample_table import Running, SampleTable

if TYPE_CHECKING:
    from gateau_dagster.scoring.effort import Meter, Work
    from gateau_dagster.scoring.loading import LoadedModel
    from gateau_dagster.scoring.scorer import Outcome, Request

CAM = "cam"


class ScoringRun(Protocol):
    """The scoring of one shard's samples with a loaded model."""

    @property
    def works(self) -> "Mapping[str, Work]":
        """The tokens and FLOPs of each asset so far."""
        ...

    def outcomes(self, asked: Iterable[Asked]) -> Generator[Outcomes]:
        """In order, for each sample a row or a reject for each asset that asks for it."""
        ...


def start_run(config: Config, model: str, loaded: "LoadedModel", assets: Sequence[str]) -> ScoringRun:
    """What computes these assets, which one step makes with one model."""
    from gateau_dagster.scoring.effort import Meter, Work
    from gateau_dagster.scoring.loading import effective_max_length

    table = sample_tables(config).get(assets[0])
    causal = config.models[model].task == "causal"
    length = effective_max_length(loaded, config.models[model], config.scoring) if causal else config.scoring.max_length
    if table is None:
        return PairRun(config=config, model=model, loaded=loaded, length=length, meter=Meter(), cam=CAM in assets)
    assert len(assets) == 1
    sight = short_sight(config) if table.needs_sight else None
    running = Running(max_length=length, scoring=config.scoring, work=Work(), sight=sight)
    return TableRun(table=table, loaded=loaded, running=running)


@dataclass(frozen=True, kw_only=True)
class PairRun:
    """`perplexity/<model>` and `cam`; one pass serves both."""

    config: Config
    model: str
    loaded: "LoadedModel"
    length: int
    meter: "Meter"
    cam: bool

    @property
    def works(self) -> "Mapping[str, Work]":
        """See ScoringRun."""
        return {f"perplexity/{self.model}": self.meter.perplexity, CAM: self.meter.cam}

    def outcomes(self, asked: Iterable[Asked]) -> Generator[Outcomes]:
        """See ScoringRun."""
        from gateau_dagster.scoring.scorer import score_samples

        scoring, requests = self.config.scoring, map(_request, asked)
        sight = short_sight(self.config) if self.cam else None
        found = score_samples(
            self.loaded, requests, max_length=self.length, scoring=scoring, meter=self.meter, sight=sight
        )
        with closing(found):  # pyright: ignore[reportArgumentType]
            for outcome in found:
                yield _by_asset(outcome, f"perplexity/{self.model}")


@dataclass(frozen=True, kw_only=True)
class TableRun:
    """A table of a method."""

    table: SampleTable
    loaded: "LoadedModel"
    running: Running

    @property
    def works(self) -> "Mapping[str, Work]":
        """See ScoringRun."""
        return {self.table.asset: self.running.work}

    def outcomes(self, asked: Iterable[Asked]) -> Generator[Outcomes]:
        """See ScoringRun."""
        from gateau_dagster.scoring.kept_memory import kept_memory

        with kept_memory(self.loaded.device):
            for row in self.table.score(self.loaded, (each.sample for each in asked), self.running):
                yield {self.table.asset: row}


def _request(asked: Asked) -> "Request":
    from gateau_dagster.scoring.scorer import Request

    perplexity = any(asset != CAM for asset in asked.assets)
    return Request(sample=asked.sample, perplexity=perplexity, cam=CAM in asked.assets)


def _by_asset(outcome: "Outcome", perplexity: str) -> Mapping[str, Row | Reject]:
    given = {perplexity: outcome.perplexity, CAM: outcome.cam}
    return {asset: one if isinstance(one, Reject) else asdict(one) for asset, one in given.items() if one is not None}
