"""Find the versions that an output was made from, by the observed inputs and the stamps."""

from collections.abc import Mapping

from gateau_dagster.pipeline.asset import (
    CHAT,
    LONG,
    method_key,
    model_key,
    other_key,
)
from gateau_dagster.pipeline.feature import features
from gateau_dagster.pipeline.plan import Key, one_version
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp


def input_version(state: State, key: str) -> str:
    """Return the current version of an input without partitions."""
    observed, config = state.observed, state.config
    versions = {CHAT: observed.short_chat or ""}
    versions |= {each.key: each.version(observed) for feature in features() for each in feature.inputs(config)}
    versions |= {method_key(name): digest for name, digest in observed.files.items()}
    versions |= {model_key(name): observed.model_digests[name] for name in config.models}
    versions |= {other_key(name): digest for name, digest in observed.others.items()}
    return versions[key]


def upstream_versions(
    state: State, asset: str, partition: str | None, stamp: Stamp, stamps: Mapping[Key, Stamp | None] | None = None
) -> dict[str, str]:
    """Return the data version of each input and upstream that the graph shows for an output, as Dagster records it.

    Args:
        state: of the project.
        asset, partition: the output, which is up to date.
        stamp: of the output.
        stamps: of all outputs, if the caller has read them.
    """
    declared = state.asset(asset)
    reads, made_from = declared.of_partition(partition).reads, stamp.inputs.get("upstream", {})
    versions = {
        key: state.shard_input(partition or "") if key == LONG else input_version(state, key) for key in declared.inputs
    }
    for name in state.pipeline.shown_reads(asset):
        if reads.get(name) == "fingerprint" and name in made_from:
            versions[name] = made_from[name]
            continue
        keys = state.outputs_read(name, asset, partition)
        found = state.stamps(keys) if stamps is None else stamps
        each = {key[1] or "": "NULL" if (made := found[key]) is None else made.fingerprint for key in keys}
        versions[name] = one_version(each)
    return versions
