"""Which field of the configuration enters which fingerprint: one line for every field there is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from gateau_dagster.config import Config
from gateau_dagster.incremental.model_digest import model_digest
from gateau_dagster.incremental.pipeline import pipeline_of
from gateau_dagster.incremental.plan import make_plan

BASE: dict[str, Any] = {
    "long_sft": {"path": "long.jsonl", "shards": 2},
    "short_chat": {"path": "short.json"},
    "models": {"short": {"path": "a/short", "context": "window", "window": 64}, "long": {"path": "a/long"}},
    "demo": {},
}
REPORT = {"report"}
TRAINED = {"checkpoint", "evaluation/heldout", "evaluation/needle", *REPORT}
MIXED = {"training_mix", *TRAINED}
CHOSEN = {"selected_subset", *MIXED}
SCORED = {"combined_scores", *CHOSEN}
SHORT = {"perplexity/short", *SCORED}
LONG = {"perplexity/long", "cam", *SCORED}
EVERY_SCORE = {*SHORT, *LONG}
EVALUATED = {"evaluation/heldout", "evaluation/needle", *REPORT}
NOTHING: set[str] = set()
NO_TRAINING = {*REPORT}
PAIR_ONLY = {"models.short.task", "models.long.task"}  # the pair has to be causal
MODELS = {**BASE["models"], **{name: {"path": f"a/{name}", "task": "embedding"} for name in ("enc", "enc2")}}
# Fields that only some rules read: the selection without and with another value.
OF_RULES: dict[str, tuple[dict[str, Any], Any]] = {
    "budget": ({"rule": "token_budget", "budget": 5000}, 6000),
    "shares": ({"rule": "per_source"}, {"a": 1.0}),
    "short_source": ({"rule": "per_source"}, "share"),
    "encoder": ({"rule": "diverse", "encoder": "enc"}, "enc2"),
    "clusters": ({"rule": "diverse", "encoder": "enc"}, 3),
    "per_cluster": ({"rule": "diverse", "encoder": "enc"}, 2),
    "cluster_from": ({"rule": "diverse", "encoder": "enc"}, "rest"),
    "variance": ({"rule": "diverse", "encoder": "enc"}, 0.5),
    "seed": ({"rule": "diverse", "encoder": "enc"}, 1),
}
# Fields of training that go with others only: the section without and with another value.
_PACKED = {"batching": "packed", "max_length": 64}
_NTK = {"method": "ntk", "target_length": 9000}
OF_TRAINING: dict[str, tuple[dict[str, Any], Any]] = {
    "tokens_per_step": (_PACKED, 640),
    "pack_length": (_PACKED, 128),
    "min_learning_rate_ratio": ({"scheduler": "cosine"}, 0.1),
    "sequence_parallel": ({"processes": 2, "deepspeed": "zero3"}, 2),
    "positions.method": ({"positions": _NTK}, "linear"),
    "positions.target_length": ({"positions": _NTK}, 9001),
    "positions.theta": ({"positions": {"method": "theta", "theta": 2e4}}, 3e4),
    "skip.strategy": ({"skip": {}}, "all"),
    "skip.length": ({"skip": {}}, 5000),
    "skip.probability": ({"skip": {}}, 0.1),
    "lora.rank": ({"lora": {}}, 2),
    "lora.alpha": ({"lora": {}}, 2),
    "lora.dropout": ({"lora": {}}, 0.1),
    "lora.modules": ({"lora": {}}, ["q_proj"]),
}

# Field: (another value, the assets that must run again; by content more may follow, see `stale`).
FIELDS: dict[str, tuple[Any, set[str]]] = {
    "storage.root": ("./elsewhere", NOTHING),
    "long_sft.path": ("other.jsonl", REPORT),  # its content counts, shard by shard; the page shows the path
    "long_sft.shards": (3, {"raw_long_sft", *EVERY_SCORE}),
    "short_chat.path": ("other.json", REPORT),
    "short_chat.fraction": (0.5, {"short_chat_mix", *MIXED}),
    "models.short.path": ("a/other", SHORT),
    "models.short.revision": ("v2", SHORT),
    "models.short.rope_theta": (5.0, SHORT),
    "models.short.context": ("full", {"cam", *SHORT}),  # what is far for theta_A
    "models.short.window": (128, {"cam", *SHORT}),
    "models.short.preamble": ("Be helpful.", SHORT),
    "models.short.demonstrations": ([{"instruction": "a", "response": "b"}], SHORT),
    "models.long.preamble": ("Be helpful.", LONG),
    "models.long.demonstrations": ([{"instruction": "a", "response": "b"}], LONG),
    "models.short.trust_remote_code": (True, REPORT),
    "models.long.path": ("a/other", {*LONG}),
    "models.long.revision": ("v2", {*LONG}),
    "models.long.rope_theta": (5.0, LONG),
    "models.long.context": ("window", LONG),
    "models.long.window": (128, REPORT),  # unused while context is full
    "models.long.trust_remote_code": (True, REPORT),
    "scoring.max_length": (1024, EVERY_SCORE),
    "scoring.segment_length": (64, {"cam", *SCORED}),
    "scoring.template": ("chat", EVERY_SCORE),
    "scoring.dtype": ("float32", EVERY_SCORE),
    "scoring.device": ("cpu", NOTHING),
    "scoring.batch_tokens": (7, NOTHING),
    "selection.method": ("hmg", {"method_scores/hmg", *CHOSEN}),
    "selection.segment_lengths": (
        [64, 256],
        {"cam_at/64", "cam_at/256", "method_scores/gateau", "comparison", *REPORT},
    ),
    "selection.compare": (["hmg"], {"method_scores/gateau", "method_scores/hmg", "comparison", *REPORT}),
    "selection.options": ({"hmg": {"preset": "paper"}}, REPORT),  # of a method that is not chosen
    "selection.rule": ("per_source", CHOSEN),
    "selection.preset": ("paper", SCORED),
    "selection.alpha": (0.1, SCORED),
    "selection.fraction": (0.5, CHOSEN),
    "selection.count": (3, CHOSEN),
    "selection.ground_truth": (["far"], REPORT),
    "training.enabled": (False, NO_TRAINING),
    "training.model": ("short", MIXED),
    "training.max_length": (64, MIXED),
    "training.truncation": ("right", MIXED),
    "training.mix.long_fraction": (0.5, MIXED),
    "training.mix.without_long": (True, MIXED),
    "training.mix.weights": ({"long": 2.0}, MIXED),
    "training.seed": (1, MIXED),
    "training.epochs": (1.0, TRAINED),
    "training.max_steps": (5, TRAINED),
    "training.learning_rate": (1e-3, TRAINED),
    "training.adam_betas": ((0.8, 0.9), TRAINED),
    "training.weight_decay": (0.1, TRAINED),
    "training.max_grad_norm": (2.0, TRAINED),
    "training.scheduler": ("cosine", TRAINED),
    "training.warmup_ratio": (0.2, TRAINED),
    "training.batch_size": (2, TRAINED),
    "training.gradient_accumulation": (1, TRAINED),
    "training.dtype": ("float32", TRAINED),
    "training.processes": (2, TRAINED),
    "training.deepspeed": ("zero2", TRAINED),
    "training.preset": ("skipalign", MIXED),
    "training.batching": ("sorted", TRAINED),
    "training.sequences_per_step": (24, TRAINED),
    "training.balanced": (False, TRAINED),
    "training.loss": ("sequence", TRAINED),
    "training.chunked_loss": (False, TRAINED),
    "training.liger": (True, TRAINED),
    "training.report_to": (["tensorboard"], NOTHING),
    "training.launcher": (["srun"], NOTHING),
    "training.hostfile": ("hosts", NOTHING),
    "training.gradient_checkpointing": (True, NOTHING),
    "training.save_steps": (7, NOTHING),
    "evaluation.enabled": (False, REPORT),
    "evaluation.benchmarks": (("needle",), REPORT),
    "evaluation.heldout.samples": (5, {"evaluation/heldout", *REPORT}),
    "evaluation.heldout.buckets": ([64], {"evaluation/heldout", *REPORT}),
    "evaluation.needle.lengths": ([64], {"evaluation/needle", *REPORT}),
    "evaluation.needle.depths": ([0.0], {"evaluation/needle", *REPORT}),
    "evaluation.needle.repeats": (1, {"evaluation/needle", *REPORT}),
    "evaluation.needle.fact": ("{key} {value}", {"evaluation/needle", *REPORT}),
    "evaluation.needle.question": ("{key}", {"evaluation/needle", *REPORT}),
    "evaluation.needle.answer": ("{value}!", {"evaluation/needle", *REPORT}),
    "evaluation.needle.pairs": ([{"key": "a", "values": ["x", "y"]}], {"evaluation/needle", *REPORT}),
    "scoring.device_map": ("auto", NOTHING),
    "scoring.workers": (2, NOTHING),
    "scoring.compile": (True, NOTHING),
    "execution.executor": ("multiprocess", NOTHING),
    "execution.max_concurrent": (3, NOTHING),
    "execution.shards_per_run": (3, NOTHING),
    "execution.retries": (0, NOTHING),
    "execution.schedule": ("0 4 * * *", NOTHING),
    # They change the data that the demo builds: `located` leads to another file, and its content counts.
    "demo.seed": (5, NOTHING),
    "demo.samples": (20, NOTHING),
    "demo.conversations": (5, NOTHING),
}


def all_fields(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted path of every field that is no section itself; `models.*` for both models."""
    for name, field in section.model_fields.items():
        if field.exclude:
            continue
        parts = [] if get_origin(field.annotation) is list else [field.annotation, *get_args(field.annotation)]
        inner = next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)
        if name == "models" and inner is not None:
            for model in ("short", "long"):
                yield from all_fields(inner, f"models.{model}.")
        elif inner is not None:
            yield from all_fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def configured(folder: Path, **changes: Any) -> Config:
    content: dict[str, Any] = {name: dict(section) for name, section in BASE.items()}
    content["models"] = {name: dict(model) for name, model in BASE["models"].items()}
    for path, value in changes.items():
        *sections, last = path.split(".")
        place = content
        for name in sections:
            place = place.setdefault(name, {})
        place[last] = value
    return Config.model_validate({**content, "folder": folder})


def versions(config: Config, digests: Mapping[str, str] | None = None, signature: str = "s") -> dict[Any, str]:
    """The fingerprint of every output when all are up to date, and contents are functions of their origin."""
    models = digests or {name: f"{model.path}@{model.revision}" for name, model in config.models.items()}
    pipeline = pipeline_of(config, models, signature)
    found: dict[Any, str] = {}
    for node in pipeline.nodes:
        upstream = {
            name: ",".join(sorted(version for (asset, _), version in found.items() if asset == name))
            for name in node.upstream
        }
        parts = [str(shard) for shard in range(config.long_sft.shards)] if node.partitioned else [None]
        for part in parts:
            found[node.asset, part] = node.fingerprint(
                upstream or ({"input": f"{config.long_sft.shards}/{part}"} if part else {})
            )
    return found


def stale(before: Mapping[Any, str], after: Mapping[Any, str]) -> set[str]:
    return {key[0] for key, version in after.items() if before.get(key) != version}


def test_every_field_of_the_configuration_has_a_line_here() -> None:
    of_rules = {f"selection.{name}" for name in OF_RULES}
    # See test_made_models and test_homologous.
    of_made_models = {field for field in all_fields(Config) if {"pre_experience", "homologous"} & {*field.split(".")}}
    of_training = {f"training.{name}" for name in OF_TRAINING}
    assert {*FIELDS, *PAIR_ONLY, *of_rules, *of_training, *of_made_models} == set(all_fields(Config))


@pytest.mark.parametrize("field", OF_TRAINING)
def test_what_goes_with_other_settings_of_training(field: str, tmp_path: Path) -> None:
    training, value = OF_TRAINING[field]
    *section, last = field.split(".")
    inner = {last: value} if not section else {section[0]: {**training[section[0]], last: value}}
    base, changed = (
        versions(Config.model_validate({**BASE, "training": each, "folder": tmp_path}))
        for each in (training, training | inner)
    )
    assert stale(base, changed) == TRAINED


@pytest.mark.parametrize("field", OF_RULES)
def test_what_a_rule_reads_decides_the_choice_alone(field: str, tmp_path: Path) -> None:
    selection, value = OF_RULES[field]

    base, changed = (
        versions(Config.model_validate({**BASE, "models": MODELS, "selection": each, "folder": tmp_path}))
        for each in (selection, selection | {field: value})
    )
    new_table = {"embedding/enc2"} if field == "encoder" else set()
    assert stale(base, changed) - TRAINED - {"training_mix"} == {"selected_subset", *new_table}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_reaches_exactly_the_assets_whose_result_it_changes(field: str, tmp_path: Path) -> None:
    value, wanted = FIELDS[field]
    base, changed = configured(tmp_path), configured(tmp_path, **{field: value})
    assert changed != base
    assert stale(versions(base), versions(changed)) == wanted


def test_the_model_of_training_counts_with_its_weights(tmp_path: Path) -> None:
    config = configured(tmp_path)
    digests = {"short": "x", "long": "y"}
    found = stale(versions(config, digests), versions(config, {**digests, "long": "z"}))
    assert found == LONG
    assert stale(versions(config, digests), versions(config, {**digests, "short": "z"})) == SHORT


def test_new_short_conversations_reach_the_mix(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert stale(versions(config), versions(config, signature="t")) == {"short_chat_mix", *MIXED}


def test_a_deepspeed_file_counts_by_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 1}}')
    config = configured(tmp_path, **{"training.deepspeed": "ds.json"})
    before = versions(config)
    file.write_text('{"zero_optimization": {"stage": 1}}\n')
    assert stale(before, versions(config)) == NOTHING
    file.write_text('{"zero_optimization": {"stage": 2}}')
    assert stale(before, versions(config)) == TRAINED


def test_demo_fields_change_data_or_models(tmp_path: Path) -> None:
    base = configured(tmp_path, **{"long_sft.path": "demo:samples", "models.short.path": "demo:short"})
    for field in ("demo.seed", "demo.samples", "demo.conversations"):
        changed = configured(
            tmp_path, **{"long_sft.path": "demo:samples", "models.short.path": "demo:short", field: FIELDS[field][0]}
        )
        assert changed.located_long_sft.path != base.located_long_sft.path
        assert (model_digest(changed, "short") != model_digest(base, "short")) == (field == "demo.seed")


def test_the_nodes_stand_in_topological_order_and_name_known_upstreams(tmp_path: Path) -> None:
    pipeline = pipeline_of(configured(tmp_path), {"short": "x", "long": "y"}, "s")
    seen: set[str] = set()
    for node in pipeline.nodes:
        assert set(node.upstream) <= seen
        seen.add(node.asset)
    assert set(pipeline.by_name["report"].upstream) == seen - {"report"}
    assert [name for name, partitioned in pipeline.partitioned.items() if partitioned] == [
        "raw_long_sft",
        "perplexity/short",
        "perplexity/long",
        "cam",
    ]
    assert make_plan(pipeline.nodes, ["0"], {"0": "i"}, {}).of("report") is not None


def test_training_works_downstream_by_content_only(tmp_path: Path) -> None:
    """An equal selection must not cost a GPU week."""
    pipeline = pipeline_of(configured(tmp_path), {"short": "x", "long": "y"}, "s")
    assert set(pipeline.by_name["training_mix"].upstream.values()) == {"content"}
    assert set(pipeline.by_name["checkpoint"].upstream.values()) == {"content"}


def test_a_mix_by_rank_or_source_counts_where_the_choice_comes_from(tmp_path: Path) -> None:
    """Its content does not: an equal mix is not trained again."""
    for changes in ({"training.mix.long_fraction": 0.5}, {"training.mix.weights": {"long": 2.0}}):
        nodes = pipeline_of(configured(tmp_path, **changes), {"short": "x", "long": "y"}, "s").by_name
        assert nodes["training_mix"].upstream == {"selected_subset": "fingerprint", "short_chat_mix": "content"}
        assert nodes["checkpoint"].upstream == {"training_mix": "content"}


def test_further_models_have_a_perplexity_and_reach_the_report(tmp_path: Path) -> None:
    config = configured(tmp_path, **{"models.third": {"path": "t"}})
    pipeline = pipeline_of(config, {"short": "x", "long": "y", "third": "z"}, "s")
    assert "perplexity/third" in pipeline.by_name["report"].upstream
    assert "perplexity/third" not in pipeline.by_name["combined_scores"].upstream
