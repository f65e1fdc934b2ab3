"""Which assets a configuration asks for: what its selection, training and evaluation reach, and nothing beside."""

from collections.abc import Collection, Iterable, Mapping

from gateau_dagster.config import Config
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.selection_nodes import wants_presets

# Made for their own sake, by the first part of the name; every other asset is made for what reads it.
_ENDS = {
    *("raw_long_sft", "short_chat_mix", "selected_subset", "comparison"),
    *("training_mix", "checkpoint", "evaluation", "report"),
}


def required_assets(config: Config, upstream: Mapping[str, Collection[str]]) -> frozenset[str]:
    """The assets that are brought up to date, of those in `upstream` (the names that each reads, by name).

    With GATEAU's presets all of them: a page about the presets shows every configured model. Without, those that are
    made for their own sake, and what these read. The others can be asked for by name.
    """
    if wants_presets(config):
        return frozenset(upstream)
    found: set[str] = set()
    waiting = [asset for asset in upstream if asset.split("/", maxsplit=1)[0] in _ENDS]
    while waiting:
        asset = waiting.pop()
        if asset not in found:
            found.add(asset)
            waiting.extend(upstream[asset])
    return frozenset(found)


def left_out_sentence(config: Config, unwanted: Iterable[str]) -> str:
    """One line for who misses a table; empty when every table is wanted."""
    names = list(unwanted)
    if not names:
        return ""
    methods = list(chosen_methods(config))
    verb = "does not need" if len(methods) == 1 else "do not need"
    return (
        f"Left out, since {_listed(methods)} {verb} {'it' if len(names) == 1 else 'them'}: {', '.join(names)}. "
        "Ask for one with --until, or name a method that reads it in selection.compare."
    )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
