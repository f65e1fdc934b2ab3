"""DeepSpeed settings: presets, files and dictionaries become one content; contradictions to training are refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.training.deepspeed_config import agreed_deepspeed_config, deepspeed_config
from tests.kit.error_codes import refused
from tests.training.builders import agree, finish, make_spec, result_of, run, start

OFFLOADED = {"zero2_offload": {"offload_optimizer"}, "zero3_offload": {"offload_optimizer", "offload_param"}}


@pytest.mark.parametrize("preset", ["zero1", "zero2", "zero3", *OFFLOADED])
def test_a_preset_is_its_stage_and_agrees_with_any_training(tmp_path: Path, preset: str) -> None:
    config = deepspeed_config(preset, folder=tmp_path)
    assert config is not None
    for changes in ({}, {"max_grad_norm": 0.01, "dtype": "float32"}, {"scheduler": "cosine", "batch_size": 3}):
        assert agreed(preset, tmp_path, **changes) == config
    zero, stage = config["zero_optimization"], int(preset[4])
    assert zero["stage"] == stage
    assert zero.get("stage3_gather_16bit_weights_on_model_save", False) is (stage == 3)
    assert config["gradient_accumulation_steps"] == config["gradient_clipping"] == "auto"
    assert "optimizer" not in config and (config.get("zero_force_ds_cpu_optimizer") is False) == (preset in OFFLOADED)
    assert {key for key in zero if key.startswith("offload")} == OFFLOADED.get(preset, set())
    assert all(zero[part]["device"] == "cpu" for part in OFFLOADED.get(preset, ()))
    zero["stage"] = 9
    assert deepspeed_config(preset, folder=tmp_path) != config, "a preset is not changed by its use"


def test_without_deepspeed_there_are_no_settings(tmp_path: Path) -> None:
    assert deepspeed_config(None, folder=tmp_path) is None
    assert agreed_deepspeed_config(TrainingConfig(), folder=tmp_path) is None


def test_a_file_is_relative_to_the_configuration(tmp_path: Path) -> None:
    content = {"zero_optimization": {"stage": 3, "reduce_bucket_size": 17}, "gradient_clipping": "auto"}
    (tmp_path / "ds.json").write_text(json.dumps(content))
    config = deepspeed_config("ds.json", folder=tmp_path)
    assert config is not None
    assert config["zero_optimization"] == {
        "stage": 3,
        "reduce_bucket_size": 17,
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    assert deepspeed_config(content, folder=tmp_path) == config
    assert "stage3_gather_16bit_weights_on_model_save" not in content["zero_optimization"]  # the user's stays as it was


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "not one of zero1, zero2, zero3"), ("{", "not valid JSON"), ("[" * 100_000, "not valid JSON"),
     ("[1]", "not a JSON object"),
     ('{"zero_optimization": 3}', "zero_optimization must be a JSON object"),
     ('{"zero_optimization": {"stage": 7}}', "stage must be 0, 1, 2 or 3, not 7"),
     ('{"zero_optimization": {"stage": "three"}}', 'not "three"'),
     ('{"zero_optimization": {"stage": true}}', "not true"),
     ('{"zero_optimisation": {"stage": 3}}', "'zero_optimisation': did you mean 'zero_optimization'"),
     ('{"x": Infinity}', "contains a value that JSON does not have")],
)  # fmt: skip
def test_unusable_files_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "ds.json").write_text(content)
    with refused("training.deepspeed", message):
        deepspeed_config("ds.json", folder=tmp_path)


ADAMW = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
# The files of transformers' DeepSpeed guide, without offloading, whose optimiser has to be compiled.
COMMON = {
    "fp16": {
        "enabled": "auto",
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "optimizer": ADAMW,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
WARM_UP = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}
ZERO2 = COMMON | {
    "scheduler": {"type": "WarmupLR", "params": WARM_UP},
    "zero_optimization": {
        "stage": 2,
        "allgather_partitions": True,
        "allgather_bucket_size": 2e8,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 2e8,
        "contiguous_gradients": True,
    },
}
ZERO3 = COMMON | {
    "bf16": {"enabled": "auto"},
    "scheduler": {"type": "WarmupDecayLR", "params": WARM_UP | {"total_num_steps": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}
BARE = {"zero_optimization": {"stage": 2}}


def agreed(content: Mapping[str, Any] | str | None, folder: Path, **training: Any) -> dict[str, Any]:
    section = TrainingConfig.model_validate({"deepspeed": content} | training)
    found = agreed_deepspeed_config(section, folder=folder)
    assert found is not None
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("content", "scheduler"),
    [(ZERO2, "constant"), (ZERO3, "linear"), (BARE, "cosine")],
    ids=["usual zero2", "usual zero3", "nothing but a stage"],
)
def test_a_file_trains_as_one_process_without_deepspeed(
    tmp_path: Path, content: dict[str, Any], scheduler: str
) -> None:
    """Two ranks by the product's own command; settings that are no defaults, read back from the process."""
    (tmp_path / "ds.json").write_text(json.dumps(content))
    changes = {"scheduler": scheduler, "weight_decay": 0.3, "max_grad_norm": 0.01, "max_steps": 6, "warmup_ratio": 0.3}
    found = agreed("ds.json", tmp_path, dtype="float32", processes=2, **changes)
    spec = make_spec(tmp_path, deepspeed=found, processes=2, batch_size=1, **changes)
    finish(start(spec, tmp_path / "spec.json"))
    alone = make_spec(tmp_path, name="alone", batch_size=2, **changes)
    run(alone)
    used, wanted = result_of(spec)["settings"], result_of(alone)["settings"]
    assert used["deepspeed"]["zero_stage"] == content["zero_optimization"]["stage"]
    assert used["optimizer"] == wanted["optimizer"]
    assert (used["optimizer"]["max_grad_norm"], used["optimizer"]["weight_decay"]) == (0.01, 0.3)
    assert used["schedule"] == wanted["schedule"]
    assert (used["schedule"]["warmup_steps"], used["schedule"]["peak_learning_rate"]) == (2, 5e-3)
    assert (used["batch"]["passes"], used["batch"]["rows_per_step"]) == (2, 4)
    agree(spec, alone)


def test_what_training_decides_is_left_to_it(tmp_path: Path) -> None:
    """Also where the file says nothing: DeepSpeed's defaults would count then, such as a gradient norm of 1."""
    for content in (BARE, BARE | {"optimizer": ADAMW}, BARE | {"gradient_clipping": None, "bf16": {}}):
        found = agreed(content, tmp_path, max_grad_norm=0.01)
        assert found["gradient_clipping"] == found["gradient_accumulation_steps"] == "auto"
        assert found["train_batch_size"] == found["train_micro_batch_size_per_gpu"] == "auto"
        assert found["bf16"]["enabled"] == found["fp16"]["enabled"] == "auto"
        assert not {"optimizer", "scheduler"} & {*found}
    found = agreed(ZERO2, tmp_path, scheduler="constant")
    assert found["zero_optimization"] == ZERO2["zero_optimization"]
    assert (found["fp16"]["loss_scale_window"], found["steps_per_print"]) == (1000, 2000)


def test_the_same_said_twice_comes_to_the_same(tmp_path: Path) -> None:
    optimizer = {"lr": 3e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "torch_adam": True}
    schedule = {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": "auto", "warmup_type": "linear"}
    content = ZERO3 | {
        "optimizer": {"type": "Adam", "params": optimizer},
        "scheduler": {"type": "WarmupDecayLR", "params": schedule},
        "bf16": {"enabled": True},
        "gradient_clipping": 1,
        "train_batch_size": 2 * 6 * 4,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 6,
    }
    settings = {"batch_size": 2, "sequences_per_step": 48, "processes": 8, "sequence_parallel": 2}
    learning = {"learning_rate": 3e-5, "weight_decay": 0.1}
    assert agreed(content, tmp_path, **settings, **learning) == agreed(ZERO3, tmp_path, **settings, **learning)
    cosine = {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.1, "warmup_min_ratio": 0}}
    agreed(BARE | {"scheduler": cosine}, tmp_path, scheduler="cosine", min_learning_rate_ratio=0.1)


@pytest.mark.parametrize(
    ("content", "changes", "reason"),
    [
        ({"gradient_clipping": 1.0}, {"max_grad_norm": 0.01},
         "gradient_clipping is 1.0, but training.max_grad_norm gives 0.01"),
        ({"gradient_accumulation_steps": 4}, {},
         "gradient_accumulation_steps is 4, but training.gradient_accumulation gives 12"),
        ({"gradient_accumulation_steps": 4}, {"sequences_per_step": 8},
         "gradient_accumulation_steps is 4, but training.sequences_per_step gives 8"),
        ({"train_batch_size": 4}, {"processes": 2},
         "train_batch_size is 4, but training.batch_size with passes and processes gives 24"),
        ({"train_micro_batch_size_per_gpu": 4}, {},
         "train_micro_batch_size_per_gpu is 4, but training.batch_size gives 1"),
        ({"fp16": {"enabled": True}}, {}, "fp16.enabled is true, but training.dtype bfloat16 gives false"),
        ({"bf16": {"enabled": True}}, {"dtype": "float32"},
         "bf16.enabled is true, but training.dtype float32 gives false"),
        ({"optimizer": {"type": "Lamb"}}, {}, 'optimizer.type is "Lamb", but the trainer gives "AdamW"'),
        ({"optimizer": {"params": {"lr": 3e-5, "weight_decay": 0.1}}}, {},
         "optimizer.params.lr is 3e-05, but training.learning_rate gives 2e-05; "
         "optimizer.params.weight_decay is 0.1, but training.weight_decay gives 0.0"),
        ({"optimizer": {"params": {"betas": [0.8, 0.999]}}}, {},
         "optimizer.params.betas is [0.8, 0.999], but training.adam_betas gives [0.9, 0.95]"),
        ({"optimizer": {"params": {"fast": True}}}, {},
         "optimizer.params.fast is true, but the trainer's AdamW and schedules have no such setting"),
        ({"optimizer": "AdamW"}, {},
         'optimizer is "AdamW", but the trainer\'s AdamW and schedules have no such setting'),
        ({"scheduler": {"type": "WarmupLR"}}, {},
         'scheduler.type is "WarmupLR", but training.scheduler linear gives "WarmupDecayLR"'),
        ({"scheduler": {"params": {"warmup_num_steps": 500}}}, {},
         "scheduler.params.warmup_num_steps is 500, but training.warmup_ratio and the mix decide that"),
        ({"scheduler": {"params": {"warmup_type": "log"}}}, {},
         'scheduler.params.warmup_type is "log", but the trainer\'s schedule gives "linear"'),
    ],
)  # fmt: skip
def test_what_contradicts_training_names_both_places(
    tmp_path: Path, content: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    cure = 'Remove that from the file or write "auto", or change the other setting.'
    with refused("training.deepspeed") as raised:
        agreed(BARE | content, tmp_path, **changes)
    assert str(raised.value) == f"training.deepspeed: {reason}. {cure}"
