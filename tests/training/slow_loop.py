"""A training as its definition says: one document at a time, no padding, no packing, one process, plain PyTorch."""

import math
from typing import Any

import polars as pl
import torch
from transformers import AutoModelForCausalLM

from gateau_dagster.training.dataset import MixRows, TrainingDocument
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.spec import TrainingSpec
from gateau_dagster.training.train import plan_of, read_mix

Weights = dict[str, torch.Tensor]


def slow_training(spec: TrainingSpec) -> tuple[list[float], list[float], Weights]:
    """Loss and gradient norm of every step, and the final weights, float32. What a step learns from, and the positions,
    are the plan's."""
    training = spec.training
    assert training.scheduler == "linear"
    mix = read_mix(spec.mix, weighted=training.loss == "longce")
    plan = plan_of(spec, mix)
    rows = MixRows(mix, plan, skip=training.skip, seed=training.seed)
    model: Any = AutoModelForCausalLM.from_pretrained(spec.base_model, dtype=torch.float32).train()
    model.config.max_position_embeddings = rows.farthest
    groups = decayed_or_not(model, training.weight_decay)
    optimiser = torch.optim.AdamW(groups, lr=0.0, betas=training.adam_betas, eps=1e-8)
    warmup = math.ceil(training.warmup_ratio * plan.steps)
    losses, norms = [], []
    for step in range(plan.steps):
        rising, falling = step / max(1, warmup), (plan.steps - step) / (plan.steps - warmup)
        for group in optimiser.param_groups:
            group["lr"] = training.learning_rate * (rising if step < warmup else falling)
        of_step = plan.rows[step * plan.rows_per_step : (step + 1) * plan.rows_per_step]
        whole = training.batching == "concatenated"
        parts = [part for row in of_step for part in row_losses(model, [rows._document(each) for each in row], whole)]
        if training.loss == "sequence":
            loss = sum(nll.mean() for nll in parts) / len(parts)
        elif training.loss == "longce":
            weights = [each for row in of_step for document in row for each in trained_weights(mix, document.row)]
            nlls = [nll for part in parts for nll in part]
            loss = sum(weight * nll for weight, nll in zip(weights, nlls, strict=True)) / len(nlls)
        else:
            loss = sum(nll.sum() for nll in parts) / sum(nll.numel() for nll in parts)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)))
        optimiser.step()
        optimiser.zero_grad()
    return losses, norms, {name: value.detach() for name, value in model.named_parameters()}


def trained_weights(mix: pl.DataFrame, row: int) -> list[float]:
    """Of the tokens of a document that are trained, in order."""
    (found,) = mix.filter(pl.col("position") == row).iter_rows(named=True)
    return [
        weight
        for at, (label, weight) in enumerate(zip(found["labels"], found["weights"], strict=True))
        if at > 0 and label != IGNORED
    ]


def row_losses(model: torch.nn.Module, documents: list[TrainingDocument], whole: bool) -> list[torch.Tensor]:
    """`document_loss` of each document; `whole`: all of them are read as one sequence."""
    if not whole or not documents:
        return [document_loss(model, each) for each in documents]
    ids, labels = (torch.cat([getattr(each, name) for each in documents]) for name in ("input_ids", "labels"))
    sequence = TrainingDocument(row=-1, input_ids=ids, labels=labels, positions=torch.arange(len(ids)))
    trained = [sum(label != IGNORED for label in each.labels.tolist()) for each in documents]
    return list(document_loss(model, sequence).split(trained))


def document_loss(model: torch.nn.Module, document: TrainingDocument) -> torch.Tensor:
    """-log P of every trained token, float32 [trained tokens]."""
    ids = document.input_ids[None]
    # With a mask of ones transformers leaves the attention of a single document whole, whatever its positions.
    output = model(
        input_ids=ids, position_ids=document.positions[None], attention_mask=torch.ones_like(ids), use_cache=False
    )
    log_probabilities = torch.log_softmax(output.logits[0], -1)
    trained = [at for at in range(1, ids.shape[1]) if document.labels[at] != IGNORED]
    return torch.stack([-log_probabilities[at - 1, document.input_ids[at]] for at in trained])


def decayed_or_not(model: torch.nn.Module, decay: float) -> list[dict[str, Any]]:
    """As the Trainer does: norms are not decayed."""
    norms = [value for name, value in model.named_parameters() if "norm" in name]
    others = [value for name, value in model.named_parameters() if "norm" not in name]
    return [{"params": others, "weight_decay": decay}, {"params": norms, "weight_decay": 0.0}]
