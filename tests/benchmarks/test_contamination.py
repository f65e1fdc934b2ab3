"""The benchmark of contamination: both sides find what is planted."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

Script = Callable[[str], ModuleType]


def test_both_sides_find_the_same(script: Script, tmp_path: Path) -> None:
    contamination = script("contamination")
    questions = contamination.make_questions(6, 80)
    samples = contamination.make_samples(9, 200, questions)
    found = contamination.straightforward(samples, contamination.straightforward_index(questions))
    planted = {
        (f"s{number}", f"q{number % 6}"): contamination.PASSAGE - contamination.NGRAM + 1 for number in (0, 4, 8)
    }
    assert found == planted == contamination.hashed(samples, contamination.AskedTexts.of(questions))
    sizes = ["--questions", "4", "--many", "6", "--question-words", "50", "--samples", "4", "--words", "90"]
    assert contamination.main([*sizes, "--rounds", "1", "--out", str(tmp_path / "found.json")]) == 0
    assert json.loads((tmp_path / "found.json").read_text())["equal"]
