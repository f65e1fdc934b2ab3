"""Where a record's facts are, by a slow search of its words: knows nothing of how the record was made."""

from functools import cache
from itertools import pairwise

from common_harder import KINDS, harder_samples

from gateau_dagster.demo.language import ATTRIBUTES, VALUES

Record = dict[str, str]
PER_KIND = 5
WINDOW = 256
SEEN_AT_LEAST = 190  # context tokens that theta_A sees: its window without prompt, instruction and longest response
ALL_VALUES = {value for values in VALUES.values() for value in values}


@cache
def made(size: str = "medium") -> tuple[Record, ...]:
    """The set with PER_KIND records a kind."""
    return tuple(harder_samples(PER_KIND * len(KINDS), 5, size=size))


def of(kind: str, size: str = "medium") -> list[Record]:
    """The records of a kind."""
    return [record for record in made(size) if record["source"] == kind]


def stated(record: Record) -> list[tuple[str, str, int]]:
    """Attribute, value and tokens from the statement's first word to the context's end, in reading order."""
    words = record["context"].split()
    found = []
    for place, word in enumerate(words):
        if word == "note":
            assert words[place + 3] == "." and words[place + 1] in ATTRIBUTES
            found.append((words[place + 1], words[place + 2], len(words) - place))
    return found


def asked(record: Record) -> list[str]:
    """Attributes that the instruction recalls."""
    words = record["instruction"].split()
    return words[words.index("recall") + 1 :] if "recall" in words else []


def answered(record: Record) -> list[tuple[str, str]]:
    """Attribute and value pairs of the response."""
    words = record["response"].split()
    return [(first, second) for first, second in pairwise(words) if first in ATTRIBUTES]


def distances(record: Record, *, with_value: bool = True) -> list[int]:
    """Tokens to the context's end of every statement of an asked attribute; with_value: only of the answer's value."""
    pairs = set(answered(record))
    return [
        far for name, value, far in stated(record) if ((name, value) in pairs if with_value else name in asked(record))
    ]


def segment_of(record: Record, distance: int, length: int = 128) -> int:
    """Which segment holds the word that is `distance` tokens before the context's end."""
    return (len(record["context"].split()) - distance) // length
