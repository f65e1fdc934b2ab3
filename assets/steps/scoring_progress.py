"""Adds up what shards report while they are scored, here or in workers, and tells how long the rest takes."""

from collections.abc import Mapping, Sequence

from gateau_dagster.execution.shard_scorer import ShardReport
from gateau_dagster.execution.shard_tables import TableWork
from gateau_dagster.progress import TimedProgress


class ScoringProgress:
    """Samples/s, tokens/s and time left of a scoring step.

    Samples are of very uneven length, so the time left comes from the FLOPs planned for each shard and, within a shard,
    from the text scored so far. Only the time spent on scoring counts for the rates: no loading, no writing.

    Args:
        sizes: samples of every shard of the step, kept ones included.
        missing: the shards that have something to score, with what is planned for them.
        workers: processes that score side by side.
    """

    def __init__(
        self,
        progress: TimedProgress,
        *,
        sizes: Mapping[str, int],
        missing: Mapping[str, Sequence[TableWork]],
        workers: int,
    ) -> None:
        self._progress, self._sizes, self._workers = progress, sizes, workers
        self._weights = _weights(missing, sizes)
        self._reports: dict[str, ShardReport] = {}
        self._finished: set[str] = set()

    def start(self) -> None:
        """Said before the first model is loaded."""
        self._show("loading the model" if self._weights else "")

    def report(self, shard: ShardReport) -> None:
        """One more sample of a shard is done."""
        self._reports[shard.shard] = shard
        self._show(f"shard {shard.shard}")

    def finish(self, shard: str) -> None:
        """The shard's tables are written."""
        self._finished.add(shard)
        self._show(f"shard {shard}")

    def _show(self, note: str) -> None:
        reports = self._reports.values()
        open_ones = (found.progress.finished for shard, found in self._reports.items() if shard not in self._finished)
        done = sum(self._sizes.get(shard, 0) for shard in self._finished) + sum(open_ones)
        seconds = sum(found.seconds for found in reports) / self._workers
        share = sum(self._weights.get(shard, 0.0) * found.progress.share for shard, found in self._reports.items())
        left = seconds * (1 - share) / share if share and seconds else None
        if seconds:
            samples = sum(found.progress.scored for found in reports) / seconds
            tokens = sum(found.tokens for found in reports) / seconds
            note = f"{samples:,.1f} samples/s, {tokens:,.0f} tokens/s, {note}"
        self._progress(done, sum(self._sizes.values()), "samples", note, left=left)


def _weights(missing: Mapping[str, Sequence[TableWork]], sizes: Mapping[str, int]) -> dict[str, float]:
    """Each shard's part of the work, adding up to one: by planned FLOPs where all are known, else by samples."""
    sure: dict[str, float] = {}
    for shard, works in missing.items():
        flops = [work.planned.get("flops") for work in works]
        sure[shard] = float(sum(each for each in flops if each)) if all(flops) else 0.0
    if not all(sure.values()):
        sure = {shard: float(sizes.get(shard, 0)) for shard in missing}
    total = sum(sure.values())
    return {shard: weight / total for shard, weight in sure.items()} if total else {}
