"""Score pieces of shards with one loaded model, save their rows, and measure the effort."""

# What it does: one loop per piece. A sample is requested once for all tables that lack its row. The model is loaded
# when the first piece has samples, and stays for the next. A row goes to the checkpoints of its table as it comes.
#
# The order in which the loop ends matters. ExitStack closes the outcomes first, so that no other sample begins. Then
# each table's checkpoints save their waiting rows, also after an error.
#
# What it costs: rows are written in groups, so a kill loses one group at most, and the batch that is on the device.
# Each group is a small file until the shard's table is written. One shard's texts stay in memory, because its pieces
# follow each other.
#
# When another way is better: a table that is written once per shard needs no groups, and is enough where a shard takes
# seconds. Here a shard of long samples may take hours. One piece per shard is best for one worker. Several workers on
# one shard need pieces, which resources/pools hands out.

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.data.sample import Reject
from gateau_dagster.execution.shard_tables import (
    Effort,
    Piece,
    PieceResult,
    ShardResult,
    TableWork,
    checkpoints,
    finish_shard,
    samples_of,
)
from gateau_dagster.models.model_facts import visible_tokens
from gateau_dagster.scoring.sample_table import Outcomes, RequestedRow, Running, SampleTable
from gateau_dagster.storage import Store

if TYPE_CHECKING:
    from gateau_dagster.models.loaded import LoadedModel


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """The progress within a shard or a piece of it.

    scored: samples. share: of the text that is to be scored. tokens: that passed the model. seconds: of scoring. Tokens
    and seconds grow while a long sample is scored; the other two do not.
    """

    shard: str
    scored: int
    share: float
    tokens: int
    seconds: float


Report = Callable[[ShardReport], None]


_SECONDS_BETWEEN_PASSES = 1.0
"""The least time between reports of passes; each finished sample is reported."""


def ignore(sample_id: str) -> None:
    """Ignore the begun sample."""
    del sample_id


class ShardScorer:
    """Scores pieces with one model, one after the other.

    Args:
        tables: returns the declared tables by asset.
        load: returns the model, the same one each time; called for each piece that has samples.
        report: receives the progress with a piece after each sample, and during long ones.
        begin: receives each sample's id before it is scored; maybe in a thread.
    """

    def __init__(
        self,
        config: Config,
        tables: Callable[[], Mapping[str, SampleTable]],
        model: str,
        load: "Callable[[], LoadedModel]",
        report: Report,
        begin: Callable[[str], object] = ignore,
    ) -> None:
        self._config, self._known_tables, self._model, self._load = config, tables, model, load
        self._report, self._begin = report, begin
        self._texts: tuple[str, pl.DataFrame] | None = None
        self._passed: Callable[[], object] | None = None

    def shard(self, store: Store, shard: Piece) -> dict[str, ShardResult]:
        """Score a whole shard, and make its tables."""
        return finish_shard(store, shard, [self.score(store, shard)])

    def score(self, store: Store, piece: Piece) -> PieceResult:
        """Score a piece; however the work ends, its rows are saved. Others may save rows of the shard meanwhile.

        A sample whose row several tables need is scored once for all of them.

        Raises:
            GateauError: reading or writing the store failed.
        """
        # A piece whose rows all exist loads no model: removing a sample must cost no more than writing the table again.
        if not piece.lacking:
            return PieceResult()
        # The texts of the last shard are kept, since its pieces follow each other. They are dropped before others are
        # read, so that two shards are never in memory.
        if self._texts is None or self._texts[0] != piece.shard:
            self._texts = None
            self._texts = piece.shard, store.read("raw_long_sft", piece.shard)
        samples = self._texts[1].filter(pl.col("sample_id").is_in([*piece.lacking]))
        # The bytes of a sample's text, at least one: scoring time is roughly proportional to them.
        length = pl.sum_horizontal(pl.col("context", "instruction", "response").str.len_bytes())
        sizes = samples.select(size=1 + length)["size"].to_list()
        total, done, seconds = sum(sizes), 0, 0.0
        scored, begun, reported = 0, 0.0, 0.0
        counts = {work.asset: 0 for work in piece.works}
        rejects: dict[str, list[Reject]] = {asset: [] for asset in counts}

        def report(seconds: float) -> None:
            nonlocal reported
            reported = time.perf_counter()
            self._report(
                ShardReport(shard=piece.shard, scored=scored, share=done / total, tokens=self._tokens, seconds=seconds)
            )

        def passed() -> None:
            # A sample of many segments may take minutes, in which the run would seem to be stuck.
            if (now := time.perf_counter()) - reported >= _SECONDS_BETWEEN_PASSES:
                report(seconds + now - begun)

        with ExitStack() as ending:
            # Entered before the model is loaded and before `_outcomes`: ExitStack closes in reverse, so the rows are
            # saved last.
            partial = {work.asset: checkpoints(store, piece.shard, work) for work in piece.works}
            for each in partial.values():
                ending.callback(each.close)
            self._passed = passed
            self._prepare(piece.works)
            outcomes = ending.enter_context(closing(self._outcomes(self._requests(samples, piece))))
            for size in sizes:
                begun = time.perf_counter()
                # Samples and outcomes go in step, because outcomes come in the order of the samples. The model is ahead
                # of this loop by the batches that are under way.
                rows = next(outcomes, {})
                seconds += time.perf_counter() - begun  # without the time for saving them
                for asset, row in rows.items():
                    counts[asset] += 1
                    if isinstance(row, Reject):
                        rejects[asset].append(row)
                    else:
                        partial[asset].add(row)
                # By bytes of text and not by samples, since one long sample may take as long as a hundred short ones.
                done += size
                scored += 1
                report(seconds)
        wanted = {asset: sum(asset in assets for assets in piece.lacking.values()) for asset in counts}
        # Before the result leaves: a sample that got neither a row nor a reject would be missing from the table without
        # a trace.
        assert counts == wanted, "every sample is scored or rejected"
        computed = {asset: counts[asset] - len(rejects[asset]) for asset in counts}
        return PieceResult(computed=computed, rejects=rejects, effort=self._effort(counts, seconds))

    def _requests(self, samples: pl.DataFrame, piece: Piece) -> Iterator[RequestedRow]:
        for sample in samples_of(samples):
            self._begin(sample.sample_id)
            yield RequestedRow(sample=sample, assets=piece.lacking[sample.sample_id])

    def _prepare(self, works: Sequence[TableWork]) -> None:
        """Load the model, and begin to measure the piece."""
        from gateau_dagster.models.loaded import ForwardWork
        from gateau_dagster.models.loading import effective_max_length
        from gateau_dagster.models.memory import PeakMemory

        config, section = self._config, self._config.models[self._model]
        # Once per piece, but the same model each time. Its measures begin anew with each piece, so that its effort can
        # be added to that of others.
        self._loaded = self._load()
        length = config.scoring.max_length
        if section.task == "causal":
            length = effective_max_length(self._loaded, section, config.scoring)
        known = self._known_tables()
        self._tables = [known[work.asset] for work in works]
        self._running = {
            table.asset: Running(
                max_length=length,
                scoring=config.scoring,
                work=ForwardWork(added=self._passed),
                visible_tokens=visible_tokens(config) if table.needs_visible_window else None,
            )
            for table in self._tables
        }
        self._memory = PeakMemory(self._loaded.device)

    def _outcomes(self, requests: Iterator[RequestedRow]) -> Generator[Outcomes]:
        from gateau_dagster.models.memory import retained_memory

        first = self._tables[0]
        with retained_memory(self._loaded.device):
            # A piece has several tables only if one pass makes them: see `SampleTable.shared`.
            if len(self._tables) > 1:
                assert first.shared is not None
                yield from first.shared.score(self._loaded, requests, self._running)
            else:
                samples = (each.sample for each in requests)
                for row in first.score(self._loaded, samples, self._running[first.asset]):
                    yield {first.asset: row}

    @property
    def _tokens(self) -> int:
        return sum(running.work.tokens for running in self._running.values())

    def _effort(self, samples: Mapping[str, int], seconds: float) -> Effort:
        """Return `Stamp.effort` of the piece by asset; the seconds of a common pass are divided by FLOPs."""
        from gateau_dagster.models.devices import matrix_product_speed

        device = str(self._loaded.device)
        common = {
            "peak_memory": self._memory.read(),
            "peak_memory_since_start": self._memory.since_start,
            "device": device,
            "matrix_product_speed": matrix_product_speed(device, self._config.scoring.dtype),
        }
        works = {asset: self._running[asset].work for asset, number in samples.items() if number}
        # Seconds cannot be measured per table, as their passes share batches. FLOPs divide them well: all run on one
        # device.
        total = sum(work.flops for work in works.values())
        return {
            asset: {
                "samples": samples[asset],
                "tokens": work.tokens,
                "flops": work.flops,
                "seconds": seconds * (work.flops / total if total else 1 / len(works)),
                **common,
            }
            for asset, work in works.items()
        }
