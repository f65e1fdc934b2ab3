"""Where in the YAML file a key stands."""

from collections.abc import Iterator, Sequence

import yaml


def line_of(node: yaml.Node | None, place: Sequence[int | str]) -> int:
    """The line of a key, or of the nearest enclosing one that is in the file; lines count from 1."""
    line = 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            match = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if match is None:
                break
            line, node = match[0].start_mark.line + 1, match[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            item: yaml.Node = node.value[part]
            line, node = item.start_mark.line + 1, item
    return line


def repeated_keys(node: yaml.Node | None, name: str, place: tuple[str, ...] = ()) -> Iterator[str]:
    """One line about each key that stands twice in a section: YAML would silently take the last one."""
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, int] = {}
    for key, value in node.value:
        path, line = (*place, str(key.value)), key.start_mark.line + 1
        if key.value in first:
            yield f"  {name}:{line}: {'.'.join(path)}: stands twice, first in line {first[key.value]}"
        first.setdefault(key.value, line)
        if value.start_mark.index >= key.start_mark.index:  # an alias leads back to its anchor, already seen
            yield from repeated_keys(value, name, path)
