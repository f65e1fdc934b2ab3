"""`gateau window`: how the choice changes with theta_A's window, from stored probabilities. No model runs."""

# Near and far text of every window are exact, since `cam` keeps the probability given each segment alone. Only the
# probability by theta_A takes a pass for each window. The largest near probability stands for it. How well that does is
# printed: the stored choice beside the estimated one of the same window.

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

import polars as pl

from gateau_dagster.cli.display import as_line, console, explain_in_grey, left_table, say_if_out_of_date
from gateau_dagster.comparison.result import WindowPoint, WindowSweep
from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.methods.registry import GATEAU
from gateau_dagster.pipeline.choice import Candidates, chosen_samples, dependence_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.outputs import check_output
from gateau_dagster.pipeline.project import configuration_name
from gateau_dagster.pipeline.recipes import Recipe
from gateau_dagster.pipeline.selection_reads import EVIDENCE_READS, FORECAST_COLUMNS, PRESETS_TABLE
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import percentage, plural
from gateau_dagster.scoring.pair_tables import CAM, THETA_A, THETA_B, WINDOW_SETTINGS, perplexity_asset
from gateau_dagster.scoring.segments import at_window
from gateau_dagster.selection.combine import READ_COLUMNS, combine
from gateau_dagster.selection.evidence import FAR
from gateau_dagster.storage.failures import readable_failures
from gateau_dagster.storage.local import fill_with, replace_local

_FACTORS = (0.25, 0.5, 1, 2, 4)
_SHORT, _LONG = perplexity_asset(THETA_A), perplexity_asset(THETA_B)
_Columns = tuple[pl.DataFrame, pl.DataFrame]
_NEW = ("context_tokens", "tail_tokens", "segment_probability")


def print_windows(config: Config, windows: Sequence[int], file: Path | None, *, as_json: bool = False) -> None:
    """Print a row for each window, and draw them into a file.

    Args:
        config: of the project.
        windows: in tokens; empty: a quarter to four times the window of the stored tables.
        file: ends in .svg or .png; None: no picture.
        as_json: print one object instead.

    Raises:
        GateauError: a table is missing, the ranking does not follow from stored probabilities, or the file is in use.
    """
    if file is not None:
        check_output(config, file, configuration_name())
    out, state = console(), state_of(config=config)
    with out.status("Deriving the tables of each window"):
        found = window_sweep(state, windows)
    if file is not None:
        _draw(found, file)
    if as_json:
        out.print_json(json.dumps(asdict(found)), ensure_ascii=True)
        return
    say_if_out_of_date(out, state, [PRESETS_TABLE], require_current=False)
    columns = ("far text", "depend", "too long", "chosen", "far", "same", "Jaccard", "to score")
    table = left_table("window", right=columns)
    for point in (found.stored, *found.points):
        name = "full" if point.window is None else f"{point.window:,}"
        counts = [f"{count:,}" for count in (point.far_text, point.far, point.too_long, point.chosen, point.chosen_far)]
        same = [] if point is found.stored else [percentage(point.common), f"{point.jaccard:.2f}", f"{point.tokens:,}"]
        table.add_row(f"{name}, stored" if point is found.stored else name, *counts, *same)
    out.print(table)
    explain_in_grey(
        out,
        [
            f"Of {plural(found.samples, 'sample')}: far text, those with far segments; depend, those whose response "
            "depends on one; too long, those that theta_A cannot score. These counts are exact.",
            "Chosen: an estimate, except for the stored choice. The largest near probability of theta_B stands for the "
            "probability by theta_A. Far: those that depend on far text. Same: the share of the stored choice.",
            *(
                f"At {point.window:,}, the estimate has {percentage(point.common)} of the stored choice."
                for point in found.points
                if point.window == found.stored.window
            ),
            f"Chosen by rule {config.selection.rule}{_taken(found) if config.selection.rule == 'auto' else ''}.",
            "To score: tokens that theta_A reads to make the choice exact. Set models.short.window, then "
            f"`{gateau_command('run')}`; theta_B reads nothing.",
        ],
    )
    if file is not None:
        out.print(f"Picture: {as_line(str(file))}", soft_wrap=True)


def window_sweep(state: State, windows: Sequence[int]) -> WindowSweep:
    """Return the choices at these windows (tokens) beside the stored one. Raises GateauError as `print_windows`."""
    config, recipe = state.config, Recipe(state.config)
    if config.selection.method != GATEAU or config.selection.preset != "robust":
        raise GateauError(
            "window.ranking",
            "the choice at other windows is estimated for selection.method gateau with preset robust only: other "
            "rankings read more of theta_A. Set models.short.window and run: theta_B reads nothing for it",
        )
    long = state.read(_LONG, READ_COLUMNS[_LONG])
    made = state.stamp(CAM, state.shards[0])
    present: int | None = None if made is None else made.inputs["settings"].get(WINDOW_SETTINGS[1])
    usual = present or config.scoring.max_length
    usual_windows = [round(usual * factor) for factor in _FACTORS if usual * factor <= config.scoring.max_length]
    # The present one is always there, to judge the estimate by.
    asked = sorted({*(windows or usual_windows), *(each for each in (present,) if each is not None)})
    # By shard, since the probabilities of all samples may not fit into memory. The first column of each is the present.
    stored, *others = zip(*(_columns(state, shard, present, asked) for shard in state.shards), strict=True)
    now = chosen_samples(state, recipe)

    def point(window: int | None, parts: Sequence[_Columns], *, estimated: bool) -> WindowPoint:
        cam, kinds = (pl.concat(each) for each in zip(*parts, strict=True))
        fitting = cam.filter("fits")
        choice = replace(now, chosen=now.chosen.clear()) if estimated else now
        if estimated and fitting.height:  # a window may be too short for all
            scores = combine(
                fitting.select(READ_COLUMNS[_SHORT]),
                long,
                fitting.select(READ_COLUMNS[CAM]),
                preset="robust",
                alpha=config.selection.alpha,
            ).select("sample_id", "score", "rank")
            choice = chosen_samples(state, recipe, kinds, _AtWindow(state, kinds), scores)
        chosen, present_choice = ({*each.chosen["sample_id"]} for each in (choice, now))
        far = {*kinds.filter(pl.col("dependency").is_in(FAR))["sample_id"]}
        common = len(chosen & present_choice)
        return WindowPoint(
            window=window,
            far_text=int(cam["far_text"].sum()),
            far=len(far),
            too_long=cam.height - fitting.height,
            rule=choice.taken["rule"],
            chosen=len(chosen),
            chosen_far=len(far & chosen),
            common=common / max(1, len(present_choice)),
            jaccard=common / max(1, len(chosen | present_choice)),
            tokens=int(fitting["seen"].cast(pl.Int64).sum()),
        )

    points = (point(window, parts, estimated=True) for window, parts in zip(asked, others, strict=True))
    samples = sum(cam.height for cam, _ in stored)
    return WindowSweep(samples=samples, stored=point(present, stored, estimated=False), points=tuple(points))


def _columns(state: State, shard: str, present: int | None, windows: Sequence[int]) -> list[_Columns]:
    """Return, for the present window and for each of the others, a shard's columns of `cam` and its dependencies."""
    names = {*state.store.columns(CAM, shard)}
    wanted = [*dict.fromkeys((*READ_COLUMNS[CAM], *EVIDENCE_READS[CAM], *_NEW))]
    cam = state.store.read(CAM, shard, [name for name in wanted if name in names])
    if not {*_NEW} <= names or cam["segment_probability"].null_count():
        raise GateauError(
            "window.probabilities",
            f"{CAM}, shard {shard}, lacks segment_probability in some rows: an earlier release made them, or segments "
            f"are screened. Without scoring.segments: screened, set another models.short.window and run "
            f"`{gateau_command('run --until cam')}`: the rows are computed once more, and serve every window",
        )
    long, length = state.store.read(_LONG, shard, [*EVIDENCE_READS[_LONG]]), state.config.scoring.segment_length
    near = pl.col("near_probability").list
    found = []
    derived = (at_window(cam, segment_length=length, visible_tokens=window) for window in windows)
    for window, rows in zip((present, *windows), chain([cam], derived), strict=True):
        columns = rows.select(
            *READ_COLUMNS[CAM],
            far_text=pl.col("near_segments") < pl.col("segments"),
            seen=pl.min_horizontal(pl.col("context_tokens") + pl.col("tail_tokens"), window),
            fits=pl.lit(window is None) | (pl.col("tail_tokens") <= window),
            perplexity=pl.lit(1.0),  # the preset reads probabilities
            mean_probability=near.mean().cast(pl.Float64),
            response_tokens=near.len().cast(pl.Int32),
        )
        found.append((columns, dependence_of(rows, long).select(FORECAST_COLUMNS)))
    return found


def _taken(found: WindowSweep) -> str:
    """Return which rules `auto` takes, and at which windows."""
    windows: dict[str, list[str]] = {}
    for point in found.points:
        windows.setdefault(point.rule, []).append(f"{point.window:,}")
    return "".join(f"; {rule} at {', '.join(each)}" for rule, each in windows.items())


class _AtWindow(Candidates):
    """Candidates with the dependencies at another window."""

    def __init__(self, state: State, kinds: pl.DataFrame) -> None:
        super().__init__(state)
        self._kinds = kinds.select("sample_id", "dependency")

    def of(self, recipe: Recipe, scores: pl.DataFrame) -> pl.DataFrame:
        found = super().of(recipe, scores)
        if "dependency" not in found.columns:
            return found
        return found.drop("dependency").join(self._kinds, on="sample_id", how="left", maintain_order="left")


def _draw(found: WindowSweep, file: Path) -> None:
    from gateau_dagster.plots.score_plots import window_curves
    from gateau_dagster.plotting import to_png, to_svg

    figure = window_curves(found)
    data = to_png(figure) if file.suffix == ".png" else to_svg(figure)
    with readable_failures(f"write {file}"):
        replace_local(file, lambda path: fill_with(path, data))
