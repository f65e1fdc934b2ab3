"""Find the facts that the demo planted for a sample's instruction: the ground truth of its evidence map."""

import re


def planted_values(context: str, instruction: str) -> list[int]:
    """Return the first character, in the context, of the value of each requested fact; none if nothing is recalled."""
    verb, *attributes = instruction.split() or [""]
    if verb != "recall":
        return []
    found = (re.search(rf"(?<!\S)note {re.escape(name)} (\S+) \.(?!\S)", context) for name in attributes)
    return [place.start(1) for place in found if place is not None]
