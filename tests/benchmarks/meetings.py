"""A made file in the form of QMSum: meetings of English-like text, with questions and the turns that answer them."""

import json
from pathlib import Path
from typing import Any

from tests.kit.tiny_models import text

COUNT, TURNS = 12, 60
LONG = 18  # turns that are marked as one range, longer than what the tests' window shows


def meeting(number: int) -> dict[str, Any]:
    """Turn 7 has no words. The marked ranges are of two turns, of LONG turns, two apart, and two that touch."""
    spoken = [f"{text(100 * number + turn, 11)} {{vocalsound}}" for turn in range(TURNS)]
    spoken[7] = "{disfmarker}"
    marked = ([[20, 21]], [[25, 25 + LONG - 1]], [[30, 30], [40, 40]], [[33, 34], [35, 35]], [[7, 7]])
    return {
        "turns": [[f"Speaker {turn % 3}", words] for turn, words in enumerate(spoken)],
        "queries": [
            {"query": f"What of {number} {place}?", "answer": text(9000 + 10 * number + place, 8), "spans": spans}
            for place, spans in enumerate(marked)
        ],
        "general": [{"query": "Summarize it.", "answer": text(8000 + number, 12)}],
    }


def public(short: dict[str, Any]) -> dict[str, Any]:
    """Return the same meeting in the form of the public file."""
    return {
        "meeting_transcripts": [{"speaker": speaker, "content": words} for speaker, words in short["turns"]],
        "specific_query_list": [
            {
                "query": each["query"],
                "answer": each["answer"],
                "relevant_text_span": [[str(first), str(last)] for first, last in each["spans"]],
            }
            for each in short["queries"]
        ],
        "general_query_list": short["general"],
    }


def write_meetings(file: Path, *, form: str = "short") -> Path:
    """Write COUNT of them as JSON lines."""
    made = (meeting(number) for number in range(COUNT))
    file.write_text("".join(json.dumps(public(each) if form == "public" else each) + "\n" for each in made))
    return file
