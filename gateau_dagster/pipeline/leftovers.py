"""Find what a store and its work folder hold that nothing needs: remains of broken writes, old models, old scratch."""

# Why only on request, and why young files stay: another configuration may use the same store, with other variants and
# unfinished rows. What this one does not need may be wanted there. So the user decides, and what may be of another
# configuration must be unused for a day.
#
# What it costs beside a plan: one listing of the store, and one of the work folder.

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateau_dagster.data.folder_copy import PART
from gateau_dagster.data.index import index_file
from gateau_dagster.execution.row_checkpoints import FOLDER as PARTIAL
from gateau_dagster.pipeline.asset import HOMOLOGOUS, PRE_EXPERIENCED
from gateau_dagster.pipeline.checks import checked_whole_plan
from gateau_dagster.pipeline.feature import features
from gateau_dagster.pipeline.loadable import downloads, scratch_of_store
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.project import old_models, wanted_models
from gateau_dagster.pipeline.recipes import CHECKPOINT_FOLDER, CHECKPOINTS, TRAINED
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Store
from gateau_dagster.storage.documents import NOTE_ENDING, STAMP_FILE, folder_stamp, remove_folder
from gateau_dagster.storage.fence import COMMITS
from gateau_dagster.storage.files import Files, Found
from gateau_dagster.storage.store import ASIDE

# A process without a lease, such as `gateau plan`, may be writing a temporary file of the work folder.
_WRITING_SECONDS = 3600.0
# Another configuration of the store may go on with its unfinished rows, or with its training.
_UNUSED_SECONDS = 24 * 3600.0
_TEMPORARY = re.compile(r"(?:.*/)?\.[^/]+\.[0-9a-f]{8}\.tmp")
_MOVED = re.compile(r"((?:.*/)?)\.([^/]+?)(?:\.lease-[\d-]+)?\.(new|old|discarded)/.*")
_OWN_TEMPORARIES = ("cache/", "models/", "pages/", "progress/")

BROKEN = "broken write"
OLD_MODEL = "model of no variant"
OTHER_MODEL = "model of variant {}, which this configuration does not have"
PARTS = "rows that no run continues"
DAMAGED = "damaged, replaced since"
SCRATCH = "scratch of a training run"
DOWNLOAD = "download of no use"
INDEX = "index of other data"


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A file or folder that nothing needs.

    kind: what it is. files: of the store or of the work folder. name: below their root. upload: the id of an unfinished
    upload of this name on S3, else empty.
    """

    kind: str
    files: Files
    name: str
    size: int
    upload: str = ""

    @property
    def address(self) -> str:
        """Return the full path or address."""
        return self.files.address(self.name)

    def remove(self) -> None:
        """Remove it; of a folder with a stamp, the stamp first.

        Raises:
            GateauError, TransientError: for the reasons of `Files.remove`.
        """
        if self.upload:
            self.files.abort_upload(self.name, self.upload)
        else:
            # With the stamp first: a folder whose removal was interrupted must not count as a model.
            remove_folder(Store(self.files.root), self.name)


def leftovers(state: State) -> list[Leftover]:
    """Return the superfluous files in the store and the work folder. The caller makes sure that no run is at work.

    Raises:
        GateauError: for the reasons of `checked_whole_plan`, or the store cannot be read.
    """
    plan, store, work = (
        checked_whole_plan(state),
        _Listing(state.store.files),
        _Listing(Files(str(state.config.work_folder))),
    )
    found = [
        *_broken_writes(store),
        *_old_models(state, store),
        *_unfinished_rows(state, plan, store),
        *_scratch(state, plan, store, work),
        *_downloads(state, work),
        *_caches(state, work),
    ]
    return sorted(found, key=lambda each: (each.kind, each.address))


class _Listing:
    """The files below a root, from one listing. A link is the user's: it is neither followed nor removed."""

    def __init__(self, files: Files) -> None:
        self.files, self.found = files, {name: each for name, each in files.listing().items() if not each.is_link}
        self._now = time.time()

    def below(self, kind: str, name: str) -> Leftover:
        """Return a file or a folder as a leftover."""
        return Leftover(kind=kind, files=self.files, name=name, size=sum(each.size for each in self._all(name)))

    def unused(self, name: str, seconds: float) -> bool:
        """Return whether nothing of a file or folder was written for so long."""
        return self._now - max((each.changed for each in self._all(name)), default=0.0) > seconds

    def _all(self, name: str) -> Iterator[Found]:
        return (each for path, each in self.found.items() if path == name or path.startswith(f"{name}/"))


def _broken_writes(store: _Listing) -> Iterator[Leftover]:
    files, moved = store.files, set[str]()
    for name in store.found:
        if name.endswith(ASIDE) and name.removesuffix(ASIDE) in store.found:
            yield store.below(DAMAGED, name)
        elif name.startswith(f"{COMMITS}/") or (files.is_local and _TEMPORARY.fullmatch(name)):
            yield store.below(BROKEN, name)
        elif files.is_local and (match := _MOVED.fullmatch(name)):
            place, target, what = match.groups()
            folder = name[: match.end(3)]
            whole = what == "new" and f"{folder}/{STAMP_FILE}" in store.found
            only = what == "old" and not any(each.startswith(f"{place}{target}/") for each in store.found)
            if not whole and not only:  # otherwise the next training completes or restores it
                moved.add(folder)
    yield from (store.below(BROKEN, folder) for folder in sorted(moved))
    for name, upload, size in files.unfinished_uploads():
        yield Leftover(kind=BROKEN, files=files, name=name, size=size, upload=upload)


def _old_models(state: State, store: _Listing) -> Iterator[Leftover]:
    """Yield models of no variant. Another configuration of the store may have it, and then its table has a stamp."""
    partitions = state.pipeline.partitions(CHECKPOINTS) if CHECKPOINTS in state.pipeline.by_key else []
    named = (re.fullmatch(rf"{CHECKPOINTS}/([^/]+)\.parquet", name) for name in store.found)
    others = sorted({match[1] for match in named if match} - {*partitions})
    stamps = state.store.stamps((CHECKPOINTS, name) for name in others)
    variant = {stamp.fingerprint: name for (_, name), stamp in stamps.items() if stamp is not None}
    for model in old_models(state):
        folder = f"{TRAINED}/{model}"
        if any(name.startswith(f"{folder}/") for name in store.found):
            yield store.below(OTHER_MODEL.format(variant[model]) if model in variant else OLD_MODEL, folder)


def _unfinished_rows(state: State, plan: Plan, store: _Listing) -> Iterator[Leftover]:
    """Yield saved rows of tables that are complete, and old ones of tables or settings that are gone."""
    folders = {name.rpartition("/")[0] for name in store.found if name.startswith(f"{PARTIAL}/")}
    for folder in sorted(folders):
        shard, _, scorer = folder.removeprefix(f"{PARTIAL}/").rpartition("/")
        asset, _, partition = shard.rpartition("/")
        known = state.pipeline.by_key.get(asset)
        if known is None or partition not in state.pipeline.partitions(asset):
            useless = store.unused(folder, _UNUSED_SECONDS)
        elif (work := plan.of(asset)) is None or partition not in work.reasons:
            useless = True
        else:
            wanted = None if known.table is None else state.row_scorer(asset)
            useless = wanted not in (None, scorer) and store.unused(folder, _UNUSED_SECONDS)
        if useless:
            yield store.below(PARTS, folder)


def _scratch(state: State, plan: Plan, store: _Listing, work: _Listing) -> Iterator[Leftover]:
    """Yield the scratch of finished training runs, and old scratch of runs that this configuration does not have."""
    training, own = "training", scratch_of_store(state).name
    trained = f"{training}/{own}/{TRAINED}"
    needed = {f"{training}/{own}/{work.asset}" for work in plan.work}
    variants = [] if (stale := plan.of(CHECKPOINTS)) is None else stale.partitions
    wanted = wanted_models(state, variants)
    needed |= {f"{trained}/{name}" for name in wanted}
    is_done = dict[str, bool]()
    for name in work.found:
        parts = name.split("/")
        if parts[0] != training or len(parts) < 3:
            continue
        if parts[1] != own:
            is_done["/".join(parts[:2])] = parts[1] == "copy"
        elif name.startswith(f"{trained}/"):
            if len(wanted) == len(variants):  # otherwise a mix is still to be made, which may be that of this training
                is_done["/".join(parts[:5])] = f"{TRAINED}/{parts[4]}/{STAMP_FILE}" in store.found
        elif parts[2] in (HOMOLOGOUS, PRE_EXPERIENCED):
            is_done["/".join(parts[:4])] = "/".join(parts[2:4]) in state.pipeline.by_key
        elif plan.of(CHECKPOINT_FOLDER) is None:
            is_done["/".join(parts[:3])] = CHECKPOINT_FOLDER in state.pipeline.by_key
    for folder, done in sorted(is_done.items()):
        if folder not in needed and (done or work.unused(folder, _UNUSED_SECONDS)):
            yield work.below(SCRATCH, folder)


def _downloads(state: State, work: _Listing) -> Iterator[Leftover]:
    """Yield copies of models that the store does not have, or has in another version, and interrupted copies."""
    below = f"{downloads(state).relative_to(state.config.work_folder).as_posix()}/"
    names = [name for name in work.found if name.startswith(below)]
    notes = [name.removesuffix(NOTE_ENDING) for name in names if name.endswith(NOTE_ENDING)]
    for copy in notes:
        stamp = None if state.store.files.is_local else folder_stamp(state.store, copy.removeprefix(below))
        if stamp is None or stamp.content != Path(work.files.address(f"{copy}{NOTE_ENDING}")).read_text():
            yield work.below(DOWNLOAD, f"{copy}{NOTE_ENDING}")
            yield work.below(DOWNLOAD, copy)
    others = (name for name in names if not name.endswith(NOTE_ENDING))
    unfinished = {name.rpartition("/")[0] for name in others if not any(name.startswith(f"{copy}/") for copy in notes)}
    yield from (work.below(DOWNLOAD, folder) for folder in sorted(unfinished))


def _caches(state: State, work: _Listing) -> Iterator[Leftover]:
    """Yield the remains of interrupted uploads, copies and writes, and indices of other data."""
    cache = state.config.work_folder / "cache"
    index = index_file(state.config.located_long_sft, state.config.folder, cache).name
    for folder in (folder for feature in features() for folder in feature.scratch):
        if any(name.startswith(f"{folder}/") for name in work.found):
            yield work.below(BROKEN, folder)
    parts = set[str]()
    for name in work.found:
        if name.startswith("cache/input-index-") and not name.endswith((index, ".tmp")):
            yield work.below(INDEX, name)
        elif match := re.match(rf"cache/(?:[^/]+/)?{PART}[0-9a-f]+(?=/)", name):
            parts.add(match.group())
        elif name.endswith(".tmp") and name.startswith(_OWN_TEMPORARIES) and work.unused(name, _WRITING_SECONDS):
            yield work.below(BROKEN, name)
    yield from (work.below(DOWNLOAD, part) for part in sorted(parts) if work.unused(part, _WRITING_SECONDS))
