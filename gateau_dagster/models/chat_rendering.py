"""Conversations by a tokenizer's chat template, on the same day every day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Templates that print today's date would give other scores tomorrow. Some take it as `date_string` (Llama 3), some
# call `strftime_now` whatever they are given (gpt-oss, SmolLM3).
_FIXED = datetime(2024, 7, 26, tzinfo=UTC)
FIXED_DATE = f"{_FIXED:%d %b %Y}"
# How chat templates mark a model's thoughts: Qwen, DeepSeek and GLM; Mistral; Cohere; gpt-oss; Gemma.
_OF_THOUGHTS = (
    *("<think>", "</think>", "reasoning_content", "enable_thinking", "[THINK]", "<|START_THINKING|>"),
    *("<|channel|>analysis", "<|channel>thought"),
)
_CALLED = "strftime_now"
_CODES = (*"aAbBcdDeFfgGhHIjmMnprRStTuUVwWxXyYzZ", *(f"-{code}" for code in "dHIjmMSy"), "%")


def render_chat(
    tokenizer: PreTrainedTokenizerBase, conversation: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
) -> object:
    """A conversation, `role` and `content` by turn, as the template prints it. Raises whatever the template raises."""
    given: list[Any] = [dict(message) for message in conversation]
    template = tokenizer.get_chat_template()
    if _CALLED in template:
        template = _fixed_clock() + template
    return tokenizer.apply_chat_template(
        given,
        chat_template=template,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        date_string=FIXED_DATE,
    )


def has_thoughts(template: str | None) -> bool:
    """Return whether a chat template has a place for a model's thoughts, so that its answers may begin with them."""
    return template is not None and any(mark in template for mark in _OF_THOUGHTS)


def rendering_settings(template: str) -> dict[str, str]:
    """What decides a prompt beside the template: for 'chat' the date, which was today's where a template called for it.

    Only for 'chat': what is shown by another template stays as it is.
    """
    return {"chat template's date": FIXED_DATE} if template == "chat" else {}


def _fixed_clock() -> str:
    """`strftime_now` as a macro before the template: the library takes no function, and replaces one by its name.

    The line's end after it is not printed, and the template begins on a line of its own, as it did.
    """
    replaced = "".join(f".replace('%{code}', {_FIXED.strftime(f'%{code}')!r})" for code in _CODES)
    return f"{{% macro {_CALLED}(format) %}}{{{{ format{replaced} }}}}{{% endmacro %}}\n"
