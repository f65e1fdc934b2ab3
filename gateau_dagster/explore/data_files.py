"""Write the viewer's data to a store; a file that is there with the same content is not written again."""

from collections.abc import Mapping
from typing import Any

from gateau_dagster.explore.scripts import FOLDER, as_script, named_by_content
from gateau_dagster.storage.documents import beside, content_version
from gateau_dagster.storage.files import Files


class DataFiles:
    """The data files of a page that is being built. The previous page keeps its files until the new one replaces it."""

    def __init__(self, files: Files, written: Mapping[str, str] | None = None) -> None:
        """Read what is there; a damaged file, or one of unknown content, counts as missing.

        Args:
            written: the versions of the files that the previous page loads, from its stamp.

        Raises:
            GateauError, TransientError: see `Files.write`.
        """
        self._files = files
        self._there = beside(files, FOLDER)
        self._whole = {name: version for name, version in self._there.items() if (written or {}).get(name) == version}
        self._used: dict[str, str] = {}

    def keep(self, *names: str) -> bool:
        """Return whether all of these files are there and intact; those that are now belong to this page."""
        addresses = [f"{FOLDER}/{name}" for name in names]
        self._used |= {each: self._whole[each] for each in addresses if each in self._whole}
        return all(each in self._whole for each in addresses)

    def write(self, name: str, content: Any) -> None:
        """Write a file, in one step.

        Raises:
            GateauError, TransientError: see `Files.write`.
        """
        data = as_script(name, content)
        self._files.write(f"{FOLDER}/{name}", data)
        self._whole[f"{FOLDER}/{name}"] = self._used[f"{FOLDER}/{name}"] = content_version(data)

    def put(self, kind: str, content: Any) -> str:
        """Write a file that is named by its content, unless it exists; return its name."""
        name = named_by_content(kind, content)
        if not self.keep(name):
            self.write(name, content)
        return name

    def versions(self) -> dict[str, str]:
        """Return the version of each file of this page, for the page's stamp.

        Raises:
            GateauError, TransientError: see `Files.write`.
        """
        present = self._used if self._files.is_local else beside(self._files, FOLDER)
        return {name: present[name] for name in sorted(self._used)}

    def remove_others(self) -> None:
        """Remove the files that no page refers to any more; call it when the new page is in place."""
        for name in sorted({*self._there} - {*self._used}):
            self._files.remove(name)
