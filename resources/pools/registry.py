"""Register all worker pools by name: every module of this package that defines POOL."""

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.readable import nearest_name
from gateau_dagster.registry import registered
from resources import pools
from resources.pools.pool import Pool


def chosen_pool(config: Config) -> Pool:
    """Return the pool that `execution.pool` names.

    Raises:
        GateauError: there is no pool of this name.
    """
    found = {pool.name: pool for pool in registered(pools, Pool)}
    name = config.execution.pool_name
    if name not in found:
        raise GateauError(f"execution.pool: there is no worker pool {name!r}; {nearest_name(name, sorted(found))}")
    return found[name]
