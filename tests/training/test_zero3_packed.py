"""Two ranks, ZeRO-3, packed rows with skipped positions, accumulation: against one process, one document at a time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.launch import training_environment
from tests.training.packed_rows import documents, make_row
from tests.training.zero3_training import ACCUMULATION, BETAS, CLIP, DECAY, LEARNING_RATE, RANKS, STEPS

ROOT = Path(__file__).parents[2]


def base_model(*, tied: bool) -> LlamaForCausalLM:
    """A tiny Llama in float32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        initializer_range=0.1,
    )
    return LlamaForCausalLM(config).train()


def ragged_rows() -> list[dict[str, Any]]:
    """Rows of all steps; documents of 1 to 40 tokens, one to five a row; the last step has rows without any label."""
    generator = torch.Generator().manual_seed(5)
    rows = []
    for index in range(STEPS * ACCUMULATION * RANKS):
        count = int(torch.randint(1, 6, (1,), generator=generator))
        lengths = tuple(torch.randint(1, 41, (count,), generator=generator).tolist())
        rows.append(make_row((*lengths, 3), skips=True, seed=index, vocabulary=20))
    for filler in rows[-3:]:
        filler["labels"].fill_(IGNORED)
    assert (rows[-4]["labels"] != IGNORED).any()
    return rows


def reference(model: LlamaForCausalLM, rows: list[dict[str, Any]]) -> list[float]:
    """Train `model` on all logits of one document at a time; the loss of each step, a mean over its labels."""
    optimiser = torch.optim.AdamW(decayed_or_not(model), lr=LEARNING_RATE, betas=BETAS, eps=1e-8)
    per_step = ACCUMULATION * RANKS
    losses = []
    for step in range(STEPS):
        batch = rows[step * per_step : (step + 1) * per_step]
        count = sum(int((row["labels"] != IGNORED).sum()) for row in batch)
        total = 0.0
        for document in (document for row in batch for document in documents(row)):
            labels = document.pop("labels")[0, 1:]
            # With a mask of ones transformers leaves the attention of a single document whole.
            mask = torch.ones_like(document["input_ids"])
            logits = model(**document, attention_mask=mask, use_cache=False).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / count
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(total)
    return losses


def decayed_or_not(model: torch.nn.Module) -> list[dict[str, Any]]:
    """As the Trainer does: norms are not decayed."""
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    return [{"params": others, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}]


@pytest.mark.long
@pytest.mark.parametrize(("engine", "tied"), [("zero3", False), ("zero3", True), ("zero2", True), ("ddp", True)])
def test_losses_and_weights_are_those_of_one_process_without_packing(tmp_path: Path, engine: str, tied: bool) -> None:
    model, rows = base_model(tied=tied), ragged_rows()
    model.save_pretrained(tmp_path / "model")
    torch.save(rows, tmp_path / "rows.pt")
    wanted = reference(model, rows)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += ["-m", "tests.training.zero3_training", str(tmp_path), engine]
    environment = {**os.environ, **training_environment(processes=RANKS, cuda=False), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert losses == pytest.approx(wanted, abs=1e-5)
    assert wanted[-1] < 0.8 * wanted[0]  # it learns: a step that is not taken would show
    trained = load_file(tmp_path / "trained" / "model.safetensors")
    # DeepSpeed's state of a model with tied weights may hold them twice.
    twice = trained.pop("lm_head.weight", None) if tied else None
    assert twice is None or torch.equal(twice, trained["model.embed_tokens.weight"])
    expected = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert trained.keys() == expected.keys()
    differences = {name: float((trained[name] - expected[name]).abs().max()) for name in trained}
    assert max(differences.values()) <= 1e-4, differences
