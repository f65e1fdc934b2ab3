"""What is checked of the data before any model runs: a training that cannot work, texts without anything far."""

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest
from transformers import (
    GPT2Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    NemotronConfig,
    OPTConfig,
    T5Config,
)
from transformers.configuration_utils import PreTrainedConfig

from gateau_dagster.config import Config
from gateau_dagster.data.catalogue import ACCEPTED
from gateau_dagster.models.model_facts import ModelFacts
from gateau_dagster.pipeline import model_checks
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.data_checks import check_training, chosen_share, warnings_of
from gateau_dagster.pipeline.model_checks import check_trained_models, untried_models
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.training.readiness import NoSmallModelError, small_model
from tests.kit.error_codes import refused
from tests.kit.project import change_config, configured, make_project, sample, write_model, write_samples
from tests.kit.tiny_models import model_config, tokenizer


def samples(count: int, characters: int) -> pl.DataFrame:
    texts = {"source": ["far"] * count, "digest": [f"t{number}" for number in range(count)]}
    columns = {name: [None] * count for name in ACCEPTED} | texts
    return pl.DataFrame({**columns, "characters": [characters] * count}, schema=ACCEPTED)


def training_of(training: dict[str, Any], **sections: Any) -> Config:
    return configured(models={"short": {"path": "short"}, "long": {"path": "long"}}, training=training, **sections)


def test_a_training_that_this_machine_can_hold_is_let_go() -> None:
    check_training(training_of({"processes": 2, "mix": {"weights": {"far": 2}}}), samples(1000, 10**6))
    check_training(training_of({"enabled": False, "processes": 90_000}), samples(1000, 10**6))
    check_training(training_of({"processes": 90_000, "launcher": ["true"]}), samples(1000, 10**6))
    check_training(training_of({"processes": 1}), samples(3, 10**15))


@pytest.mark.parametrize(
    ("training", "count", "characters"),
    [({"processes": 90_000}, 10, 10), ({"processes": 64, "max_length": 10**8}, 10_000, 4 * 10**7)],
)
def test_ranks_that_do_not_fit(training: dict[str, Any], count: int, characters: int) -> None:
    with refused("machine.memory", match=r"^training\.processes"):
        check_training(training_of(training), samples(count, characters))


def test_epochs_whose_rows_cannot_be_planned() -> None:
    training, many = {"epochs": 1000}, samples(1_000_000, 10)
    check_training(training_of(training), many)
    check_training(training_of({**training, "max_steps": 10}, selection={"fraction": 0.5}), many)
    with refused("training.too_many_rows", match=r"^training\.epochs"):
        check_training(training_of(training, selection={"fraction": 0.5}), many)


def test_weights_of_sources_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text("{}")
    for chat, there in (({}, "far"), ({"short_chat": {"path": str(tmp_path / "chat.jsonl")}}, "chat, far")):
        config = training_of({"mix": {"weights": {"far": 1, "near": 2}}}, **chat)
        with refused("training.unknown_source", match=rf"^training\.mix\.weights: .* near; .* {there}$"):
            check_training(config, samples(3, 10))


@pytest.mark.parametrize(
    ("training", "code", "facts"),
    [
        ({"launcher": ["no-such-launcher"]}, "training.launcher", "'no-such-launcher'"),
        ({"launcher": []}, "training.launcher", ""),
        ({"hostfile": "no-hosts"}, "training.hostfile", "no-hosts"),
        ({"hostfile": "hosts", "processes": 2}, "training.processes", r"^training\.hostfile: .* 8 "),
        ({"dtype": "float16"}, "training.no_gpu", "float16"),
        ({"attention": "fa3"}, "models.attention", r"^training\.attention: .* the device is cpu"),
        ({"positions": {"method": "ntk", "target_length": 64}}, "training.positions_reached", r"\.positions: .* 128 "),
    ],
)
def test_what_the_training_would_say_first_is_said_first(
    training: dict[str, Any], code: str, facts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "hosts").write_text("a slots=8\n")
    (tmp_path / "long").mkdir()
    LlamaConfig(max_position_embeddings=128, hidden_size=16, num_attention_heads=2).save_pretrained(tmp_path / "long")
    with refused(code, facts or None):
        check_training(training_of(training, folder=tmp_path), samples(3, 10))


@pytest.mark.parametrize(
    ("training", "scoring", "characters", "warned"),
    [
        ({}, {"max_length": 4096}, 40_000, True),
        ({}, {"max_length": 4096}, 4000, False),
        ({}, {}, 10**7, False),
        ({"max_length": 4096}, {"max_length": 4096}, 40_000, False),
        ({"enabled": False}, {"max_length": 4096}, 40_000, False),
    ],
)
def test_training_on_what_was_not_scored_is_told(
    training: dict[str, Any], scoring: dict[str, Any], characters: int, warned: bool
) -> None:
    found = warnings_of(training_of(training, scoring=scoring), samples(3, characters))
    assert len(found) == warned
    assert not warned or found[0].startswith(
        "training.max_length is 65,536, but samples are scored by their last 4,096"
    )


def test_repeated_prefixes_of_conversations_are_told() -> None:
    accepted = samples(4, 0).with_columns(
        file=pl.lit(0, pl.Int32), record=pl.Series([1, 1, 1, 2]), characters=pl.Series([400, 800, 4000, 400])
    )

    def found(turns: str) -> list[str]:
        data = {"path": "long.jsonl", "turns": turns}
        return warnings_of(training_of({"enabled": False}, scoring={"max_length": 400}, long_sft=data), accepted)

    assert found("last") == []
    # After truncation the samples of the two records have 700 and 100 tokens; 400 and 100 of them are different.
    assert (
        found("each")[0].startswith("long_sft.turns: each makes 4 samples of 2 records")
        and "About 1.6 times" in found("each")[0]
    )


def test_a_budget_is_a_share_of_all_samples() -> None:
    """Half of the tokens show the use, and are not chosen from; the budget is 10 % of all, or more than is left."""
    accepted = samples(200, 4_000).with_columns(source=pl.Series(["use", "pool"] * 100))
    tokens = accepted["characters"].sum() / 4
    for budget, share in ((tokens / 10, 0.1), (tokens * 2, 0.5)):
        rule = {"rule": "mix", "use": ["use"], "budget": int(budget)}
        assert chosen_share(training_of({}, selection=rule), accepted) == pytest.approx(share, rel=0.01)


@pytest.mark.long
def test_the_largest_variant_has_to_be_held_too() -> None:
    many = samples(1_000_000, 10)
    part = {"training": {"epochs": 600}, "selection": {"fraction": 0.1}}
    check_training(training_of(**part), many)
    check_training(training_of(**part, variants={"fractions": [0.1, 0.15]}), many)
    for variants in ({"fractions": [0.1, 0.2]}, {"also": ["full"]}):
        with refused("training.too_many_rows", match=r"^training\.epochs"):
            check_training(training_of(**part, variants=variants), many)


def saved_config(folder: Path, kind: type[PreTrainedConfig], **keys: Any) -> None:
    kind(architectures=["XForCausalLM"], **keys).save_pretrained(folder / "long")


def test_positions_that_the_trained_model_has_not_learned(tmp_path: Path) -> None:
    saved_config(tmp_path, GPT2Config, n_positions=1024)
    config = training_of({"max_length": 1025}, folder=tmp_path)
    with refused("models.positions", match=r"^training\.max_length"):
        check_training(config, samples(3, 10))
    check_training(training_of({"max_length": 1024}, folder=tmp_path), samples(3, 10))
    saved_config(tmp_path, LlamaConfig, max_position_embeddings=64)
    check_training(config, samples(3, 10))


def test_a_window_that_is_enough_is_read_without_transformers(tmp_path: Path) -> None:
    """Check the modules: importing transformers took most of the time of a run that has nothing to do."""
    saved_config(tmp_path, LlamaConfig, max_position_embeddings=64)
    with mock.patch.object(ModelFacts, "config", mock.PropertyMock(side_effect=AssertionError)):
        check_training(training_of({"max_length": 64}, folder=tmp_path), samples(3, 10))
        with pytest.raises(AssertionError):
            check_training(training_of({"max_length": 65}, folder=tmp_path), samples(3, 10))


SHARED = {"processes": 2, "sequence_parallel": 2, "deepspeed": "zero3"}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
_FACTORS = {"short_factor": [1.0] * 512, "long_factor": [4.0] * 512, "original_max_position_embeddings": 64}
LONGROPE = {"max_position_embeddings": 256, "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **_FACTORS}}
DYNAMIC = {
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
}


def trained(folder: Path, training: dict[str, Any], **sections: Any) -> None:
    config = training_of(training, folder=folder, **sections)
    check_trained_models(config, dict.fromkeys(config.models, json.dumps(training)))


@pytest.mark.parametrize(
    ("training", "kind", "keys", "code", "message"),
    [
        (SHARED, LlamaConfig, {"num_attention_heads": 1, "num_key_value_heads": 1}, "training.sequence_parallel",
         r"^training\.sequence_parallel: 1 attention heads .* Set a divisor of 1"),
        (SHARED, LlamaConfig, {"layer_types": ["conv", "full_attention"] * 16}, "training.sequence_parallel",
         "has conv layers"),
        (SHARED | {"deepspeed": {"zero_optimization": {"stage": 0}}}, LlamaConfig, {}, "training.sequence_parallel",
         "needs DeepSpeed's ZeRO stage 1, 2 or 3"),
        (SHARED, OPTConfig, {}, "training.sequence_parallel", "does not name num_attention_heads and num_key"),
        ({"batching": "packed"}, MambaConfig, {}, "training.architecture", "cannot be trained on documents packed"),
        ({"skip": {}}, NemotronConfig, {}, "training.architecture", "where documents begin"),
        ({"batching": "packed"}, MixtralConfig, {"output_router_logits": True}, "training.architecture",
         "adds a term to its loss"),
        ({"batching": "packed", "max_length": 65}, LlamaConfig, LONGROPE, "training.architecture",
         r"beyond 64 positions the longest document of a row decides .* \(rope_type longrope\)"),
        ({"skip": {"length": 65}, "max_length": 64, "batch_size": 2}, LlamaConfig, LONGROPE, "training.architecture",
         "beyond 64 positions the longest document"),
        ({"batching": "packed", "max_length": 257}, LlamaConfig, DYNAMIC, "training.architecture",
         r"beyond 256 positions the longest document of a row decides .* \(rope_type dynamic\)"),
        ({"tiled_mlp": 64}, GPT2Config, {}, "training.architecture", r"^training\.tiled_mlp: GPT2LMHead.* dropout"),
        ({"batching": "packed"}, Llama4TextConfig, {}, "training.architecture", "counts tokens from the begin of the"),
    ],
)  # fmt: skip
def test_rows_that_an_architecture_cannot_be_trained_on(
    training: dict[str, Any], kind: Any, keys: dict[str, Any], code: str, message: str, tmp_path: Path
) -> None:
    heads = {} if kind in {GPT2Config, MambaConfig, OPTConfig} else HEADS
    saved_config(tmp_path, kind, **heads | keys)
    with refused(code, match=message):
        trained(tmp_path, training)
    trained(tmp_path, {"enabled": False, **training})
    saved_config(tmp_path, LlamaConfig, **HEADS)
    trained(tmp_path, training | ({"deepspeed": "zero3"} if "deepspeed" in training else {}))


@pytest.mark.parametrize(
    ("training", "keys"),
    [
        ({"batching": "packed", "max_length": 64}, LONGROPE),  # all documents have the short factors
        ({"skip": {"length": 128}, "max_length": 64, "batch_size": 1}, LONGROPE),  # a document has a row of its own
        ({"batching": "packed", "max_length": 256}, DYNAMIC),
    ],
)
def test_rows_in_which_lengths_change_no_frequencies(
    training: dict[str, Any], keys: dict[str, Any], tmp_path: Path
) -> None:
    saved_config(tmp_path, LlamaConfig, **HEADS | keys)
    trained(tmp_path, training)


def test_a_made_model_is_tried_even_if_no_checkpoint_is_trained(tmp_path: Path) -> None:
    saved_config(tmp_path, LlamaConfig, num_attention_heads=1, num_key_value_heads=1)
    shutil.move(tmp_path / "long", tmp_path / "short")
    made = {"path": "homologous:short", "homologous": {"texts": "t", "length": 512, "tokens_per_step": 1024}}
    config = configured(
        models={"short": {"path": "short"}, "long": made}, training={"enabled": False, **SHARED}, folder=tmp_path
    )
    with refused("training.sequence_parallel", match="1 attention heads"):
        check_trained_models(config, {"short": "digest", "long": "made:digest"})


def test_an_architecture_is_tried_once(tmp_path: Path) -> None:
    saved_config(tmp_path, LlamaConfig, **HEADS)
    trained(tmp_path, SHARED)
    with mock.patch.object(model_checks, "check_architecture", side_effect=AssertionError):
        trained(tmp_path, SHARED)
        with pytest.raises(AssertionError):
            trained(tmp_path, SHARED | {"batching": "packed"})


def test_a_small_model_has_the_heads_and_kinds_of_layers() -> None:
    model = small_model(model_config("gemma3_text", num_attention_heads=8, num_hidden_layers=2, vocab_size=3000))
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (8, 2)
    assert model.config.layer_types == ["sliding_attention", "full_attention"]
    assert sum(each.numel() for each in model.parameters()) < 200_000
    deep = small_model(LlamaConfig(num_hidden_layers=80, hidden_size=8192, num_attention_heads=64))
    assert deep.config.num_hidden_layers == 2
    with pytest.raises(NoSmallModelError, match=r"cannot be built \(ValueError: Unrecognized configuration class"):
        small_model(T5Config())  # it is no causal model


def test_an_architecture_that_could_not_be_tried_is_told(tmp_path: Path) -> None:
    # The factors of the rotary embedding are those of heads of 1,024 numbers.
    saved_config(tmp_path, LlamaConfig, **HEADS | LONGROPE)
    training: dict[str, Any] = {"batching": "packed", "max_length": 64}
    config, digests = training_of(training, folder=tmp_path), {"short": "digest", "long": "other"}
    check_trained_models(config, digests)
    (said,) = untried_models(config, digests)
    assert said.startswith("models.long: whether it can be trained on the planned rows is known only when")
    assert "a small model of it cannot be built" in said
    saved_config(tmp_path, LlamaConfig, **HEADS)
    check_trained_models(config, digests | {"long": "third"})
    assert not untried_models(config, digests | {"long": "third"})


def warnings(project: Path) -> list[str]:
    return [each for each in checks_of(state_of(config=load_project(project))).warnings if "no far context" in each]


def with_sentences(folder: Path, *counts: int) -> Path:
    """A project whose samples have contexts of so many sentences; eight of them are about 64 tokens."""
    project = make_project(folder, samples=0)
    write_samples(folder / "long.jsonl", [sample(number, sentences=count) for number, count in enumerate(counts)])
    return project


@pytest.mark.parametrize(("long", "told"), [(3, True), (4, False), (8, False)])
def test_it_is_told_where_less_than_half_reach_beyond_the_window(tmp_path: Path, long: int, told: bool) -> None:
    found = warnings(with_sentences(tmp_path, *([40] * long + [2] * (8 - long))))
    assert len(found) == told
    if told:
        assert found[0].startswith("models.short sees the last 64 tokens of a prompt. By their characters, about 62 %")


def test_tokens_are_those_of_the_models_own_tokenizer(tmp_path: Path) -> None:
    """One of 400 tokens makes three times as many of the same text."""
    project = with_sentences(tmp_path, 4, 4, 4)
    assert len(warnings(project)) == 1
    for name in ("short", "long"):
        tokenizer().save_pretrained(tmp_path / name)
    assert not warnings(project)


def test_where_theta_a_is_not_here_yet_nothing_is_said(tmp_path: Path) -> None:
    project = with_sentences(tmp_path, 2, 2)
    change_config(project, models={"short": {"path": "nobody/nothing", "context": "window", "window": 64}})
    shutil.rmtree(tmp_path / "short")
    assert not warnings(project)


def test_whoever_does_not_compare_the_pair_is_not_told(tmp_path: Path) -> None:
    project = with_sentences(tmp_path, 2, 2)
    change_config(project, selection={"method": "random"})
    assert not warnings(project)


def test_control_tokens_in_texts_are_counted_for_each_vocabulary(tmp_path: Path) -> None:
    """The demo's vocabulary of words has no letters to read one with; `[odd]` has no form of a known family."""
    project, records = make_project(tmp_path, samples=0), [sample(number) for number in range(4)]
    for number, spelled in enumerate(("</s>", "<|im_end|>", "[odd] [odd]")):
        records[number]["context"] += f" {spelled}"
    write_samples(tmp_path / "long.jsonl", records)
    used = deepcopy(tokenizer())
    used.add_tokens(["[odd]"], special_tokens=True)
    write_model(tmp_path / "short", seed=1, window=64, tokenizer=used)

    def said() -> list[str]:
        return [each for each in checks_of(state_of(config=load_project(project))).warnings if "control token" in each]

    first, lost, second = said()
    assert "1 of 4 samples spells control tokens of models.long, as s00000 has '</s>'" in first
    assert "models.long: the tokenizer has no tokens to read '</s>' as text" in lost
    assert "2 of 4 samples spell control tokens of models.short, as s00000 has '</s>'" in second
    assert said() == [first, lost, second], "the texts are not read again"
