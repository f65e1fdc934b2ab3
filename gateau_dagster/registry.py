"""Find what has a file of its own in a package: methods, benchmarks, worker pools, locks."""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    """Yield the modules of a package in the order of their names.

    They are found by `package.__path__`, so a test or another project may add a folder to it.
    """
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
        yield importlib.import_module(f"{package.__name__}.{module.name}")


def registered(package: ModuleType, kind: type[T]) -> Iterator[T]:
    """Yield every `kind` that a module of `package` holds under its kind's name in capitals: METHOD, or METHODS for
    several. A module without one is a helper of its neighbours.
    """
    name = kind.__name__.upper()
    for module in modules_of(package):
        if isinstance(getattr(module, name, None), kind):
            yield getattr(module, name)
        yield from getattr(module, f"{name}S", ())


def classes_of(module: ModuleType, kind: type[T]) -> Iterator[type[T]]:
    """Yield every subclass of `kind` that the module defines and that has a `name`; one without is a base of others."""
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, kind) and value.__module__ == module.__name__:
            yield from [value] if hasattr(value, "name") else []
