"""What selection.py prints: AUROC and precision of the methods by groups and kinds, and where the reference loses."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from common_groups import counterparts, groups
from common_harder import needs_far_context
from common_measure import show, table
from common_ranking import SHARES, Figures, Task, estimates

ByTask = dict[str, Figures]
_SHARES = [f"{share:.0%}".replace("%", " %") for share in SHARES]


def printed(
    found: dict[str, ByTask],
    tasks: list[Task],
    *,
    columns: Sequence[str],
    reference: str,
    answers: Mapping[str, float],
) -> None:
    """Methods by groups, then kinds by the chosen methods; answers: theta_B's probabilities by kind.

    The precision by kind is that of the reference, or of the best method where the reference was not asked for.
    """
    whole = [task for task in tasks if task.name in groups()]
    kinds = [task.name for task in tasks if task.name not in groups()]
    order = sorted(found, key=lambda label: -estimates(found[label][whole[-1].name])[0].value)
    rows = [[label, *(estimates(found[label][each.name])[0].show() for each in whole)] for label in order]
    show("AUROC of `needs far context` (95 % interval)\n" + table(["method", *(each.name for each in whole)], rows))
    show("\n" + precision_by_group(found, whole, order))
    rows = [[label, *_precisions(found[label][whole[-1].name])] for label in order]
    show(f"\nPrecision, {whole[-1].name} (95 % interval)\n" + table(["method", *_SHARES], rows))
    show("\n" + auroc_by_kind(found, kinds, [label for label in columns if label in found] or order[:4], answers))
    for label in [reference] if reference in found else order[:1]:
        show("\n" + precision_by_kind(found[label], kinds, label))


def precision_by_group(found: Mapping[str, ByTask], whole: Sequence[Task], order: Sequence[str]) -> str:
    """Three figures a group, one for each of SHARES; the first row is each group's share of what is looked for."""
    blind = [f"{np.mean([positive.mean() for positive in task.positive]):.2f}" for task in whole]
    rows = [["drawn blindly", *blind]]
    for label in order:
        values = ([each.value for each in estimates(found[label][task.name])[1:]] for task in whole)
        rows.append([label, *(" ".join(f"{value:.2f}" for value in some) for some in values)])
    title = f"Precision in the best {', '.join(_SHARES)}, among a group's own kinds as they come\n"
    return title + table(["method", *(task.name for task in whole)], rows)


def auroc_by_kind(
    found: Mapping[str, ByTask], kinds: Sequence[str], shown: Sequence[str], answers: Mapping[str, float]
) -> str:
    """A row a kind, a column a method."""
    rows = []
    for name in kinds:
        figures = [estimates(found[each][name])[0].show() for each in shown]
        rows.append([name, _needs(name), f"{answers[name]:.2f}" if name in answers else "", *figures])
    title = "AUROC by kind against the kinds of the other label; `or near`: against its near counterpart alone\n"
    return title + table(["kind", "needs", "theta_B's probability", *shown], rows)


def precision_by_kind(figures: ByTask, kinds: Sequence[str], label: str) -> str:
    """A row a kind, a column a share."""
    rows = [[name, _needs(name), *_precisions(figures[name])] for name in kinds]
    title = f"Precision of {label} by kind, in data of which one half is that kind (0.5 drawn blindly; 95 % interval)\n"
    return title + table(["kind", "needs", *_SHARES], rows)


def lost(worse: Sequence[Mapping[str, Any]], found: dict[str, ByTask], reference: str) -> str:
    """`losses` of selection.py as a table, with the AUROC of both."""
    if not worse:
        return f"\nNo method is better than {reference} on any group or kind by more than the interval"
    rows = []
    for each in worse:
        both = [estimates(found[label][each["task"]])[0].show() for label in (each["method"], reference)]
        rows.append([each["task"], each["method"], *both, each["difference"].show()])
    title = f"\nWhere another method is better than {reference} by more than the interval (AUROC)\n"
    return title + table(["group or kind", "method", "its AUROC", reference, "difference"], rows)


def _needs(name: str) -> str:
    if name in counterparts():
        return "far?"
    return "far" if needs_far_context(name) else "-"


def _precisions(figures: Figures) -> list[str]:
    return [each.show() for each in estimates(figures)[1:]]
