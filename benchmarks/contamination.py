"""How fast the data are compared with a benchmark's questions: hashed n-grams against sets of tuples.

    .venv/bin/python benchmarks/contamination.py --out build/benchmarks/contamination.json

The straightforward side splits texts by a regular expression and holds the questions' 13-grams as tuples in a
dictionary; it estimates no similarity. Both read the same texts in turns, and what they find is compared. Words are
drawn from a vocabulary of 50,000 as often as a rank's inverse; some texts have a passage of a question planted.
`hashed only` is the larger index that the straightforward side has no room for.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from common_measure import PeakMemory, Spread, interleaved, machine, memory_held, ratios, say, show, table, write_json

from gateau_dagster.evaluation.contamination.asked_texts import AskedTexts
from gateau_dagster.evaluation.contamination.overlaps import overlaps
from gateau_dagster.evaluation.questions import Generation, Question

NGRAM = 13
PASSAGE = 40
VOCABULARY = 50_000
Samples = Sequence[tuple[str, tuple[str, str, str]]]
Found = Mapping[tuple[str, str], int]


@cache
def vocabulary() -> np.ndarray:
    """Words of two to nine letters."""
    drawn = np.random.default_rng(0)
    letters = drawn.integers(97, 123, (VOCABULARY, 9), dtype=np.uint8).tobytes().decode()
    sizes = drawn.integers(2, 10, VOCABULARY)
    return np.array([letters[9 * number : 9 * number + size] for number, size in enumerate(sizes)])


def make_texts(count: int, words: int, seed: int) -> list[str]:
    """Texts of so many words."""
    drawn = np.random.default_rng(seed)
    return [" ".join(vocabulary()[drawn.zipf(1.2, words) % VOCABULARY]) for _ in range(count)]


def make_questions(count: int, words: int) -> list[Question]:
    """One turn each, of a group of its own."""
    generation = Generation(max_new_tokens=1)
    return [
        Question(question_id=f"q{number}", group=str(number), turns=(text,), generation=generation)
        for number, text in enumerate(make_texts(count, words, seed=1))
    ]


def make_samples(count: int, words: int, questions: Sequence[Question]) -> Samples:
    """Every fourth has a passage of a question, in capitals."""
    samples = []
    for number, text in enumerate(make_texts(count, words, seed=2)):
        passage = " ".join(questions[number % len(questions)].turns[0].split()[:PASSAGE]).upper()
        planted = f"{text} “{passage}”" if number % 4 == 0 else text
        samples.append((f"s{number}", (planted, "What is asked of it?", "What is answered.")))
    return samples


def straightforward_index(questions: Sequence[Question]) -> dict[tuple[str, ...], set[str]]:
    """The questions that have each n-gram."""
    found: dict[tuple[str, ...], set[str]] = {}
    for question in questions:
        for gram in _grams(question.turns[0]):
            found.setdefault(gram, set()).add(question.question_id)
    return found


def straightforward(samples: Samples, index: Mapping[tuple[str, ...], set[str]]) -> Found:
    """How many different n-grams each sample shares with each question."""
    shared: dict[tuple[str, str], int] = {}
    for sample_id, texts in samples:
        for gram in {gram for text in texts for gram in _grams(text)}:
            for question_id in index.get(gram, ()):
                shared[sample_id, question_id] = shared.get((sample_id, question_id), 0) + 1
    return shared


def _grams(text: str) -> list[tuple[str, ...]]:
    words = re.findall(r"[^\W_]+", text.casefold())
    return [tuple(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1)]


def hashed(samples: Samples, asked: AskedTexts) -> Found:
    """The same by the project's own."""
    return {
        (sample, question): shared for sample, question, shared, *_ in overlaps(samples, asked).iter_rows() if shared
    }


def timed(make: Callable[[], object]) -> tuple[object, float, float]:
    """What it makes; seconds; GiB more at the peak."""
    device = torch.device("cpu")
    before, peak, started = memory_held(device), PeakMemory(device), time.perf_counter()
    made = make()
    return made, time.perf_counter() - started, (peak.read() - before) / 2**30


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; the exit status: 1 where the two sides find something else."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=100, help="of both sides, default 100")
    parser.add_argument("--many", type=int, default=1000, help="questions of the larger index, default 1000")
    parser.add_argument("--question-words", type=int, default=10_000, help="of each question, default 10000")
    parser.add_argument("--samples", type=int, default=16, help="default 16")
    parser.add_argument("--words", type=int, default=46_000, help="of each sample, default 46000: 60,000 tokens")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args(arguments)
    description, words = machine(), options.samples * options.words
    many = make_questions(options.many, options.question_words)
    few = many[: options.questions]
    samples = make_samples(options.samples, options.words, few)
    say("the questions ...")
    asked, large = AskedTexts.of(few), timed(lambda: AskedTexts.of(many))
    index = straightforward_index(few)
    larger = large[0]
    assert isinstance(larger, AskedTexts)
    equal = hashed(samples, asked) == straightforward(samples, index)
    seconds = interleaved(
        {
            "straightforward": lambda: straightforward(samples, index),
            "hashed": lambda: hashed(samples, asked),
            "hashed only": lambda: hashed(samples, larger),
        },
        options.rounds,
        torch.device("cpu"),
    )
    speed = {name: Spread.of([words / each / 1e6 for each in found]) for name, found in seconds.items()}
    show(table(["side", "million words/s (quartiles)"], [[name, each.show(2)] for name, each in speed.items()]))
    times = ratios(seconds["straightforward"], seconds["hashed"])
    show(f"hashed is {times.show(1)} times as fast; both find {'the same' if equal else 'SOMETHING ELSE'}")
    size = f"{options.many} questions of {options.question_words} words"
    show(f"{size} are read in {large[1]:.1f} s and {large[2]:.2f} GiB")
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    results = {"million_words_per_second": speed, "ratio": times, "equal": equal}
    results |= {"index_seconds": large[1], "index_peak_gib": large[2]}
    write_json(options.out, {"machine": description, "settings": settings, **results})
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
