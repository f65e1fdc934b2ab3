"""What the data comes to, table by table over all partitions: rows, rejects, tokens, what was cut off, time."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from gateau_dagster.data.rejects import Rejects
from gateau_dagster.pipeline.asset import REJECTED_SHARE, TRUNCATED_SHARE, Asset
from gateau_dagster.pipeline.loss import Truncation
from gateau_dagster.pipeline.losses import rejects_of, truncation_of
from gateau_dagster.pipeline.plan import Key
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the partitions of one table. None: the table does not say.

    rejected: with the kinds of reasons. truncation: tokens that were to be shown, and those cut off.
    tokens, seconds: what its model was shown, and the time of that, of the rows that were last computed.
    """

    asset: str
    rows: int
    rejected: Rejects | None
    truncation: Truncation | None
    tokens: int | None
    seconds: float | None

    @property
    def reasons(self) -> str:
        """`50 x empty response; 3 x malformed JSON`."""
        kinds = self.rejected.kinds if self.rejected else ()
        return "; ".join(f"{each.count:,} x {each.kind}" for each in kinds)


def totals(state: State, made: Container[str], recorded: Mapping[Key, Stamp | None]) -> Iterator[Totals]:
    """Of the tables among `made`, in the order of the data's flow. `recorded`: their stamps."""
    for asset in state.pipeline.assets:
        stamps = [stamp for (key, _), stamp in recorded.items() if key == asset.key and stamp is not None]
        if asset.key in made and any(stamp.rows is not None for stamp in stamps):
            yield _totals(state, asset, stamps)


def _totals(state: State, asset: Asset, stamps: list[Stamp]) -> Totals:
    efforts = [stamp.effort for stamp in stamps if stamp.effort]
    return Totals(
        asset=asset.key,
        rows=sum(stamp.rows or 0 for stamp in stamps),
        rejected=rejects_of(state, asset) if REJECTED_SHARE in asset.checks else None,
        truncation=truncation_of(state, asset) if TRUNCATED_SHARE in asset.checks else None,
        tokens=sum(effort["tokens"] for effort in efforts) if efforts else None,
        seconds=sum(effort["seconds"] for effort in efforts) if efforts else None,
    )
