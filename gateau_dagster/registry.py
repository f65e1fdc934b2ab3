"""Find what has a file of its own in a package: methods, benchmarks, worker pools, locks."""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def registered(package: ModuleType, kind: type[T]) -> Iterator[T]:
    """Yield every `kind` that a module of `package` holds under its kind's name in capitals: METHOD, or METHODS for
    several.

    A module without one is a helper of its neighbours. The modules are found by `package.__path__`, so a test or
    another project may add a folder to it.
    """
    name = kind.__name__.upper()
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        if isinstance(getattr(loaded, name, None), kind):
            yield getattr(loaded, name)
        yield from getattr(loaded, f"{name}S", ())
