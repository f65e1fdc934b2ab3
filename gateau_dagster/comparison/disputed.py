"""The samples that methods disagree on most."""

from collections.abc import Sequence

import numpy as np

from gateau_dagster.comparison.orders import Orders
from gateau_dagster.comparison.result import Disputed
from gateau_dagster.selection.normalise import Vector


def most_disputed(orders: Orders, ids: Sequence[str], *, most: int) -> list[Disputed]:
    """At most `most` samples with the largest `rank_spread`, ties by id; `ids` [n] in the order of `orders`.

    Samples that fewer than two methods score, or that all rank alike, are not disputed.
    """
    spreads = rank_spread(orders)
    found = np.argsort(-spreads, kind="stable")[:most]
    return [
        Disputed(
            sample_id=str(ids[sample]),
            spread=float(spreads[sample]),
            ranks=tuple(int(place) or None for place in orders.places[:, sample]),
        )
        for sample in found
        if spreads[sample] > 0
    ]


def rank_spread(orders: Orders) -> Vector:
    """Standard deviation of a sample's rank shares (place - 1/2) / scored over the methods that score it, float64 [n].

    Shares and not ranks, since methods score different numbers of samples. 0 where fewer than two methods do; at most
    1/2, when half of them put the sample first and half last.
    """
    known = orders.places > 0
    sizes = np.maximum(1, np.array(orders.scored))[:, None]
    shares = np.where(known, (orders.places - 0.5) / sizes, 0.0)
    methods = np.maximum(1, known.sum(axis=0))
    means = shares.sum(axis=0) / methods
    deviations = np.where(known, shares - means, 0.0)
    return np.sqrt((deviations**2).sum(axis=0) / methods)
