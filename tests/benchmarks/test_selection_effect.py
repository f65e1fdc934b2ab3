"""The effect benchmark on untrained pairs: what is run, what is kept, and what makes a kept run stale."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gateau_dagster.methods.registry import CODE_VERSION, all_methods
from gateau_dagster.pipeline import declarations
from tests.pipeline.code_versions import raise_version

Script = Callable[[str], ModuleType]
KINDS = "far_count_1 near_count_1 two_hop"
DATA = f"--tiny --per-kind 1 --base 5 --size small --segment-length 64 --kinds {KINDS} --seeds 0"
FEW = f"{DATA} --baselines untrained labels --share 0.25 --epochs 1 --repeats 2".split()
KEPT: tuple[str, ...] = ("untrained", "labels", "length", "gateau[robust]")


def test_runs_are_not_run_again(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = [*FEW, "--methods", "length", "--folder", str(tmp_path), "--runs", str(tmp_path / "runs.jsonl")]
    for out, missing in (("a.json", 3), ("b.json", 0)):
        assert script("selection_effect").main([*few, "--out", str(tmp_path / out)]) == 0
        assert f"{missing} of 3 runs are missing" in capsys.readouterr().err
    first, second = (json.loads((tmp_path / out).read_text())["runs"] for out in ("a.json", "b.json"))
    assert first == second
    by_method = {each["method"]: each for each in first}
    assert {name: each["samples"] for name, each in by_method.items()} == {"untrained": 0, "labels": 2, "length": 2}
    assert by_method["labels"]["need_far"] == 1.0
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"settings": {')  # as a killed run leaves it
    script("selection_effect").main(few)
    assert "0 of 3 runs are missing" in capsys.readouterr().err
    assert script("selection_effect").main([*few, "--seeds", "0", "1", "--finished"]) == 0
    printed = capsys.readouterr()
    assert "3 of 6 runs are missing" in printed.err and "labels" in printed.out and "pair 1" not in printed.err


@pytest.fixture
def stale(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[], set[str]]:
    """Which of the runs KEPT, which all stand in the file when the test begins, do not count any more."""
    module, file = script("selection_effect"), tmp_path / "runs.jsonl"
    given = [*FEW, "--methods", *KEPT[2:], "--folder", str(tmp_path), "--runs", str(file), "--finished"]
    arguments = module._options().parse_args(given)
    known = module.Tables(*module.cases_of(arguments))
    for label in KEPT:
        found = {"seed": 0, "method": label, "samples": 1, "need_far": 0.0, "recall": {"far": 0.1, "near": 0.2}}
        module.add(file, module.settings_of(known, label, arguments), found)

    def missing() -> set[str]:
        out = tmp_path / "found.json"
        assert module.main([*given, "--out", str(out)]) == 0
        return set(KEPT) - {each["method"] for each in json.loads(out.read_text())["runs"]}

    assert missing() == set()
    return missing


@pytest.mark.parametrize("name", ["THETA", "RECIPE_VERSION", "DISTANCES"])
def test_what_decides_all_runs(
    script: Script, stale: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(script("selection_effect"), name, {} if name == "DISTANCES" else 1e9)
    assert stale() == set(KEPT)


def test_other_data_of_the_same_seed(
    script: Script, stale: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = script("common_case")
    right = cases.harder_samples

    def changed(*given: Any, **options: Any) -> list[dict[str, str]]:
        first, *others = right(*given, **options)
        return [first | {"response": "of other code"}, *others]

    monkeypatch.setattr(cases, "harder_samples", changed)
    assert stale() == set(KEPT)


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        ("training.training_mix.CODE_VERSION", KEPT),
        ("methods.registry.CODE_VERSION", KEPT[2:]),
        ("selection.combine.CODE_VERSION", ["gateau[robust]"]),
        ("scoring.pair_tables.CAM_CODE_VERSION", ["gateau[robust]"]),
        ("scoring.pair_tables.PERPLEXITY_CODE_VERSION", ["gateau[robust]"]),
        ("training.spec.CODE_VERSION", []),
    ],
)
def test_code_of_what_a_run_goes_through(
    stale: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch, constant: str, expected: list[str]
) -> None:
    raise_version(monkeypatch, f"gateau_dagster.{constant}")
    assert stale() == set(expected)


def test_code_of_the_method_itself(stale: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    methods: Any = all_methods()
    monkeypatch.setitem(methods, "length", replace(methods["length"], code_version="of other code"))
    assert stale() == {"length"}


def test_a_methods_own_table_counts(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods, cases = script("common_methods"), script("common_case")
    what = methods.labelled(cases.Case(folder=tmp_path, pair_seed=0, data_seed=1000), "ladm[scaled]")
    made = methods.sample_tables(what.config)
    (asset,) = made
    own = f"{CODE_VERSION}.{all_methods()['ladm'].code_version}"
    assert methods.code_of(what) == {"method_scores/ladm": own, asset: made[asset].code_version}
    monkeypatch.setattr(declarations, "all_sample_tables", lambda _: {asset: replace(made[asset], code_version="7")})
    assert methods.code_of(what)[asset] == "7"
    with pytest.raises(ValueError, match=r"no method 'ladn': one of .*ladm\[scaled\]"):
        methods.labelled(cases.Case(folder=tmp_path, pair_seed=0, data_seed=1000), "ladn")
