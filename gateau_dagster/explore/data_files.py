"""The viewer's data in a store: what lies there under its name already is not written again."""

from typing import Any

from gateau_dagster.explore.scripts import FOLDER, as_script, named_by_content
from gateau_dagster.storage.files import Files


class DataFiles:
    """The files beside a page that is being made. The page before it keeps its own until this one is in its place."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._there = {*files.names(FOLDER)}
        self._used: set[str] = set()

    def keep(self, *names: str) -> bool:
        """Whether all of these files are there; those that are belong to this page from now on."""
        self._used |= self._there.intersection(names)
        return self._there.issuperset(names)

    def write(self, name: str, content: Any) -> None:
        """Writes a file, in one step.

        Raises:
            GateauError, TransientError: see `Files.write`.
        """
        self._files.write(f"{FOLDER}/{name}", as_script(name, content))
        self._there.add(name)
        self._used.add(name)

    def put(self, kind: str, content: Any) -> str:
        """Writes a file that is named by what is in it, unless it is there; returns its name."""
        name = named_by_content(kind, content)
        if not self.keep(name):
            self.write(name, content)
        return name

    def remove_others(self) -> None:
        """Removes what no page refers to any more; called when the new page is in its place."""
        for name in sorted(self._there - self._used):
            self._files.remove(f"{FOLDER}/{name}")
        self._there &= self._used
