"""A graph of assets, its inputs, and a store in memory: what steps do, without running any."""

from collections.abc import Mapping, Sequence

from gateau_dagster.pipeline.node import Node
from gateau_dagster.pipeline.plan import Key, Plan, make_plan
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.stamp import joint


class World:
    """The content of an output is a function of what went in, or of nothing.

    inputs: content of each shard's input. constant: assets that come out the same whatever they are made from.
    sets: further partition sets.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        inputs: Mapping[str, str],
        constant: set[str] | None = None,
        sets: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.nodes, self.inputs = nodes, dict(inputs)
        self.sets = {"shard": list(inputs), **(sets or {})}
        self.constant = constant or set()
        self.stored: dict[Key, Stamp] = {}

    def plan(self) -> Plan:
        return make_plan(self.nodes, self.sets, self.inputs, self.stored)

    def parts(self, asset: str) -> Sequence[str | None]:
        """The partitions of an asset; None alone for a single output."""
        name = next(node.partitions for node in self.nodes if node.asset == asset)
        return self.sets[name] if name else [None]

    def versions(self, node: Node, partition: str | None) -> dict[str, str]:
        """The slow obvious reading of what an output made now is made from."""
        if not node.upstream and node.partitions and not node.parts:
            return {"input": self.inputs[str(partition)]}
        of = {each.asset: each.partitions for each in self.nodes}
        found = {}
        upstream = node.parts[str(partition)].upstream if node.parts else node.upstream
        for name, by in upstream.items():
            parts = [partition] if of[name] and of[name] == node.partitions else self.parts(name)
            stamps = {part or "": self.stored[name, part] for part in parts}
            each = {part: stamp.content if by == "content" else stamp.fingerprint for part, stamp in stamps.items()}
            found[name] = next(iter(each.values())) if len(each) == 1 else joint(each)
        return found

    def make(self, asset: str, partition: str | None) -> bool:
        """What a step does: nothing when the stored output is made from the same."""
        node = next(each for each in self.nodes if each.asset == asset)
        versions = self.versions(node, partition)
        node = node.of(partition)
        wanted = node.fingerprint(versions)
        if (asset, partition) in self.stored and self.stored[asset, partition].fingerprint == wanted:
            return False
        content = "same" if asset in self.constant else f"content of {wanted}"
        self.stored[asset, partition] = Stamp(fingerprint=wanted, content=content, inputs=node.inputs(versions))
        return True

    def run(self, plan: Plan) -> set[Key]:
        """Everything on the plan, in its order; what was really made."""
        todo = [(work.asset, partition) for work in plan.work for partition in work.partitions or [None]]
        return {key for key in todo if self.make(*key)}

    def run_everything(self) -> set[Key]:
        """The twin of a plan: try each output; what is stale is made."""
        todo = [(node.asset, partition) for node in self.nodes for partition in self.parts(node.asset)]
        return {key for key in todo if self.make(*key)}
