"""Chat templates that fail, and one that does not come to an end."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models import chat_template
from gateau_dagster.models.chat_rendering import FIXED_DATE, render_chat, rendering_settings
from gateau_dagster.models.chat_template import trial_of, try_chat_template
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.training.encode import encode_conversation
from tests.kit.error_codes import refused
from tests.kit.tiny_models import CHAT_TEMPLATE, tokenizer

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
        "{{ messages[0].content }}{{ messages[0].content }}",
        None,
    ],
)
def test_whatever_a_template_raises_is_one_message(template: str | None) -> None:
    with refused("models.chat_template", "chat template .*[uU]se template: gateau"):
        build_prompt(with_template(template), SAMPLE, max_length=100, template="chat")


def test_a_conversation_that_a_template_fails_on_is_a_reject() -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(UnscorableSampleError, match="the chat template refuses the conversation"):
        encode_conversation(with_template("{{ messages[0].content + 1 }}"), talk, template="chat", max_length=100)


@pytest.mark.long
def test_one_that_loops_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_SECONDS", 0.5)
    tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(LOOP + CHAT_TEMPLATE)
    with refused("models.chat_template", r"models\.long\.path"):
        try_chat_template(tmp_path, "models.long.path")


# What real templates do, each by the least that does it.
TURN = "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n"
ASKS = "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
ALL = "{% for m in messages %}" + TURN + "{% endfor %}" + ASKS
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}" + TURN + "{% endfor %}" + ASKS
)
BEHAVIOUR: dict[str, tuple[str, dict[str, str]]] = {
    "keeps all": (ALL, {"system": "kept", "two exchanges": "kept", "empty system": "printed"}),
    "alternates": (
        STRICT,
        {"system": "refused", "consecutive user turns": "refused", "consecutive answers": "refused"},
    ),
    "drops systems": (
        "{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}" + ASKS,
        {"system": "dropped", "empty system": "as none"},
    ),
    "puts systems into the user's turn": (
        "{% set s = messages[0].content + '\n' if messages[0].role == 'system' else '' %}"
        "{% for m in messages if m.role != 'system' %}<|{{ m.role }}|>\n"
        "{{ s if loop.first }}{{ m.content }}<|end|>\n{% endfor %}" + ASKS,
        {"system": "in the user's turn"},
    ),
    "has a system text of its own": (
        "{% if messages[0].role != 'system' %}<|system|>\nYou are a ledger<|end|>\n{% endif %}" + ALL,
        {"own system": "added", "system": "kept"},
    ),
    "strips thoughts of earlier answers": (
        ALL.replace("m.content", "(m.content if loop.last else m.content.split('</think>')[-1].strip())"),
        {"thoughts of the last answer": "kept", "thoughts of earlier answers": "dropped", "two exchanges": "kept"},
    ),
    "rewrites earlier answers": (
        ALL.replace("<|end|>", "{{ '<|end|>' if loop.last or m.role == 'user' else '</s>' }}"),
        {"two exchanges": "earlier answers rewritten", "one exchange": "kept"},
    ),
    "ends the whole text, too": (ALL + "{% if not add_generation_prompt %}</s>{% endif %}", {"two exchanges": "kept"}),
    "trims": (ALL.replace("m.content", "m.content | trim"), {"one exchange": "kept"}),
    "prints the last turn only": (
        "{% for m in messages[-2:] %}" + TURN + "{% endfor %}" + ASKS,
        {"one exchange": "kept", "two exchanges": "refused"},
    ),
}


def with_template(template: str | None) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend_tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    return fast


@pytest.mark.parametrize("name", BEHAVIOUR)
def test_what_a_template_does_is_known(name: str) -> None:
    template, wanted = BEHAVIOUR[name]
    trial = trial_of(with_template(template))
    assert {kind: trial.behaviour[kind] for kind in wanted} == wanted
    assert trial.ends == ("<|end|>",) and trial.trainable and trial.reason == ""


@pytest.mark.parametrize(
    ("after", "ends"),
    [
        ("<|end|>\n", ("<|end|>",)),
        (" </s>", ("</s>",)),
        ("<|end|></s>", ("<|end|>",)),
        ("<|end|>\n</s>", ("<|end|>",)),  # an eos behind the whole text is not the answer's
        ("{% if m.role == 'user' %}<|end|>{% else %}</s><|end|><|user|>{% endif %}", ("</s>", "<|end|>")),
        (" over.", ()),
        ("<|im_end|>", ()),  # the tokenizer has no such token
        ("", ()),
    ],
)
def test_an_end_is_a_token_of_its_own(after: str, ends: tuple[str, ...]) -> None:
    trial = trial_of(with_template("{% for m in messages %}{{ m.content }}" + after + "{% endfor %}"))
    assert (trial.ends, trial.trainable) == (ends, bool(ends))


@pytest.mark.parametrize(
    ("asks", "answer", "change"),
    [
        ("<|assistant|>", "<|assistant|>", ("", "")),
        ("<|assistant|>", "<|assistant|> ", ("", " ")),
        ("<|assistant|>", "<|assistant|><think></think>", ("", "<think></think>")),
        ("<|assistant|><think>\n", "<|assistant|>", ("<think>\n", "")),
        ("", "<|assistant|>", ("", "<|assistant|>")),
    ],
)
def test_what_stands_before_an_answer_is_that_of_a_finished_one(
    asks: str, answer: str, change: tuple[str, str]
) -> None:
    template = (
        "{% for m in messages %}{{ '" + answer + "' if m.role == 'assistant' else '<|user|>' }}{{ m.content }}<|end|>"
        "{% endfor %}{% if add_generation_prompt %}" + asks + "{% endif %}"
    )
    tokens = with_template(template)
    assert trial_of(tokens).change == change
    prompt = build_prompt(tokens, SAMPLE, max_length=100, template="chat")
    assert tokens.decode([*prompt.ids]) == (
        f"<|user|>{SAMPLE.context}\n\n{SAMPLE.instruction}<|end|>{answer}{SAMPLE.response}"
    )


def test_the_first_conversations_of_the_data_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_SECONDS", 4.0)  # what the process imports takes longer, and does not count
    with_template(STRICT).save_pretrained(tmp_path)
    talk = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"))]
    long = [{"role": "user", "content": "a" * 10**6}, *talk[1:], *talk * 999]
    turns = [talk, [*talk, talk[1]], [{"role": "system", "content": "c"}, *talk], long]
    records = [{"messages": each} for each in turns]
    found = try_chat_template(tmp_path, "models.long.path", records=records)
    assert found == trial_of(with_template(STRICT), [*records[:3], {"messages": talk * 25}])
    assert found.records.tried == 4 and found.records.systems == 1 and found.records.answers == 2 + 25
    [(reason, count)] = found.records.refused.items()
    assert count == 1 and "roles must alternate" in reason


def printed(template: str) -> object:
    return render_chat(with_template(template), [{"role": "user", "content": "hello"}], add_generation_prompt=True)


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
    assert printed("{{ date_string }}") == FIXED_DATE == "26 Jul 2024"


def test_rows_by_a_chat_template_are_those_of_the_date() -> None:
    assert rendering_settings("chat") == {"chat template's date": FIXED_DATE}
    assert rendering_settings("gateau") == {}, "what the date is no part of is not made again for it"
