"""The clock of chat templates, against the standard library's of the same day."""

from datetime import UTC, datetime

import pytest
from transformers import PreTrainedTokenizerFast

from gateau_dagster.models.chat_rendering import FIXED_DATE, render_chat, rendering_settings
from tests.tiny_models import tokenizer

TURN = [{"role": "user", "content": "hello"}]


def printed(template: str) -> object:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend_tokenizer)
    fast.chat_template = template
    return render_chat(fast, TURN, add_generation_prompt=True)


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d", "%d %B %Y", "%A, %b %-d %y", "%H:%M:%S.%f", "%-m/%e %I %p", "%j %U", "%F %T", "100 %% 'x'"]
)
def test_the_time_is_always_the_same(form: str) -> None:
    assert printed(f'{{{{ strftime_now("{form}") }}}}') == datetime(2024, 7, 26, tzinfo=UTC).strftime(form)


def test_a_template_finds_the_clock_everywhere_and_is_printed_as_before() -> None:
    body = (
        "  {% macro head(form) %}\n  {{ CLOCK }}{% endmacro %}\n  {% if true %}\n {{ head('%d %b %Y') }}{% endif %}\n x"
    )
    assert printed(body.replace("CLOCK", "strftime_now(form)")) == printed(body.replace("CLOCK", f"'{FIXED_DATE}'"))
    assert printed("{{ strftime_now is defined }} {{ messages[0].content }}") == "True hello"


def test_rows_by_a_chat_template_are_those_of_the_date() -> None:
    assert rendering_settings("chat") == {"chat template's date": FIXED_DATE}
    assert rendering_settings("gateau") == {}, "what the date is no part of is not made again for it"
