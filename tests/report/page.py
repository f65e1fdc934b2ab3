"""What a browser would see of a page: tags with attributes, visible text, sections."""

import re
from html.parser import HTMLParser

_VOID = {"meta", "img", "link", "br", "hr", "input", "wbr", "source"}


class Page(HTMLParser):
    """Parses strictly: a tag that closes what is not open is an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text_of: dict[str, str] = {}
        self.styles = ""
        self._open: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1][0] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] == "style":
            self.styles += data
            return
        for _, name in self._open:
            if name:
                self.text_of[name] = self.text_of.get(name, "") + data
        self.text_of["page"] = self.text_of.get("page", "") + data

    def text(self, section: str = "page") -> str:
        """Visible text of the element with this id, white space collapsed."""
        return re.sub(r"\s+", " ", self.text_of[section])

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]
