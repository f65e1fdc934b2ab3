"""The judge's section: an address without credentials, a variable's name and never a key, a budget with prices."""

from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config.load import parse_config
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.config import EvaluationConfig
from gateau_dagster.features.evaluation.servers import JudgeConfig
from tests.kit.error_codes import refused

JUDGE = {"base_url": "https://api.openai.com/v1/", "model": "gpt-4o"}
KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz"


def judge(**keys: Any) -> JudgeConfig:
    return JudgeConfig.model_validate({**JUDGE, **keys})


def test_a_key_in_the_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    text = f"""
long_sft: {{path: long.jsonl}}
evaluation:
  judge:
    base_url: https://me:{KEY}@api.openai.com/v1
    model: gpt-4o
    key: {KEY}
"""
    with refused("gateau.several", match=r"(?s)\[config\.credentials\].*\[config\.secret_in_file\]") as raised:
        parse_config(text, folder=tmp_path)
    assert KEY not in str(raised.value)


def test_without_a_judge_the_section_is_written_as_ever() -> None:
    assert "judge" not in EvaluationConfig().model_dump(mode="json")
    written = EvaluationConfig.model_validate({"judge": JUDGE}).model_dump(mode="json")
    assert EvaluationConfig.model_validate(written).judge == judge()
    assert judge().base_url == JUDGE["base_url"].rstrip("/")


@pytest.mark.parametrize(
    "engine",
    [
        f"{{base_url: 'http://host/v1', key: {KEY}}}",
        "{base_url: 'http://host/v1', key: abcdef0123456789abcdef}",
        "{base_url: 'http://host/v1', key: AKIAIOSFODNN7EXAMPLE}",
        f"{{base_url: 'http://host/v1', key: [{KEY}]}}",
        f"{{base_url: 'http://host/v1', key: {{{KEY}: 1}}}}",
        "{base_url: 'http://host/v1', key: 0123456789012345}",
        f"{{base_url: 'http://host/v1', key: *{KEY}}}",
        f"{{base_url: 'http://host/v1', api_key: {KEY}}}",
        f"{KEY}",
    ],
)
def test_a_key_in_place_of_an_engine_s_variable_is_refused_and_not_shown(engine: str, tmp_path: Path) -> None:
    with pytest.raises(GateauError) as raised:
        parse_config(f"long_sft: {{path: long.jsonl}}\nevaluation:\n  engine: {engine}\n", folder=tmp_path)
    message = str(raised.value)
    assert "gateau.yaml:3" in message
    secrets = (KEY, "abcdef0123456789", "AKIAIOSFODNN7", "0123456789012345")
    assert not any(secret[:8] in message for secret in secrets)


def test_a_variable_that_is_set_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("team_key_1", "value-of-it")
    assert judge(key="team_key_1").key == "team_key_1"
