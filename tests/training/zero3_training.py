"""One rank of a training on packed rows: `torchrun zero3_training.py FOLDER ENGINE`, started by test_zero3_packed.py.

FOLDER holds `model`, a Hugging Face folder, and `rows.pt`, the collated rows in the order [step][accumulation][rank].
It gets `trained` (safetensors) and `losses.json`. ENGINE: zero3, zero2 or ddp.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from gateau_dagster.models.training_attention import attend_within_documents
from gateau_dagster.training.deepspeed_config import deepspeed_config, join_by_gloo
from gateau_dagster.training.response_loss import use_chunked_loss

STEPS, ACCUMULATION, RANKS = 20, 2, 2
LEARNING_RATE, BETAS, DECAY, CLIP = 3e-3, (0.9, 0.95), 0.1, 1.0


class Rows(Dataset[dict[str, Any]]):
    """Collated rows, in order."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]


def only(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch is one row."""
    assert len(rows) == 1
    return rows[0]


def arguments(folder: Path, engine: str) -> TrainingArguments:
    """Float32 and a constant learning rate; under ZeRO-3 with every parameter in parts."""
    config = deepspeed_config(None if engine == "ddp" else engine, folder=folder)
    if config is not None and engine == "zero3":
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    return TrainingArguments(
        output_dir=str(folder / "work"),
        max_steps=STEPS,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=ACCUMULATION,
        learning_rate=LEARNING_RATE,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=DECAY,
        max_grad_norm=CLIP,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        activation_checkpointing=True,
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=True,
        ddp_backend="gloo",
        deepspeed=config,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        average_tokens_across_devices=True,
        dataloader_pin_memory=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        log_level="error",
    )


def main(folder: Path, engine: str) -> None:
    """Train and write what came out."""
    settings = arguments(folder, engine)  # starts the group; ZeRO-3 must be known before the model is loaded
    if engine != "ddp":
        join_by_gloo()
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    in_parts = [hasattr(parameter, "ds_id") for parameter in model.parameters()]
    assert in_parts == [engine == "zero3"] * len(in_parts), "ZeRO-3 spreads parameters as they load"
    attend_within_documents(model)
    use_chunked_loss(model, chunk=5)
    rows = Rows(torch.load(folder / "rows.pt"))
    trainer = Trainer(model=model, args=settings, train_dataset=rows, data_collator=only)
    trainer.train()
    state: Any = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if settings.process_index == 0:
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        (folder / "losses.json").write_text(json.dumps(losses))
        model.save_pretrained(folder / "trained", state_dict=state)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
