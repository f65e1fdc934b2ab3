"""The calibration runs on any device for any decoder, is remembered, and fails without harm."""

import json
import math
from pathlib import Path

import pytest
import torch

from gateau_dagster.config import ScoringConfig
from gateau_dagster.estimate import calibration, random_model, stopwatch
from gateau_dagster.estimate.calibration import Speed, calibrated
from gateau_dagster.estimate.random_model import calibration_layers, with_layers
from gateau_dagster.estimate.stopwatch import Lengths, Timing, fit
from gateau_dagster.models.devices import matrix_product_speed
from gateau_dagster.models.flops import ModelShape
from tests.tiny_models import model_config

_LENGTHS = Lengths(prompt=64, response=8, segment=32)
_SCORING = ScoringConfig(dtype="float32", device="cpu", batch_tokens=256)


def measured(folder: Path, kind: str = "llama", lengths: Lengths = _LENGTHS) -> Speed | str:
    return calibrated(model_config(kind), lengths, _SCORING, work_folder=folder)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mixtral", "gpt2"])
def test_any_decoder_can_be_timed(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "_SECONDS", 1e3)  # however slow this machine is
    speed = measured(tmp_path, kind)
    assert isinstance(speed, Speed), speed
    assert speed.segments > 0 and speed.head > 0 and speed.linear + speed.attention + speed.overhead > 0
    assert (speed.longest, speed.layers) == (64, 2)
    assert all(math.isfinite(getattr(speed, name)) for name in Speed.__dataclass_fields__)


def test_without_cam_no_segments_are_timed(tmp_path: Path) -> None:
    speed = measured(tmp_path, lengths=Lengths(prompt=16, response=4, segment=0))
    assert isinstance(speed, Speed) and speed.segments == speed.rows == 0


def test_it_is_remembered_and_a_damaged_memory_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measured(tmp_path)
    monkeypatch.setattr(calibration, "_measured", lambda *_: pytest.fail("measured again"))
    assert measured(tmp_path) == first
    monkeypatch.setattr(calibration, "_measured", lambda *_: first)
    file = tmp_path / "cache" / "calibration.json"
    (key,) = json.loads(file.read_text())
    for content in ("", "{", "[]", json.dumps({key: {"linear": 1}}), json.dumps({key: "x"})):
        file.write_text(content)
        assert measured(tmp_path) == first
        assert json.loads(file.read_text())[key]["layers"] == 2


def test_another_model_or_other_lengths_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    speed = Speed(overhead=0, linear=1, attention=1, head=1, segments=1, rows=1, longest=1, layers=1)
    monkeypatch.setattr(calibration, "_measured", lambda *given: calls.append(given) or speed)
    for kind, lengths in (
        ("llama", _LENGTHS),
        ("llama", Lengths(prompt=64, response=8, segment=16)),
        ("qwen2", _LENGTHS),
    ):
        measured(tmp_path, kind, lengths)
    assert len(calls) == 3


def test_short_of_memory_is_unknown_and_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_model, "free_memory", lambda _: 1e5)
    assert "too much for this device" in str(measured(tmp_path))

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(calibration, "_measured", fail)
    assert "out of memory" in str(measured(tmp_path))
    assert not (tmp_path / "cache").exists(), "a failure is not remembered"


def test_a_work_folder_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert isinstance(measured(tmp_path, lengths=Lengths(prompt=16, response=4, segment=0)), Speed)


def passes(overhead: float, linear: float, attention: float, lengths: list[int]) -> list[Timing]:
    return [
        Timing(
            length=n,
            linear=1e6 * n,
            attention=1e3 * n * n,
            seconds=overhead + linear * 1e6 * n + attention * 1e3 * n**2,
        )
        for n in lengths
    ]


def test_the_fit_finds_the_rates_that_made_the_times() -> None:
    found = fit(passes(0.01, 2e-9, 3e-9, [128, 512, 2048, 8192]))
    assert found == pytest.approx((0.01, 2e-9, 3e-9), rel=0.1)
    assert fit(passes(0.01, 2e-9, 2e-9, [128, 512, 2048])) == pytest.approx((0.01, 2e-9, 2e-9), rel=1e-6)


def test_the_fit_of_few_passes_is_not_extreme() -> None:
    assert fit(passes(0.0, 2e-9, 2e-9, [128])) == pytest.approx((0.0, 2e-9, 2e-9))
    noisy = [Timing(length=n, linear=1e6 * n, attention=1e3 * n * n, seconds=s) for n, s in ((128, 0.1), (256, 0.35))]
    overhead, linear, attention = fit(noisy)
    assert min(overhead, linear, attention) >= 0
    assert attention < 20 * noisy[-1].seconds / (noisy[-1].linear + noisy[-1].attention)


def test_layers_of_the_timed_model() -> None:
    small, large = ModelShape.of(model_config("llama")), ModelShape.of(model_config("llama", intermediate_size=10**6))
    assert calibration_layers(small, 2e7) == 2
    assert calibration_layers(large, 2e7) == 1
    config = model_config("gemma2", num_hidden_layers=6, layer_types=None)
    reduced = with_layers(config, 3)
    assert (reduced.num_hidden_layers, len(reduced.layer_types), config.num_hidden_layers) == (3, 3, 6)


def test_the_speed_of_this_machine_is_plausible() -> None:
    assert 1e7 < matrix_product_speed("cpu", "float32") < 1e14
