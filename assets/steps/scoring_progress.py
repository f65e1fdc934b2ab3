"""Adds up what shards report while they are scored, here or in workers, and tells how long the rest takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
        self._total = sum(sizes.values())
        self._counted: dict[str, _Counted] = {}  # of each shard that was heard of, the part of the sum that is its own
        self._sum = _Counted()
        self._finished: set[str] = set()

    def start(self) -> None:
        """Said before the first model is loaded; until a first sample is done where workers load it elsewhere."""
        self._show("loading the model, then the first samples" if self._weights else "")

    def loaded(self) -> None:
        """The model is there, for every shard that needs it; said where nothing is scored yet."""
        if not self._sum.scored:
            self._show("scoring the first samples")

    def report(self, shard: ShardReport) -> None:
        """One more sample of a shard is done."""
        found = shard.progress
        weight = self._weights.get(shard.shard, 0.0)
        self._count(
            shard.shard,
            _Counted(
                done=self._sizes.get(shard.shard, 0) if shard.shard in self._finished else found.finished,
                scored=found.scored,
                tokens=shard.tokens,
                seconds=shard.seconds,
                share=weight * found.share,
            ),
        )
        self._show(f"shard {shard.shard}")

    def finish(self, shard: str) -> None:
        """The shard's tables are written."""
        self._finished.add(shard)
        found = self._counted.get(shard, _Counted())
        self._count(shard, replace(found, done=self._sizes.get(shard, 0)))
        self._show(f"shard {shard}")

    def _count(self, shard: str, now: "_Counted") -> None:
        """In place of what it was: a sum over all shards for each sample would take longer than scoring it."""
        self._sum = self._sum.plus(now, self._counted.get(shard, _Counted()))
        self._counted[shard] = now

    def _show(self, note: str) -> None:
        found = self._sum
        seconds = found.seconds / self._workers
        left = max(0.0, seconds * (1 - found.share) / found.share) if found.share and seconds else None
        if seconds:
            note = f"{found.scored / seconds:,.1f} samples/s, {found.tokens / seconds:,.0f} tokens/s, {note}"
        self._progress(found.done, self._total, "samples", note, left=left)


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """Samples that are done and those of them that were scored, tokens, seconds of scoring, share of all the work."""

    done: int = 0
    scored: int = 0
    tokens: int = 0
    seconds: float = 0.0
    share: float = 0.0

    def plus(self, now: "_Counted", before: "_Counted") -> "_Counted":
        """With `now` instead of `before`."""
        return _Counted(
            done=self.done + now.done - before.done,
            scored=self.scored + now.scored - before.scored,
            tokens=self.tokens + now.tokens - before.tokens,
            seconds=self.seconds + now.seconds - before.seconds,
            share=self.share + now.share - before.share,
        )


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
