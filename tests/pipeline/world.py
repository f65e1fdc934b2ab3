"""A graph of assets, its inputs, and a store in memory: what steps do, without running any."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.plan import Key, Plan, make_plan
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.stamp import joint


def declared(key: str, **fields: Any) -> Asset:
    """An asset of which only these fields matter."""
    return Asset(**{"key": key, "maker": "m", "group": "g", "kinds": (), "summary": "", "code_version": "1", **fields})


class World:
    """The content of an output is a function of what went in, or of nothing.

    inputs: content of each shard's input. constant: assets that come out the same whatever they are made from.
    sets: further partition sets.
    """

    def __init__(
        self,
        assets: Sequence[Asset],
        inputs: Mapping[str, str],
        constant: set[str] | None = None,
        sets: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.assets = assets
        self.inputs = dict(inputs)
        self.sets = {"shard": list(inputs), **(sets or {})}
        self.constant = constant or set()
        self.stored: dict[Key, Stamp] = {}

    @property
    def assets(self) -> Sequence[Asset]:
        """In topological order; an edit of the code sets others."""
        return self._assets

    @assets.setter
    def assets(self, assets: Sequence[Asset]) -> None:
        self._assets = assets
        self._by_key = {each.key: each for each in assets}

    def plan(self) -> Plan:
        return make_plan(self.assets, self.sets, self.inputs, self.stored)

    def parts(self, asset: str) -> Sequence[str | None]:
        """The partitions of an asset; None alone for a single output."""
        name = self._by_key[asset].partitions
        return self.sets[name] if name else [None]

    def versions(self, made: Asset, partition: str | None) -> dict[str, str]:
        """The slow obvious reading of what an output made now is made from."""
        if not made.reads and made.partitions and not made.parts:
            return {"input": self.inputs[str(partition)]}
        found = {}
        upstream = made.parts[str(partition)].reads if made.parts else made.reads
        for name, by in upstream.items():
            of = self._by_key[name].partitions
            parts = [partition] if of and of == made.partitions else self.parts(name)
            if of == "variant" and made.variant:
                parts = [made.variant]
            stamps = {part or "": self.stored[name, part] for part in parts}
            each = {part: stamp.content if by == "content" else stamp.fingerprint for part, stamp in stamps.items()}
            found[name] = next(iter(each.values())) if len(each) == 1 else joint(each)
        return found

    def make(self, asset: str, partition: str | None) -> bool:
        """What a step does: nothing when the stored output is made from the same."""
        whole = self._by_key[asset]
        versions, part = self.versions(whole, partition), whole.of_partition(partition)
        wanted = part.fingerprint(versions)
        if (asset, partition) in self.stored and self.stored[asset, partition].fingerprint == wanted:
            return False
        content = "same" if asset in self.constant else f"content of {wanted}"
        self.stored[asset, partition] = Stamp(fingerprint=wanted, content=content, inputs=part.made_from(versions))
        return True

    def run(self, plan: Plan) -> set[Key]:
        """Everything on the plan, in its order; what was really made."""
        todo = [(work.asset, partition) for work in plan.work for partition in work.partitions or [None]]
        return {key for key in todo if self.make(*key)}

    def run_everything(self) -> set[Key]:
        """The twin of a plan: try each output; what is stale is made."""
        todo = [(asset.key, partition) for asset in self.assets for partition in self.parts(asset.key)]
        return {key for key in todo if self.make(*key)}
