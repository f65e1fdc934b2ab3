"""The specification survives its file, and its key says what may be resumed."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateau_dagster.training.spec import TrainingSpec
from tests.error_codes import refused
from tests.training.builders import make_spec


def test_round_trip(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, deepspeed={"zero_optimization": {"stage": 2}}, max_steps=7, adam_betas=(0.8, 0.9))
    spec = replace(spec, revision="main", rope_theta=1e6, template="chat")
    spec.save(tmp_path / "deep" / "spec.json")
    assert TrainingSpec.load(tmp_path / "deep" / "spec.json") == spec
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["spec.json"]


def test_resume_key_follows_the_result_only(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    training = spec.training
    same = [
        replace(spec, work=tmp_path / "elsewhere"),
        replace(spec, training=training.model_copy(update={"save_steps": 99})),
    ]
    other = [
        replace(spec, fingerprint="other"),
        replace(spec, rope_theta=1e6),
        replace(spec, deepspeed={"zero_optimization": {"stage": 2}}),
        replace(spec, training=training.model_copy(update={"processes": 2})),
        replace(spec, training=training.model_copy(update={"learning_rate": 1e-4})),
    ]
    assert {candidate.resume_key for candidate in same} == {spec.resume_key}
    assert len({candidate.resume_key for candidate in [spec, *other]}) == 1 + len(other)


def test_a_probability_of_0_is_no_skip(tmp_path: Path) -> None:
    plain, never, seldom = (
        make_spec(tmp_path, skip=skip) for skip in (None, {"probability": 0.0}, {"probability": 1e-9})
    )
    assert never == plain
    assert (plain.side_by_side, seldom.side_by_side) == (False, True)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"mix": "a"}', '{"mix": 1, "output": "b", "work": "c"}'])
def test_unusable_files_are_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "spec.json"
    if content is not None:
        path.write_text(content)
    with refused("training.file_damaged", r"spec\.json"):
        TrainingSpec.load(path)
