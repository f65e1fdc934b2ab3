"""A labelled kind of sample: how it is made, whether its response needs the far context, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from common_page import Page

from gateau_dagster.demo.language import Words

Group = Literal["controlled", "harder", "breaking"]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The words of a sample."""

    context: Words
    instruction: Words
    response: Words


Maker: TypeAlias = Callable[[Page], Parts]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """`needs_far_context`: whether what theta_A cannot see (all but the last 256 tokens) decides the response.

    within_reach: whether the embedded pair's theta_B reads the evidence (measured, see kinds_breaking); where it does
        not, no score that comes from this pair can be expected to find the kind.
    """

    name: str
    group: Group
    needs_far_context: bool
    why: str
    make: Maker
    within_reach: bool = True


def kind(group: Group, name: str, needs: bool, why: str, make: Maker, *, within_reach: bool = True) -> Kind:
    """A kind as the lists of kinds spell it."""
    return Kind(name=name, group=group, needs_far_context=needs, why=why, make=make, within_reach=within_reach)
