"""Homologous models as the planner sees them: which setting and which text reaches which table."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gateau_dagster.config import Config
from gateau_dagster.config.models import HomologousOptions
from gateau_dagster.features.text_mix.mix import check_homologous, text_files, text_signatures
from gateau_dagster.models.model_digest import model_digest
from gateau_dagster.models.model_facts import known_positions, own_window
from gateau_dagster.pipeline.checks import checked_plan
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.observed import state_of
from tests.kit.error_codes import refused
from tests.pipeline import fields
from tests.pipeline.configured import configured, resolved_assets, stale, versions

LONG = {"path": "homologous:short", "homologous": {"texts": "books", "length": 512, "tokens_per_step": 65_536}}
SELECTED = {"combined_scores", "selected_subset", "training_mix", *fields.TRAINED}
OF_THETA_B = {"perplexity/long", "cam", *SELECTED}
TRAINED = {"homologous_model/long", *OF_THETA_B}
MIXED = {"homologous_mix/long", *TRAINED}
PREFIX = "models.long.homologous."
# Field: (another value, what has to be made again).
FIELDS: dict[str, tuple[Any, set[str]]] = {
    # Which files are meant counts by what is in them: see the signatures.
    f"{PREFIX}texts": ("others", {"report"}),
    f"{PREFIX}short_texts": ("others", {"report"}),
    f"{PREFIX}text_field": ("body", MIXED),
    f"{PREFIX}join_by": ("repo", MIXED),
    f"{PREFIX}long_share": (0.5, MIXED),
    f"{PREFIX}length": (1024, MIXED),
    f"{PREFIX}least_tokens": (512, MIXED),
    f"{PREFIX}tokens": (1_000_000, MIXED),
    f"{PREFIX}seed": (7, MIXED),
    f"{PREFIX}positions": ({"method": "theta", "theta": 8e6}, TRAINED),
    f"{PREFIX}tokens_per_step": (131_072, TRAINED),
    f"{PREFIX}loss": ("exact", TRAINED),
    f"{PREFIX}learning_rate": (1e-3, TRAINED),
    f"{PREFIX}scheduler": ("linear", TRAINED),
    f"{PREFIX}min_learning_rate_ratio": (0.5, TRAINED),
    f"{PREFIX}warmup_ratio": (0.5, TRAINED),
    f"{PREFIX}adam_betas": ((0.9, 0.999), TRAINED),
    f"{PREFIX}weight_decay": (0.0, TRAINED),
    f"{PREFIX}max_grad_norm": (2.0, TRAINED),
    "models.short.path": ("a/other", {"perplexity/short", *MIXED}),
    # The new rotary embedding is taken from the one that the weights were trained with.
    "models.short.rope_theta": (5.0, {"perplexity/short", *SELECTED}),
    "models.long.preamble": ("Be helpful.", OF_THETA_B),
    "training.dtype": ("float32", TRAINED),
    "training.deepspeed": ("zero2", TRAINED),
    "training.learning_rate": (1.0, fields.TRAINED),
    "training.max_length": (64, {"training_mix", *fields.TRAINED}),
    "training.save_steps": (7, set()),
    "training.liger": (True, TRAINED),
    "training.report_to": (["wandb"], set()),
}


def made(folder: Path, **changes: Any) -> Config:
    options = {name.removeprefix(PREFIX): value for name, value in changes.items() if name.startswith(PREFIX)}
    others = {name: value for name, value in changes.items() if not name.startswith(PREFIX)}
    long = {**LONG, "homologous": {**LONG["homologous"], **options}}  # pyright: ignore[reportGeneralTypeIssues]
    long |= {
        name.removeprefix("models.long."): others.pop(name) for name in [*others] if name.startswith("models.long.")
    }
    return configured(folder, **{"models.long": long, **others})


def test_every_option_has_a_line_here() -> None:
    assert {name.removeprefix(PREFIX) for name in FIELDS if name.startswith(PREFIX)} == {
        *HomologousOptions.model_fields
    }


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_reaches_exactly_what_it_changes(field: str, tmp_path: Path) -> None:
    value, wanted = FIELDS[field]
    base, changed = made(tmp_path), made(tmp_path, **{field: value})
    assert changed != base
    assert stale(versions(base), versions(changed)) - {"report"} == wanted - {"report"}


def test_processes_that_share_its_rows_make_the_same_model(tmp_path: Path) -> None:
    shared = {"training.processes": 2, "training.deepspeed": "zero3"}
    base, changed = made(tmp_path, **shared), made(tmp_path, **shared, **{"training.sequence_parallel": 2})
    assert stale(versions(base), versions(changed)) - {"report"} == fields.TRAINED - {"report"}


def test_other_texts_train_again_and_all_that_the_model_scored_follows(tmp_path: Path) -> None:
    config = made(tmp_path)
    assert stale(versions(config), versions(config, texts="u")) == MIXED


def test_rows_go_by_the_content_of_the_model(tmp_path: Path) -> None:
    assets = resolved_assets(made(tmp_path))
    for asset in ("perplexity/long", "cam"):
        one, other = ({"raw_long_sft": "r", "homologous_model/long": content} for content in "ab")
        assert assets[asset].row_scorer(one) != assets[asset].row_scorer(other)
    assert assets["checkpoint"].reads == {"training_mix": "content", "homologous_model/long": "content"}


def test_signatures_go_by_names_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    config = made(tmp_path, **{f"{PREFIX}short_texts": "books/a.txt"})
    assert [[file.name for file in files] for files in text_files(config, "long").values()] == [["a.txt"], ["a.txt"]]
    first = text_signatures(config, tmp_path / "cache.json")
    (folder / "a.txt").touch()
    assert text_signatures(config, tmp_path / "cache.json") == first
    assert text_signatures(made(tmp_path), tmp_path / "cache.json") != first, "the short texts count"
    (folder / "a.txt").write_text("two")
    second = text_signatures(config, tmp_path / "cache.json")
    assert second != first
    status = (folder / "a.txt").stat()
    (folder / "a.txt").write_text("six")
    os.utime(folder / "a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert text_signatures(config, tmp_path / "cache.json") == second
    verified = made(tmp_path, **{f"{PREFIX}short_texts": "books/a.txt", "models.long.verify": "content"})
    assert text_signatures(verified, tmp_path / "cache.json") not in (first, second)


def test_missing_texts_are_an_error_at_planning(tmp_path: Path) -> None:
    with refused("data.missing", match=r"^models\.long\.homologous\.texts: 'books'"):
        text_files(made(tmp_path), "long")
    demo = {"models.short.path": "demo:short", "long_sft.path": "demo:samples", "short_chat.path": "demo:conversations"}
    state = state_of(config=made(tmp_path, **demo))
    with refused("data.missing"):
        checked_plan(state)


def write_config(folder: Path, **content: Any) -> None:
    (folder / "base").mkdir(exist_ok=True)
    (folder / "base" / "config.json").write_text(json.dumps(content))


def test_a_base_that_cannot_read_further_is_an_error_at_planning(tmp_path: Path) -> None:
    config = made(tmp_path, **{"models.short.path": "base"})
    write_config(tmp_path, model_type="gpt2", n_positions=128)
    with refused("models.no_rotary", match=r"models\.long\.path"):
        check_homologous(config)
    write_config(tmp_path, model_type="llama", max_position_embeddings=512)
    with refused("training.positions_reached", match=r"models\.long\.homologous: .* 512 "):
        check_homologous(config)
    theta = {"method": "theta", "theta": 1e6}
    check_homologous(made(tmp_path, **{"models.short.path": "base", f"{PREFIX}positions": theta}))
    write_config(tmp_path, model_type="llama", max_position_embeddings=511)
    check_homologous(config)


def test_before_it_is_made_it_is_known_by_its_base_and_its_length(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="llama", max_position_embeddings=77)
    config = made(tmp_path, **{"models.short.path": "base"})
    assert model_digest(config, "long") == f"made:{model_digest(config, 'short')}"
    assert (own_window(config, "short"), own_window(config, "long")) == (77, 512)
    assert (known_positions(config, "short"), known_positions(config, "long")) == (77, 512)


def test_it_may_be_ladms_long_attention_calculator(tmp_path: Path) -> None:
    changes = {"selection.method": "ladm", "selection.options": {"ladm": {"model": "lac"}}, "training.enabled": False}
    config = configured(tmp_path, **{"models.lac": LONG, **changes})
    assets = resolved_assets(config)
    assert assets["span_attention/lac"].reads == {"raw_long_sft": "fingerprint", "homologous_model/lac": "content"}
    assert assets["span_attention/lac"].model == "homologous_model/lac"
    assert {"homologous_model/lac", "homologous_mix/lac"} <= pipeline_of(config).required


def test_more_tokens_than_this_machine_can_lay_out_are_an_error_at_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path, model_type="llama", max_position_embeddings=64)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 << 30))
    base = {"models.short.path": "base"}
    check_homologous(made(tmp_path, **base, **{f"{PREFIX}tokens": 10**6}))
    with refused("machine.memory", match=r"long\.homologous\.tokens: 50,000,000,000 .* 373 GiB"):
        check_homologous(made(tmp_path, **base, **{f"{PREFIX}tokens": 5 * 10**10}))
