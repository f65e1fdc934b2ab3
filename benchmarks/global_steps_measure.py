"""Both global steps made once, with the seconds of what they consist of, and the peak memory: for global_steps.py."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import silent
from gateau_dagster.storage import Stamp, Store

STEPS = ("read", "join", "sort", "presets", "rank", "order", "digest", "write", "plots", "choose", "rest")


class Clock:
    """Seconds by step; what one timed function calls another for counts for the other."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self._running: list[str] = []
        self._since = time.perf_counter()

    def switch(self, step: str | None) -> None:
        """From now on `step` runs; None: the one before it again."""
        now = time.perf_counter()
        if self._running:
            name = self._running[-1]
            self.wall[name] = self.wall.get(name, 0.0) + now - self._since
        self._since = now
        if step is None:
            self._running.pop()
        else:
            self._running.append(step)

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time counted where it is called by the main thread."""

        def call(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*arguments, **named)
            self.switch(step)
            try:
                return function(*arguments, **named)
            finally:
                self.switch(None)

        return call


def watch(clock: Clock) -> None:
    """Puts the clock around the functions of which the two assets consist."""
    from assets import selection as asset
    from gateau_dagster.selection import combine
    from gateau_dagster.storage import store

    places: list[tuple[Any, str, str]] = [
        (Store, "_found", "read"),
        (Future, "result", "read"),  # what is read ahead is read while other steps run; here, the waiting for it
        (asset, "join_shard", "join"),
        (asset, "join_all", "sort"),
        (asset, "ranked", "order"),
        (combine, "rank", "rank"),
        (store, "frame_digest", "digest"),
        (asset, "rows_digest", "digest"),
        (store, "write_parquet", "write"),
        (asset, "_score_figures", "plots"),
        (asset, "chosen_ids", "choose"),
        (asset, "choose", "choose"),
    ]
    for owner, name, step in places:
        setattr(owner, name, clock.timed(step, getattr(owner, name)))
    for name, preset in list(combine.PRESET_FUNCTIONS.items()):
        combine.PRESET_FUNCTIONS[name] = clock.timed("presets", preset)


def measure(folder: Path) -> dict[str, Any]:
    """Makes both assets once; seconds and peak memory of this process, which must be a fresh one."""
    import gateau_dagster.report.plots.score_plots  # noqa: F401 (loading libraries is start-up, not work)
    from assets import selection

    state = State(config=load_project(folder / "gateau.yaml"))
    before = _peak_bytes()
    found: dict[str, Any] = {}
    clock = Clock()
    watch(clock)
    for asset, make in (("combined_scores", selection.combined_scores), ("selected_subset", selection.selected_subset)):
        clock.wall, cpu = {}, time.process_time()
        step = clock.timed("rest", _made)(selection, make, asset, state)
        found[asset] = {
            "seconds": sum(clock.wall.values()),
            "cpu_seconds": time.process_time() - cpu,
            "rows": step.made.rows,
            "steps": clock.wall,
        }
    return {**found, "start_bytes": before, "peak_bytes": _peak_bytes()}


def _made(module: Any, make: Callable[..., object], asset: str, state: State) -> Any:
    """What the asset's function makes, in a step that does not ask Dagster what there is to do."""
    from assets.steps.unpartitioned_step import UnpartitionedStep

    wanted = Stamp(fingerprint="benchmark")
    step = UnpartitionedStep(asset=asset, state=state, wanted=wanted, found=None, progress=silent)
    module.unpartitioned_step = lambda *_: nullcontext(step)
    make(None, None)
    return step


def _peak_bytes() -> int:
    """Largest resident size; that of `getrusage` would include the process this one was started from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
