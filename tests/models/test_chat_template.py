"""Chat templates that fail, and one that does not come to an end."""

from pathlib import Path

import pytest

from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.models import chat_template
from gateau_dagster.models.chat_template import check_chat_template
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.training.encode import encode_conversation
from tests.tiny_models import CHAT_TEMPLATE, tokenizer

SAMPLE = Sample(sample_id="a", source="test", context="the ledger", instruction="what", response="the engine")
LOOP = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only one user') }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ messages[99].content }}",
        "{{ messages | int + [] }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ range(10 ** 9) | list }}",
        "nothing of it",
    ],
)
def test_whatever_a_template_raises_is_one_message(template: str) -> None:
    tokens = tokenizer()
    tokens.chat_template = template
    try:
        with pytest.raises(GateauError, match=r"chat template .*[uU]se template: gateau"):
            build_prompt(tokens, SAMPLE, max_length=100, template="chat")
    finally:
        tokens.chat_template = CHAT_TEMPLATE


def test_a_conversation_that_a_template_fails_on_is_a_reject() -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    tokens = tokenizer()
    tokens.chat_template = "{{ messages[0].content + 1 }}"
    try:
        with pytest.raises(UnscorableSampleError, match="the chat template refuses the conversation"):
            encode_conversation(tokens, talk, template="chat", max_length=100)
    finally:
        tokens.chat_template = CHAT_TEMPLATE


def test_one_that_loops_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_SECONDS", 1.0)
    tokens = tokenizer()
    tokens.save_pretrained(tmp_path)
    check_chat_template(tmp_path, "models.long.path")
    (tmp_path / "chat_template.jinja").write_text(LOOP + CHAT_TEMPLATE)
    with pytest.raises(GateauError, match=r"^models\.long\.path: the chat template of .* comes to no end"):
        check_chat_template(tmp_path, "models.long.path")
