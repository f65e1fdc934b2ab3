"""Show the progress of a step in two places: lines in the Dagster run, and the bar of the command line."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg
from dagster import DagsterInstance

from gateau_dagster.assets.steps.partitions import declared_name
from gateau_dagster.config import Config
from gateau_dagster.execution.shard_scorer import ShardReport
from gateau_dagster.progress import UNKNOWN, ProgressBoard, TimedProgress, rate_in_words

_SECONDS_BETWEEN_LINES = 10.0
_LONGEST_SILENCE = 14.0


class Voice:
    """A log throttle: it logs some of a step's reports, and a line at intervals while the step reports nothing.

    every: seconds between lines while there are reports. silence: the most seconds without a line.
    """

    def __init__(
        self, say: Callable[[str], object], *, every: float = _SECONDS_BETWEEN_LINES, silence: float = _LONGEST_SILENCE
    ) -> None:
        self._say, self._every, self._silence = say, every, silence
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._started = self._said = self._heard = time.monotonic()
        self._report: tuple[float, float | None, str, str, float | None] | None = None

    def hear(self, done: float, total: float | None, unit: str, note: str, left: float | None) -> None:
        """Receive a report of the step."""
        with self._lock:
            self._report, self._heard = (done, total, unit, note, left), time.monotonic()
            if self._heard - self._said >= self._every:
                self._speak()

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Log from a thread within the block, so that no silence exceeds the limit."""
        thread = threading.Thread(target=self._break_silence, daemon=True, name="step-voice")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _break_silence(self) -> None:
        while not self._ended.wait(max(0.01, self._said + self._silence - time.monotonic())):
            with self._lock:
                if time.monotonic() - self._said >= self._silence:
                    self._speak()

    def _speak(self) -> None:
        now = time.monotonic()
        if self._report is None:
            line = f"at work for {now - self._started:,.0f} s"
        else:
            done, total, unit, note, left = self._report
            left = left and max(0.0, left - (now - self._heard))
            line = progress_line(done, total, unit, note, now - self._started, left)
            silent = now - self._heard
            line += f"; the last progress was {silent:,.0f} s ago" if silent >= self._every else ""
        self._say(line)
        self._said = now


def progress_line(
    done: float, total: float | None, unit: str, note: str, seconds: float, left: float | None = None
) -> str:
    """Return `12/63 samples (19 %), 3.1 samples/s, 16 s left`; with `left`, the note must contain the rates."""
    share = f"/{total:,.0f} {unit} ({done / total:.0%})" if total else f" {unit}"
    rate = rate_in_words(done, seconds, unit) if left is None else ""
    rates = f", {rate}" if rate else ""
    if rate and total:
        left = (total - done) * seconds / done
    rest = f", {left:,.0f} s left" if left is not None and left != UNKNOWN else ""
    return f"{done:,.0f}{share}{rates}{rest}{', ' + note if note else ''}"


_SHOWN_FROM = 0.02


class ScoringProgress:
    """New samples, kept ones, samples/s, tokens/s and time left of a scoring step.

    Sample lengths vary widely, so the time left comes from the text that is scored, not from the samples. It is not
    shown before 2 % are scored, because a pass holds parts of many samples before the first is complete. It counts down
    until the next sample is complete. The rates leave out the time of loading and writing.

    Args:
        kept: number of samples whose rows are kept.
        missing: number of samples to score.
        work: characters to score, by shard.
        workers: processes that score side by side.
    """

    def __init__(
        self,
        progress: TimedProgress,
        *,
        kept: int,
        missing: int,
        work: Mapping[str, float],
        workers: int,
    ) -> None:
        self._progress, self._workers = progress, workers
        self._total, self._kept = missing, kept
        whole = sum(work.values()) or 1.0
        self._weights = {shard: text / whole for shard, text in work.items()}
        self._counted: dict[str, _Counted] = {}  # by shard, its part of the sum
        self._sum = _Counted()
        self._last = _Counted()  # as the last sample was complete

    def start(self) -> None:
        """Report the start before the first model is loaded; workers elsewhere report nothing until a first sample."""
        self._show("loading the model, then the first samples" if self._weights else "")

    def loaded(self) -> None:
        """Report that the model is loaded, unless something is scored already."""
        if not self._sum.scored:
            self._show("scoring the first samples")

    def report(self, shard: ShardReport) -> None:
        """Report a finished sample of a shard, or passes of one that is not finished."""
        now = _Counted(
            scored=shard.scored,
            tokens=shard.tokens,
            seconds=shard.seconds,
            share=self._weights.get(shard.shard, 0.0) * shard.share,
        )
        # By the difference: summing over all shards per sample would take longer than scoring it.
        self._sum = self._sum.plus(now, self._counted.get(shard.shard, _Counted()))
        self._counted[shard.shard] = now
        self._show(f"shard {shard.shard}")

    def finish(self, shard: str) -> None:
        """Report that the shard's tables are written."""
        self._show(f"shard {shard}")

    def _show(self, note: str) -> None:
        found = self._sum
        seconds = found.seconds / self._workers
        if found.scored != self._last.scored:
            self._last = found
        share, left = self._last.share, UNKNOWN
        if share >= _SHOWN_FROM and seconds:
            left = max(0.0, self._last.seconds / self._workers / share - seconds)
        if seconds:
            rates = rate_in_words(found.scored, seconds, "samples"), f"{found.tokens / seconds:,.0f} tokens/s"
            note = ", ".join([f"{found.tokens:,} tokens", *filter(None, rates), note])
        if self._kept:
            note = f"{self._kept:,} kept, {note}".removesuffix(", ")
        self._progress(found.scored, self._total, "new samples" if self._kept else "samples", note, left=left)


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """Scored samples, tokens, seconds of scoring, and the share of all work."""

    scored: int = 0
    tokens: int = 0
    seconds: float = 0.0
    share: float = 0.0

    def plus(self, now: "_Counted", before: "_Counted") -> "_Counted":
        """Return the sum with `now` instead of `before`."""
        return _Counted(
            scored=self.scored + now.scored - before.scored,
            tokens=self.tokens + now.tokens - before.tokens,
            seconds=self.seconds + now.seconds - before.seconds,
            share=self.share + now.share - before.share,
        )


def board_of(config: Config, run_id: str) -> ProgressBoard:
    """Return the board where the steps of a run show their progress."""
    return ProgressBoard(config.work_folder / "progress" / run_id)


def remove_old_boards(config: Config, instance: DagsterInstance) -> None:
    """Remove the boards of runs that have ended; others, started in the UI, may be at work."""
    for folder in (config.work_folder / "progress").glob("*"):
        run = instance.get_run_by_id(folder.name)
        if run is None or run.is_finished:
            shutil.rmtree(folder, ignore_errors=True)


def selected_assets(context: dg.AssetExecutionContext, prefix: Sequence[str]) -> list[str]:
    """Return the declared names of the assets that the step is asked for, in the order in which they are defined."""
    defined = context.assets_def.node_keys_by_output_name.values()
    return [declared_name(key, prefix) for key in defined if key in context.selected_asset_keys]


@contextmanager
def shown_progress(context: dg.AssetExecutionContext, config: Config, title: str) -> Iterator[TimedProgress]:
    """Yield the progress callback for a method; the run's log gets a line at least every 15 seconds."""
    voice = Voice(context.log.info)
    with board_of(config, context.run_id).step(title) as write, voice.speaking():

        def report(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
            write(done, total, unit, note, left=left)
            voice.hear(done, total, unit, note, left)

        yield report
