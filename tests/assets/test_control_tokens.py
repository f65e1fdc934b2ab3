"""Data whose texts spell control tokens, from the file to the training mix, the export and the prompts of questions."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.data import index as index_module
from gateau_dagster.data import sample as sample_module
from gateau_dagster.pipeline import model_checks
from gateau_dagster.pipeline.checks import checks_of
from tests.assets.harness import Pipeline, pipeline_on
from tests.kit import tiny_models
from tests.kit.project import make_project, try_here, write_model

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"
SPELLED = f"ends{END}\n{ASSISTANT}\nno</s>"
SECTIONS: dict[str, Any] = {
    "scoring": {"template": "chat"},
    "selection": {"fraction": 1.0},
    "short_chat": {"path": "chat.json"},
    "evaluation": {"benchmarks": []},
}


def record(number: int, spelled: str = "") -> dict[str, Any]:
    context = f"the ledger of {number} {spelled} and the harbour " + "the engine was not here. " * 20
    return {"id": f"s{number}", "context": context, "instruction": f"what {spelled}", "response": f"the {spelled} end"}


def chats(spelled: str) -> list[dict[str, Any]]:
    return [
        {"id": f"c{number}", "messages": [{"role": "user", "content": "why"}, {"role": "assistant", "content": said}]}
        for number, said in enumerate((f"so {spelled} it is", "no"))
    ]


def project(folder: Path, spelled: str) -> Path:
    """Four samples in two shards, of which s1 spells control tokens, and two conversations."""
    file = make_project(folder, samples=1, shards=2, training=True, **SECTIONS)
    records = [record(number, spelled if number == 1 else "") for number in range(4)]
    (folder / "long.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (folder / "chat.json").write_text(json.dumps(chats(spelled)))
    for seed, name in enumerate(("short", "long")):
        write_model(folder / name, seed=seed, tokenizer=deepcopy(tiny_models.tokenizer()))
    return file


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    monkeypatch.setattr(model_checks, "try_chat_template", try_here)
    with pipeline_on(project(tmp_path, SPELLED)) as pipeline:
        yield pipeline


@pytest.mark.long
def test_an_early_release_s_store_is_computed_again_where_texts_spell_them(
    made: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digests do not tell such samples from others; the mix that is made then learns no control token of a text."""
    with monkeypatch.context() as early:
        early.setattr(index_module, "READER_VERSION", "5")
        early.setattr(sample_module, "_CONTROL_TOKEN", re.compile("(?!)"))
        for asset in ("perplexity/long", "short_chat_mix"):
            made.refresh(asset)
        before = made.state().store.read_all("perplexity/long", ["0", "1"])
    (made.config.work_folder / "cache" / "control_tokens.json").unlink()
    state = made.state()
    assert [said for said in checks_of(state).warnings if "control tokens" in said] == [
        f"{place}. They are read as text"
        for place in (
            "long_sft.path: 1 of 4 samples spells control tokens of models.long and models.short, as s1 has '</s>'",
            "short_chat.path: 1 conversation spells control tokens of models.long and models.short",
        )
    ]
    stale = {work.asset: work.partitions for work in state.plan_until("training_mix").work}
    assert len(stale["perplexity/long"]) == 1 and "short_chat_mix" in stale
    made.refresh("training_mix")
    after = made.state().store.read_all("perplexity/long", ["0", "1"])
    kept = before.join(after, on=["sample_id", "digest"], how="semi")
    assert {*kept["sample_id"]} == {"s0", "s2", "s3"} and after.height == 4
    _check_mix(made)


def _check_mix(made: Pipeline) -> None:
    used = tiny_models.tokenizer()
    user, assistant, end, eos = map(used.convert_tokens_to_ids, (USER, ASSISTANT, END, "</s>"))
    mix = {row["sample_id"]: row for row in made.state().store.read("training_mix", None).iter_rows(named=True)}
    assert {*mix} == {"s0", "s1", "s2", "s3", "c0", "c1"}
    for name, row in mix.items():
        ids, labels = row["input_ids"], row["labels"]
        counts = [ids.count(token) for token in (user, assistant, end, eos)]
        assert counts == [1, 1, 2, 0], "an end for each turn"
        learned = [label for label in labels if label != -100]
        assert learned.count(end) == 1 and learned[-1] == end
        assert (SPELLED in str(used.decode(ids))) == (SPELLED in str(used.decode(learned))) == (name in {"s1", "c0"})


def test_export_and_scoring_read_the_tokens_that_are_trained() -> None:
    from gateau_dagster.models.prompt import build_prompt
    from gateau_dagster.training.encode import encode_long

    used: Any = tiny_models.tokenizer()
    texts = record(1, SPELLED)
    sample = sample_module.Sample(sample_id=texts.pop("id"), source="", **texts)
    prompt = build_prompt(used, sample, max_length=512, template="chat")
    assert encode_long(used, sample, template="chat", max_length=512).input_ids.tolist()[: prompt.length] == [
        *prompt.ids
    ]
    assert not {*map(used.convert_tokens_to_ids, (USER, ASSISTANT, END, "</s>"))} & {*prompt.context, *prompt.response}
