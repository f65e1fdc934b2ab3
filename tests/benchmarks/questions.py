"""A made file in the form of Natural Questions: questions with answers, titles and passages of English-like text."""

import json
from pathlib import Path

from tests.kit.tiny_models import text

COUNT = 120
NAMES = ("Ardal", "Brunor", "Cestam", "Dorvin", "Eskala", "Fintar", "Golnem", "Hastor", "Ilvena", "Jorkad")


def answer(number: int) -> str:
    """A word that stands in one passage only; every third is followed by another."""
    return f"Qu{NAMES[number % 10].lower()}{number}" + (" Hall" if number % 3 == 0 else "")


def record(number: int) -> dict[str, object]:
    """The passage holds the answer in its middle; every fourth question asks about the answer of the one before."""
    half = text(number, 20)
    about = answer(number - 4) if number % 4 == 0 and number >= 4 else f"town {NAMES[number % 10]} {number}"
    asked = ("who built", "when was", "where is", "how many people started")[number // 4 % 4]
    return {
        "question": f"{asked} the song of {about} in the last movie",
        "answers": [answer(number)],
        "title": f"Page {number}",
        "passage": f"{half} Of {about} it is told that {answer(number)} came first. {text(1000 + number, 20)}",
    }


def write_questions(file: Path, count: int = COUNT) -> Path:
    """`count` of them as JSON lines."""
    file.write_text("".join(json.dumps(record(number)) + "\n" for number in range(count)))
    return file
