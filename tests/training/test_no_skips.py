"""A probability of 0 is plain training to the bit, whatever the batches."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gateau_dagster.training.metrics import read_log
from gateau_dagster.training.run import train
from gateau_dagster.training.spec import TrainingSpec

from .builders import make_spec

NEVER = {"strategy": "all", "length": 500, "probability": 0.0}


@pytest.mark.parametrize(
    "batching", ["padded", *(pytest.param(other, marks=pytest.mark.long) for other in ("sorted", "packed"))]
)
def test_skips_of_probability_0_are_plain_training_to_the_bit(tmp_path: Path, batching: str) -> None:
    plain = make_spec(tmp_path, name="plain", batching=batching, max_steps=6)
    never = make_spec(tmp_path, name="never", batching=batching, max_steps=6, skip=NEVER)
    for spec in (plain, never):
        train(spec, lambda metrics: None)
    assert losses(plain) == losses(never)
    wanted, found = (load_file(spec.output / "model.safetensors") for spec in (plain, never))
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        assert torch.equal(value, found[name]), name
    assert (plain.output / "config.json").read_bytes() == (never.output / "config.json").read_bytes()


def losses(spec: TrainingSpec) -> list[tuple[float, float]]:
    found = [(step["loss"], step["grad_norm"]) for step in read_log(spec.log)]
    assert len(found) == 6
    return found
