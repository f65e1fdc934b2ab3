"""The GPU script, whole, on a CPU with tiny models; and what it does with parts that fail or come too late."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.mark.long
def test_the_whole_script(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpu.json"
    status = script("gpu").main(["--tiny", "--device", "cpu", "--out", str(file)])
    found = json.loads(file.read_text())
    parts = found["parts"]
    assert not {name: part for name, part in parts.items() if "error" in part or "skipped" in part}
    assert status == 0 and found["tiny"]
    for kind in ("plain", "joint", "segments"):
        for name in (f"{kind} 128", f"{kind} 256", f"grouped {kind} 256"):
            assert parts[name]["flops"] > 0 and parts[name]["best_seconds"] > 0
        assert parts[f"kernels of {kind}"]["largest"] and parts[f"kernels of {kind}"]["attention"]
    assert max(parts["parity"]["float32"].values()) < 1e-4
    assert parts["straightforward"]["ratio"] > 0
    assert parts["whole samples, short"]["flops"] > parts["segments 128"]["flops"]
    printed = capsys.readouterr().out
    assert "parity with the CPU, float32" in printed and "share of peak, joint at 256" in printed


def test_a_part_that_fails_is_recorded_and_the_rest_goes_on(script: Script, tmp_path: Path) -> None:
    parts = script("gpu_parts").Parts(file=tmp_path / "gpu.json", budget_seconds=100, tiny=False)

    def fail() -> dict[str, object]:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 20 GiB")

    parts.run("first", 10, fail)
    parts.run("too long", 1000, lambda: pytest.fail("there is no time for it"))
    parts.run("last", 10, lambda: {"value": 1})
    found = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert found["first"]["error"] == "RuntimeError: CUDA out of memory."
    assert "it may take 1000" in found["too long"]["skipped"]
    assert found["last"]["value"] == 1


def test_numbers_that_differ_or_parts_that_fail_are_an_error(script: Script) -> None:
    conclusions, settings = script("gpu_report").conclusions, script("gpu").QUICK
    good = {"float32": {"perplexity": 1e-6, "cas": 9e-5}, "bfloat16": {"perplexity": 9e-3}}
    assert conclusions({"parity": good}, settings)[1]
    assert not conclusions({"parity": good | {"float32": {"perplexity": 2e-4}}}, settings)[1]
    assert not conclusions({"parity": good, "model": {"error": "OutOfMemoryError: ..."}}, settings)[1]
    assert not conclusions({"parity": {"error": "no kernel"}}, settings)[1]


def test_shares_of_the_peak(script: Script) -> None:
    measured = {"flops": 4e12, "best_seconds": 2.0, "tokens": 10, "total_peak_bytes": 2**30}
    results = {"matrix_product_peak": {"flops_per_second": 4e12}, "joint 16384": measured, "plain 4096": {"error": "x"}}
    rows = script("gpu_report").rows_of(results)
    assert rows == [["joint 16384", "2.000", "5", "2", "50%", "1.0"], ["plain 4096", "failed", "", "", "", ""]]
    lines, _ = script("gpu_report").conclusions(results | {"parity": {"error": "x"}}, script("gpu").FULL)
    assert lines[0] == "share of peak, joint at 16384: 0.5 (target >= 0.5: met)"
