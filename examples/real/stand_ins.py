"""Makes, from the example's theta_A, models in the places of a reward model and a sentence encoder.

They show how such models are configured and that every method runs. What the reward model says means nothing: its head
is random.
"""

import json
from pathlib import Path

import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils.logging import set_verbosity_error

from gateau_dagster.data.sample import text_digest

_VERSION = "1"
_DONE = ".made_from.json"  # hidden: not a part of the model


def make_stand_ins(theta_a: Path, out: Path) -> None:
    """`out`/reward and `out`/sentences, unless they are there and made from these weights."""
    set_verbosity_error()  # that the head is random is said here
    origin = text_digest([_VERSION, str((theta_a / "model.safetensors").stat().st_mtime_ns)])
    for name, auto in (("reward", AutoModelForSequenceClassification), ("sentences", AutoModel)):
        folder = out / name
        done = folder / _DONE
        if done.exists() and json.loads(done.read_text()) == origin:
            continue
        tokenizer = AutoTokenizer.from_pretrained(theta_a)
        padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        labels = {"num_labels": 1} if name == "reward" else {}
        torch.manual_seed(0)
        auto.from_pretrained(theta_a, pad_token_id=padding, **labels).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        done.write_text(json.dumps(origin))
