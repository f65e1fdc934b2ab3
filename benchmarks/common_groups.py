"""The kinds of the labelled benchmark set by what they are reported together as."""

from common_harder import KINDS

from gateau_dagster.demo.long_samples import KINDS as BASE_KINDS


def groups() -> dict[str, list[str]]:
    """Kinds by group; the last two are of several groups."""
    within = [name for name, kind in KINDS.items() if kind.within_reach]
    own = list(dict.fromkeys(kind.group for kind in KINDS.values()))
    named = {group: [name for name in KINDS if KINDS[name].group == group] for group in own}
    return {"base": list(BASE_KINDS), **named, "within reach": [*BASE_KINDS, *within], "all": [*BASE_KINDS, *KINDS]}


def counterparts() -> dict[str, list[str]]:
    """Kinds that differ in nothing but where the facts stand, far or near: does a score see that, or only hardness?"""
    return {f"{name} or near": [name, f"{name}_near"] for name in KINDS if f"{name}_near" in KINDS}
