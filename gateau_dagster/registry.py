"""Find plug-ins, each in its own file, in a package or outside it: methods, benchmarks, worker pools, locks."""

import hashlib
import importlib
import importlib.util
import pkgutil
import re
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import entry_points
from inspect import get_annotations
from pathlib import Path
from types import FunctionType, GeneratorType, ModuleType
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel

from gateau_dagster.errors import GateauError

T = TypeVar("T")
_OWN = {"gateau_dagster"}
"""The packages of the project, whose code has versions that are raised by hand."""
_FEATURES = "gateau_dagster.features"
_digests: dict[str, str] = {}
"""The digests of the files of plug-ins, by the names of their modules."""
_loading = threading.Lock()
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_MOST_SHOWN, _MOST_VALUE = 300, 80  # characters of a plug-in's own message, and of a value
_OF_MEMORY = {"OutOfMemoryError"}  # torch's, which is handled where a model runs
_GUARDED = "gateau_guarded"
Returned = Mapping[str, Callable[[Any], str]]
"""Functions by name that return what is wrong with a value that the named function gave; empty if nothing is."""


def possible_name(name: str) -> str:
    """Return the name unchanged. Raise GateauError if it cannot be a part of an asset's key and of a path."""
    if not _NAME.fullmatch(name):
        raise GateauError(
            "config.name",
            "is used as a file's name: begin with a letter, and use letters, digits, _, . and -, at most 100",
        )
    return name


def same_names(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that some file systems take for one, since they differ in case only; None without such."""
    first: dict[str, str] = {}
    for name in names:
        if first.setdefault(name.lower(), name) != name:
            return first[name.lower()], name
    return None


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


def feature_modules(name: str) -> Iterator[ModuleType]:
    """Yield the module of this name of every feature that has one, in the alphabetical order of features."""
    for feature in _feature_packages():
        if importlib.util.find_spec(f"{feature}.{name}") is not None:
            yield importlib.import_module(f"{feature}.{name}")


def feature_files(name: str) -> Iterator[Path]:
    """Yield the file of this name in the folder of every feature that has one, in the same order."""
    for feature in _feature_packages():
        folder = Path(str(importlib.import_module(feature).__file__)).parent
        yield from [folder / name] if (folder / name).is_file() else []


def _feature_packages() -> list[str]:
    package = importlib.import_module(_FEATURES)
    return sorted(f"{_FEATURES}.{found.name}" for found in pkgutil.iter_modules(package.__path__) if found.ispkg)


def feature_parts(module: str, name: str, kind: type[T]) -> Iterator[T]:
    """Yield every `kind` that a feature holds as `name` in its `module`. Raise GateauError if it is of another kind."""
    for found in feature_modules(module):
        if hasattr(found, name):
            part = getattr(found, name)
            if not isinstance(part, kind):
                raise GateauError(
                    "plugins.incomplete",
                    f"{found.__file__}: {name} is {shown_value(part)}, not a {kind.__name__}: correct it there",
                )
            yield part


def distinct(named: Iterable[tuple[str, T]], what: str) -> dict[str, T]:
    """Return things by their names. Raise GateauError if two have one name. what: the noun for one of them."""
    found: dict[str, T] = {}
    for name, each in named:
        if found.setdefault(name, each) is not each:
            raise GateauError(
                "plugins.name", f"a feature has a {what} {name!r}, as the kernel or another feature: rename it"
            )
    return found


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


def with_plugins(
    known: Mapping[str, type[T]],
    files: Sequence[PluginFile],
    kind: type[T],
    *,
    returned: Returned,
    taken: Collection[str] = (),
) -> dict[str, type[T]]:
    """Return the classes by name: those `known`, and every `kind` of the files.

    A failure of their functions is a GateauError that names file and line, and so is a wrong value.

    Args:
        known: the other classes.
        files: of the configuration.
        kind: the class that they extend.
        returned: the checks of what their functions return.
        taken: names that none of them may have.

    Raises:
        GateauError: a file cannot be loaded, holds no class with a name, or one that lacks something or takes a name.
    """
    found = ((file, [*classes_of(file.load(), kind)], [*classes_of(file.load(), object)]) for file in files)
    # A file without one may hold plug-ins of another kind.
    additions = ((f"{file.place}: {file.path}", own) for file, own, named in found if own or not named)
    return _with(known, additions, kind, returned, taken)


def with_installed(
    known: Mapping[str, type[T]], group: str, kind: type[T], *, returned: Returned, taken: Collection[str] = ()
) -> dict[str, type[T]]:
    """Return the classes by name: those `known`, and every `kind` that a package names in this group of entry points,
    by its class or by a module; see `with_plugins`.

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

    return _with(known, installed(), kind, returned, taken)


def _with(
    known: Mapping[str, type[T]],
    found: Iterable[tuple[str, list[type[T]]]],
    kind: type[T],
    returned: Returned,
    taken: Collection[str],
) -> dict[str, type[T]]:
    classes, what = {**known}, kind.__name__
    annotated = get_annotations(kind, eval_str=True).items()
    required = {name: get_args(of)[0] for name, of in annotated if get_origin(of) is ClassVar}
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
            if odd := _odd_attributes(addition, kind, required):
                raise GateauError("plugins.incomplete", f"{place}: class {addition.__name__}: {odd}: correct it there")
            name: str = getattr(addition, "name")  # noqa: B009
            try:
                possible_name(name)
            except GateauError as error:
                raise GateauError(
                    "plugins.name", f"{place}: class {addition.__name__}: name: {name!a} {error}"
                ) from error
            if name in taken or hasattr(BaseModel, name):
                raise GateauError(
                    "plugins.name", f"{place}: the name {name!r} is a key of the configuration: choose another name"
                )
            other = classes.setdefault(name, addition)
            if other is not addition:
                file = sys.modules[other.__module__].__file__
                raise GateauError(
                    "plugins.name", f"{place}: the name {name!r} is that of a {what} in {file}: choose another name"
                )
            if (same := same_names(classes)) is not None:
                raise GateauError(
                    "plugins.name",
                    f"{place}: the name {name!r} differs from {same[0]!r} in case only, and names a file: choose "
                    "another name",
                )
            _guard(addition, f"{what.lower()} {name}", kind, returned)
    return classes


def _odd_attributes(addition: type[Any], kind: type[Any], required: Mapping[str, Any]) -> str:
    """Return which attribute of a class has another type than its kind demands; empty if none has."""
    for name, of in required.items():
        if of in (str, bool) and not isinstance(value := getattr(addition, name), of):
            return f"{name} is {shown_value(value)}, not {'a text' if of is str else 'True or False'}"
    for name in dir(kind):
        value = getattr(addition, name, None)
        if isinstance(vars(kind).get(name), FunctionType) and not callable(value):
            return f"{name} is {shown_value(value)}, not a function"
    return ""


def is_own(module: str) -> bool:
    """Return whether a module is the project's, not a plug-in's."""
    return module.partition(".")[0] in _OWN


def _guard(addition: type[Any], what: str, kind: type[Any], returned: Returned) -> None:
    """Guard the functions that a class of a plug-in, or a base of it there, defines for the project."""
    ours = {name for base in addition.__mro__ if is_own(base.__module__) for name in vars(base)}
    for base in addition.__mro__:
        if base is object or is_own(base.__module__) or not issubclass(base, kind):
            continue
        for name, value in list(vars(base).items()):
            hook = name in ours and not name.startswith("__")
            if isinstance(value, FunctionType) and (hook or name in ("__init__", "__post_init__")):
                setattr(base, name, guarded(value, f"{what}: {name}()", returned.get(name)))


def guarded(function: Callable[..., Any], what: str, wrong: Callable[[Any], str] | None = None) -> Callable[..., Any]:
    """Return a function of a plug-in whose failures, and wrong values, are a GateauError with file and line.

    A function of the project is returned as it is, and so is one that is guarded already.

    Args:
        function: of a plug-in.
        what: whose function it is, for messages.
        wrong: returns the fault in a value; empty if there is none.
    """
    if is_own(function.__module__) or hasattr(function, _GUARDED):
        return function
    file = str(getattr(sys.modules.get(function.__module__), "__file__", None) or function.__module__)

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        with plugin_code(what, file):
            result = function(*given, **named)
        if wrong is not None and (problem := wrong(result)):
            raise GateauError("plugins.result", f"{file}: {what} returned {problem}: correct the file")
        return _guarded_rows(result, what, file) if isinstance(result, GeneratorType) else result

    setattr(call, _GUARDED, True)
    return call


def _guarded_rows(rows: "GeneratorType[Any, Any, Any]", what: str, file: str) -> Iterator[Any]:
    """Yield the items of a plug-in's generator."""
    end = object()
    try:
        while True:
            with plugin_code(what, file):
                row = next(rows, end)
            if row is end:
                return
            yield row
    finally:
        rows.close()


@contextmanager
def plugin_code(what: str, file: str) -> Iterator[None]:
    """Turn what a plug-in raises in the block into a GateauError that names file, line and function.

    Its own GateauErrors pass, and so do a lack of memory and an interrupt that it did not raise itself.
    """
    try:
        yield
    except (GateauError, MemoryError):
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        frames = traceback.extract_tb(error.__traceback__)
        interrupted = isinstance(error, KeyboardInterrupt) and not (frames[-1].line or "").startswith("raise ")
        if interrupted or type(error).__name__ in _OF_MEMORY:
            raise
        raise GateauError("plugins.code", f"{_failure(error, file, what)}: correct the file") from error


def shown_value(value: object) -> str:
    """Return a value of a plug-in for a message: short, and in one line."""
    try:
        text = repr(value)
    except Exception:  # a plug-in's own __repr__
        text = "a value without text"
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: _MOST_VALUE + 1])
    return (
        f"{type(value).__name__} {text}"
        if len(text) <= _MOST_VALUE
        else f"{type(value).__name__} {text[:_MOST_VALUE]}…"
    )


def full_version(code_version: str, module: str) -> str:
    """Return the version of code in a loaded module: for a plug-in, with a digest of its file, so that an edit counts
    as a new version.
    """
    if is_own(module):
        return code_version
    if module not in _digests:
        file = sys.modules[module].__file__
        _digests[module] = _digest(Path(file).read_bytes()) if file else ""
    return f"{code_version}.{_digests[module]}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _failure(error: BaseException, file: str = "", what: str = "") -> str:
    """Return the kind and the message of an error in a plug-in, after the file and the line where it arose there."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines, error = [error.lineno], type(error)(error.msg)
    where = f"{file}:{lines[-1]}: " if lines else f"{file}: " if file else ""
    try:
        said = " ".join(str(error).split())[:_MOST_SHOWN]
    except Exception:  # a plug-in's own __str__
        said = "an error without text"
    return f"{where}{f'{what}: ' if what else ''}{type(error).__name__}: {said}"
