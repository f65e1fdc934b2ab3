"""Where the demo planted the facts that a sample's instruction asks for: the ground truth of its evidence map."""

import re


def planted_values(context: str, instruction: str) -> list[int]:
    """First character of the value of each fact that is asked for, in the context; none where nothing is recalled."""
    verb, *attributes = instruction.split() or [""]
    if verb != "recall":
        return []
    found = (re.search(rf"(?<!\S)note {re.escape(name)} (\S+) \.(?!\S)", context) for name in attributes)
    return [place.start(1) for place in found if place is not None]
