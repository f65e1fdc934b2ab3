"""The table of finished training runs, against the definitions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Script = Callable[[str], ModuleType]


def runs(method: str, far: Sequence[float], first_seed: int = 5) -> list[dict[str, Any]]:
    return [
        {"seed": first_seed + i, "method": method, "samples": 9, "need_far": 0.5, "recall": {"far": each, "near": 0.9}}
        for i, each in enumerate(far)
    ]


def test_the_interval_is_students(script: Script) -> None:
    values = [0.1, 0.3, 0.2]
    mean = sum(values) / 3
    error = (sum((each - mean) ** 2 for each in values) / 2 / 3) ** 0.5
    expected = (mean - 4.302653 * error, mean + 4.302653 * error)  # 97.5 % of t with two degrees of freedom
    assert script("common_effect").t_interval(values) == pytest.approx(expected, rel=1e-6)


def test_the_interval_holds_the_mean_as_often_as_it_says(script: Script) -> None:
    rng, effect = np.random.default_rng(0), script("common_effect")
    held = [low < 0 < high for low, high in (effect.t_interval(rng.normal(size=4)) for _ in range(1000))]
    assert 0.92 < np.mean(held) < 0.98


def test_differences_pair_the_seeds(script: Script) -> None:
    known = [*runs("random", [0.5, 0.7, 0.6]), *runs("m", [0.8, 0.9], first_seed=6)]
    assert script("common_effect").differences(known, "m", "random", "far") == pytest.approx([0.1, 0.3])
    assert script("common_effect").differences(known, "m", "absent", "far") == []


def test_the_best_comes_first_and_one_seed_has_no_interval(script: Script) -> None:
    known = [*runs("random", [0.5, 0.7]), *runs("worse", [0.4, 0.6]), *runs("better", [0.9])]
    rows = script("common_effect").rows_of(known)
    assert [row[0] for row in rows] == ["better", "random", "worse"]
    assert rows[0][1:] == ["1", "9", "0.50", "0.900 [0.900, 0.900]", "0.900 [0.900, 0.900]",
                           "+0.400 (one seed)", "+0.000 (one seed)"]  # fmt: skip
    assert rows[1][4:] == ["0.600 [0.500, 0.700]", "0.900 [0.900, 0.900]", "-", "-"]
    assert rows[2][6] == "-0.100 (-0.100 to -0.100)"
    assert script("common_effect").gain([]) == "-"


def test_lines_of_other_settings_and_cut_lines_do_not_count(script: Script, tmp_path: Path) -> None:
    effect, file = script("common_effect"), tmp_path / "new" / "runs.jsonl"
    wanted = {(5, "m"): {"rate": 1}, (6, "m"): {"rate": 3}}
    assert effect.finished(file, wanted) == {}
    (one,), (other,) = runs("m", [0.5]), runs("not asked for", [0.5])
    effect.add(file, {"rate": 1}, one)
    effect.add(file, {"rate": 2}, one | {"need_far": 0.9})
    effect.add(file, {"rate": 1}, other)
    with file.open("a") as lines:
        lines.write('{"settings": {')
    assert effect.finished(file, wanted) == {(5, "m"): one}
