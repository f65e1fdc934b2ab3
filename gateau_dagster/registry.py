"""Find what has a file of its own in a package or outside of it: methods, benchmarks, worker pools, locks."""

import hashlib
import importlib
import pkgutil
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from inspect import get_annotations
from pathlib import Path
from types import ModuleType
from typing import ClassVar, TypeVar, get_origin

from gateau_dagster.errors import GateauError

T = TypeVar("T")
_OWN = {"gateau_dagster"}
"""The packages of the project, whose code has versions that are raised by hand."""
_digests: dict[str, str] = {}
"""The digests of the files of plug-ins, by the names of their modules."""
_loading = threading.Lock()


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


@dataclass(frozen=True, kw_only=True)
class PluginFile:
    """A user's own file, outside the package.

    Its content travels with the configuration to every process of a run, so that an edit while the run goes on mixes
    no results, and other machines need no copy.

    place: the key of the configuration that names it.
    """

    place: str
    path: Path
    source: bytes

    @classmethod
    def read(cls, path: Path, *, place: str) -> "PluginFile":
        """Return the file with its content. Raise GateauError if it cannot be read."""
        try:
            return cls(place=place, path=path, source=path.read_bytes())
        except OSError as error:
            raise GateauError(
                "plugins.unreadable",
                f"{place}: {path} cannot be read ({error.strerror}): name an existing Python file; a relative path "
                "begins at the configuration's folder",
            ) from error

    def load(self) -> ModuleType:
        """Return the file as a module; equal content is loaded once per process.

        Raises:
            GateauError: its code fails; the message names the line.
        """
        digest = _digest(self.source)
        name = f"gateau_plugin_{self.path.stem}_{digest}"
        with _loading:
            if name not in sys.modules:
                module = ModuleType(name)
                module.__file__ = str(self.path)
                sys.modules[name] = module  # dataclasses and pydantic look it up while the code runs
                try:
                    exec(compile(self.source, str(self.path), "exec", dont_inherit=True), module.__dict__)
                except (Exception, SystemExit) as error:
                    del sys.modules[name]
                    raise GateauError(
                        "plugins.code", f"{self.place}: {_failure(error, str(self.path))}: correct the file"
                    ) from error
                _digests[name] = digest
        return sys.modules[name]


def with_plugins(known: Mapping[str, type[T]], files: Sequence[PluginFile], kind: type[T]) -> dict[str, type[T]]:
    """Return the classes by name: those `known`, and every `kind` of the files.

    Raises:
        GateauError: a file cannot be loaded, holds no class with a name, or one that lacks something or takes a name.
    """
    found = ((file, [*classes_of(file.load(), kind)], [*classes_of(file.load(), object)]) for file in files)
    # A file without one may hold plug-ins of another kind.
    return _with(known, ((f"{file.place}: {file.path}", own) for file, own, named in found if own or not named), kind)


def with_installed(known: Mapping[str, type[T]], group: str, kind: type[T]) -> dict[str, type[T]]:
    """Return the classes by name: those `known`, and every `kind` that a package names in this group of entry points,
    by its class or by a module.

    Raises:
        GateauError: as `with_plugins`.
    """

    def installed() -> Iterator[tuple[str, list[type[T]]]]:
        for entry in entry_points(group=group):
            package = "a package" if entry.dist is None else entry.dist.name
            place = f"entry point {entry.name} = {entry.value} of {package}"
            try:
                loaded = entry.load()
            except (Exception, SystemExit) as error:
                raise GateauError(
                    "plugins.code", f"{place}: {_failure(error)}: correct or uninstall {package}"
                ) from error
            if isinstance(loaded, ModuleType):
                yield place, [*classes_of(loaded, kind)]
            else:
                yield place, [loaded] if isinstance(loaded, type) and issubclass(loaded, kind) else []

    return _with(known, installed(), kind)


def _with(
    known: Mapping[str, type[T]], found: Iterable[tuple[str, list[type[T]]]], kind: type[T]
) -> dict[str, type[T]]:
    classes, what = {**known}, kind.__name__
    required = [name for name, of in get_annotations(kind, eval_str=True).items() if get_origin(of) is ClassVar]
    for place, additions in found:
        if not additions:
            raise GateauError(
                "plugins.empty", f"{place}: holds no {what}: define a subclass of {what} with a name there"
            )
        for addition in additions:
            missing = [name for name in required if not hasattr(addition, name)]
            missing += sorted(getattr(addition, "__abstractmethods__", ()))
            if missing:
                raise GateauError(
                    "plugins.incomplete",
                    f"{place}: class {addition.__name__} lacks {', '.join(missing)}: define it there",
                )
            name: str = getattr(addition, "name")  # noqa: B009
            other = classes.setdefault(name, addition)
            if other is not addition:
                taken = sys.modules[other.__module__].__file__
                raise GateauError(
                    "plugins.name", f"{place}: the name {name!r} is that of a {what} in {taken}: choose another name"
                )
    return classes


def full_version(code_version: str, module: str) -> str:
    """Return the version of code in a loaded module: for a plug-in, with a digest of its file, so that an edit counts
    as a new version.
    """
    if module.partition(".")[0] in _OWN:
        return code_version
    if module not in _digests:
        file = sys.modules[module].__file__
        _digests[module] = _digest(Path(file).read_bytes()) if file else ""
    return f"{code_version}.{_digests[module]}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _failure(error: BaseException, file: str = "") -> str:
    """Return the kind and the message of an error in a plug-in, after the file and the line where it arose there."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines, error = [error.lineno], type(error)(error.msg)
    where = f"{file}:{lines[-1]}: " if lines else f"{file}: " if file else ""
    return f"{where}{type(error).__name__}: {error}"
