"""What is wrong with the models is known before anything runs, and what is in order is looked at once."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.models.chat_template import Trial
from gateau_dagster.models.model_facts import ModelFacts, facts_in
from gateau_dagster.pipeline import model_checks
from gateau_dagster.pipeline.checks import checked_plan, checks_of
from gateau_dagster.pipeline.loadable import loadable_model
from gateau_dagster.pipeline.model_checks import unknown_chat_templates
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from tests.kit.error_codes import refused
from tests.kit.project import change_config, make_project, try_here
from tests.kit.tiny_models import loaded_model, tokenizer


@pytest.fixture
def project(tmp_path: Path) -> Path:
    models = {"short": {"path": "short", "context": "window", "window": 32}, "long": {"path": "long"}}
    return make_project(tmp_path, samples=8, shards=2, models=models)


def edit(file: Path, **keys: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))


def opened(project: Path) -> State:
    return state_of(config=load_project(project))


def test_a_fault_of_a_folder_is_refused_with_its_place(project: Path) -> None:
    edit(project.parent / "short" / "config.json", num_attention_heads=0)
    with refused("models.file_damaged", match=r"^models\.short\.path: .* num_attention_heads: '0'"):
        checked_plan(opened(project))


def test_a_first_token_that_is_lost_with_its_file_is_told(project: Path) -> None:
    assert checks_of(opened(project)).warnings == []
    for name in ("short", "long"):
        (project.parent / name / "tokenizer_config.json").unlink()
    for file in project.parent.glob("*/special_tokens_map.json"):
        file.unlink()
    state = opened(project)
    checked_plan(state)
    assert {line.partition(" ")[0] for line in checks_of(state).warnings} == {"models.short.path:", "models.long.path:"}
    assert "has no tokenizer_config.json. Without it, texts lack the <bos>" in checks_of(state).warnings[0]


def test_a_model_without_a_first_token_loses_none(project: Path) -> None:
    for name in ("short", "long"):
        (project.parent / name / "tokenizer_config.json").unlink()
        file = project.parent / name / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "bos_token_id": None}))
    assert checks_of(opened(project)).warnings == []


def test_two_tokenizers_are_no_pair(project: Path) -> None:
    tokenizer().save_pretrained(project.parent / "short")
    with refused("models.not_homologous", match=r"models\.short"):
        checked_plan(opened(project))
    change_config(project, selection={"method": "ladm", "options": {"ladm": {"span_length": 4, "first_scored": 6}}})
    assert checked_plan(opened(project)), "nothing compares them"


def test_a_tokenizer_that_only_says_more_is_the_same(project: Path) -> None:
    file = project.parent / "short" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": 99}))
    assert checked_plan(opened(project))


def test_what_is_in_order_is_looked_at_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def note(folder: Path, place: str, **_: object) -> Trial:
        tried.append(place)
        return Trial(ends=("</s>",))

    monkeypatch.setattr(model_checks, "try_chat_template", note)
    change_config(project, scoring={"template": "chat"})
    for _ in range(2):
        assert checked_plan(opened(project))
    assert tried == ["models.long.path"], "of two models with the same tokenizer one is tried"
    (project.parent / "long" / "chat_template.jinja").write_text("another")
    loadable_model(opened(project), "long")
    assert tried[1:] == ["models.long.path"]


def test_of_the_hub_a_tokenizer_that_is_still_to_be_fetched_is_no_fault(project: Path) -> None:
    """Whoever looks at the configuration has the hub's config.json from then on, and nothing else."""
    change_config(project, scoring={"template": "chat"})
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (project.parent / "short" / name).unlink(missing_ok=True)
    model_checks.check_folder(load_project(project), "short", "hub:org/model:commit")


def test_what_was_read_with_its_own_code_is_looked_at_again_without(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []
    monkeypatch.setattr(ModelFacts, "tokenizer", property(lambda facts: (tried.append(facts.remote_code), object())[1]))
    config = load_project(project)
    for code in (True, False, False):
        long = config.models["long"].model_copy(update={"trust_remote_code": code})
        changed = config.model_copy(update={"models": {**config.models, "long": long}})
        model_checks.check_folder(changed, "long", "folder:digest")
    assert tried == [True, False]


def test_a_chat_template_that_is_still_to_be_fetched_is_told(project: Path) -> None:
    chat = {"max_length": 512, "template": "chat", "device": "cpu"}
    change_config(project, scoring=chat)
    assert unknown_chat_templates(load_project(project)) == [], "these lie here"
    change_config(project, scoring=chat, models={"long": {"path": "nobody/nothing", "revision": "v2"}})
    [said] = unknown_chat_templates(load_project(project))
    assert said.startswith("models.long.path: the tokenizer of nobody/nothing is not on this machine yet")
    assert "`hf download nobody/nothing --revision v2 --include" in said and said in checks_of(opened(project)).warnings
    change_config(project, scoring={**chat, "template": "gateau"})
    assert unknown_chat_templates(load_project(project)) == []


@pytest.mark.parametrize(("kind", "architecture"), [("t5", "T5ForConditionalGeneration"), ("bert", "BertForMaskedLM")])
@pytest.mark.parametrize("of", ["models.long", "variants.also.other"])
def test_what_generates_no_text_is_told(project: Path, kind: str, architecture: str, of: str) -> None:
    folder = project.parent / "long"
    if of != "models.long":
        folder = Path(shutil.copytree(folder, project.parent / "other"))
        also = {"methods": ["gateau"], "also": [{"name": "other", "path": "other"}]}
        change_config(project, training={"enabled": True}, variants=also)
    edit(folder / "config.json", model_type=kind, architectures=[architecture], is_encoder_decoder=kind == "t5")
    with refused("models.not_causal", match=rf"^{of}\.path: .* is a {architecture}, not a causal language model"):
        checked_plan(opened(project))


def test_layers_for_adapters_that_the_model_lacks_are_told_before_anything_runs(project: Path) -> None:
    for modules in (["qproj"], ["q_proj", "qproj"]):
        change_config(project, training={"enabled": True, "lora": {"modules": modules}})
        with refused("training.lora", match="'qproj' does not fit this model"):
            checked_plan(opened(project))
    change_config(project, training={"enabled": True, "lora": {"modules": ["q_proj"]}})
    assert checked_plan(opened(project)).work


def learned(folder: Path, positions: int) -> None:
    loaded_model("gpt2", max_position_embeddings=positions).model.save_pretrained(folder)


def test_positions_that_a_model_has_not_learned_are_told(project: Path) -> None:
    learned(project.parent / "long", 64)
    with refused("models.positions", match=r"^models\.long\.path"):
        checked_plan(opened(project))
    for window, fits in ((100, False), (64, True)):
        models = {"short": {"path": "short"}, "long": {"path": "long", "context": "window", "window": window}}
        change_config(project, models=models)
        if fits:
            assert checked_plan(opened(project))
        else:
            with refused("models.positions", match="64 learned positions, fewer than a window of 100 tokens"):
                checked_plan(opened(project))
    change_config(project, models={"long": {"path": "long"}}, selection={"method": "length"})
    assert checked_plan(opened(project)), "it scores nothing"
    with refused("models.positions", match=r"^models\.long\.path"):
        model_checks.check_folder(load_project(project), "long", "hub:org/model:commit", scores=True)


def test_a_rotary_base_of_a_model_without_rotary_embedding_is_told(project: Path) -> None:
    learned(project.parent / "long", 512)
    change_config(project, models={"long": {"path": "long", "rope_theta": 1e6}})
    with refused("models.no_rotary", match=r"^models\.long\.path"):
        checked_plan(opened(project))


CHATML = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
BLOCK = CHATML.replace(
    "{{ m.content }}", "{{ '[THINK][/THINK]' if m.role == 'assistant' and loop.last }}{{ m.content }}"
)


@pytest.fixture
def chatting(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that trains on conversations by the chat template, which is tried in this process."""
    monkeypatch.setattr(model_checks, "try_chat_template", try_here)
    talk = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b")) * 2]
    system = {"role": "system", "content": "c"}
    chats = [{"id": name, "messages": each} for name, each in {"a": talk[:2], "b": talk, "c": [system, *talk]}.items()]
    (project.parent / "chat.json").write_text(json.dumps(chats))
    change_config(project, scoring={"template": "chat"}, training={"enabled": True})
    change_config(project, short_chat={"path": "chat.json"})
    use_template(project, CHATML)
    return project


def use_template(project: Path, template: str) -> None:
    for name in ("short", "long"):
        (project.parent / name / "chat_template.jinja").write_text(template)


def test_an_answer_without_an_end_is_refused_before_anything_is_scored(chatting: Path) -> None:
    assert checked_plan(opened(chatting))
    use_template(chatting, CHATML.replace("</s>", " over."))
    with refused("models.no_end", match=r"^training\.model"):
        checked_plan(opened(chatting))
    change_config(chatting, training={"enabled": False})
    assert checked_plan(opened(chatting)), "nothing is trained"
    change_config(chatting, training={"enabled": True}, scoring={"template": "gateau"})
    assert checked_plan(opened(chatting))
    edit(chatting.parent / "long" / "tokenizer_config.json", eos_token=None)
    with refused("models.no_end", match=r"^training\.model"):
        checked_plan(opened(chatting))


def test_what_a_template_does_with_the_data_is_told_before_anything_runs(
    chatting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Mock(wraps=model_checks.try_chat_template)
    monkeypatch.setattr(model_checks, "try_chat_template", trials)

    def told() -> str:
        return "\n".join(
            each for each in checks_of(opened(chatting)).warnings if "template" in each or "short_chat" in each
        )

    assert checked_plan(opened(chatting)) and told() == ""
    assert trials.call_count == 1, "one trial for both models, with the data's records and without"
    use_template(chatting, BLOCK)
    assert "models.short: its chat template puts '[THINK][/THINK]' before a finished answer" in told()
    assert "models.long: its chat template rewrites earlier turns. 2 of the first 5 answers (40 %)" in told()
    use_template(chatting, "{% if messages|length > 2 %}{{ raise_exception('too long') }}{% endif %}" + CHATML)
    assert "models.long: 2 of the first 3 conversations (66.7 %) of short_chat will be rejected: " in told()
    use_template(chatting, CHATML.replace("in messages", "in messages if m.role != 'system'"))
    assert "leaves out system turns. In 1 of the first 3 conversations (33.3 %)" in told()
    assert trials.call_count == 4


def test_a_template_that_fails_only_with_the_data_is_tried_without_them(
    chatting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_with_records(folder: Path, place: str, *, records: Any = (), **_: object) -> Trial:
        if records:
            raise GateauError("models.chat_template", f"{place}: does not end")
        return try_here(folder, place)

    trials = Mock(wraps=fails_with_records)
    monkeypatch.setattr(model_checks, "try_chat_template", trials)
    config = opened(chatting).config
    for records in ([{"messages": []}], (), [{"messages": []}]):
        facts = facts_in(chatting.parent / "long", path="long", remote_code=False)
        found = model_checks._remembered_trial(config, facts, "place", "", records)
        assert found.records.tried == 0
    assert trials.call_count == 2, "each result is remembered"


def test_conversations_of_the_long_data_are_tried_too(chatting: Path) -> None:
    talk = [{"role": role, "content": text} for role, text in (("user", "long a"), ("assistant", "b")) * 2]
    with (chatting.parent / "long.jsonl").open("a") as file:
        file.write(json.dumps({"id": "talk", "messages": talk, "tools": [{"name": "f"}]}) + "\n")
    use_template(chatting, BLOCK)
    said = "rewrites earlier turns. 1 of the first 2 answers (50 %) of long_sft stay in the text without loss"
    told = "\n".join(checks_of(opened(chatting)).warnings)
    assert said in told and "long_sft.turns: each trains each answer" in told and "of short_chat" in told
    change_config(chatting, training={"trained_turns": "last"})
    assert "of long_sft" not in "\n".join(checks_of(opened(chatting)).warnings)
    use_template(chatting, "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + CHATML)
    assert "1 of the first 1 conversation (100 %) of long_sft will be rejected" in "\n".join(
        checks_of(opened(chatting)).warnings
    )


def test_rows_are_kept_where_a_template_prints_nothing_more_before_an_answer(chatting: Path) -> None:
    def settings(template: str) -> set[str]:
        use_template(chatting, template)
        state = opened(chatting)
        return {
            *map(str, state.resolved("perplexity/long").settings),
            *map(str, state.resolved("training_mix").settings),
        }

    assert opened(chatting).observed.frames == {}
    assert settings(BLOCK) - settings(CHATML) == {"chat template's frame"}
