"""A small project on disk for tests of the whole pipeline: data, an untrained pair, a configuration file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError
from gateau_dagster.features.demo.language import ATTRIBUTES, VALUES, build_tokenizer, document
from gateau_dagster.features.demo.prepare import embedded_demo
from gateau_dagster.models.chat_template import Trial, trial_of
from gateau_dagster.models.prompt import open_tokenizer

ROOT = Path(__file__).parents[2]


def configured(**sections: Any) -> Config:
    """A configuration with long samples, the pair and these sections, of which nothing is on disk."""
    pair = {"short": {"path": "a/short"}, "long": {"path": "a/long"}}
    return Config.model_validate({"long_sft": {"path": "long.jsonl"}, "models": pair, **sections})


def write_model(
    folder: Path, *, seed: int, window: int = 512, tokenizer: PreTrainedTokenizerBase | None = None
) -> None:
    """An untrained Llama of a few thousand parameters; by default over the demo's vocabulary."""
    torch.manual_seed(seed)
    tokenizer = tokenizer or build_tokenizer(window)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=window,
        **{name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id")},
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def sample(number: int, *, sentences: int = 6) -> dict[str, str]:
    """A record whose text depends on its number only."""
    rng = np.random.default_rng(number)
    key = ATTRIBUTES[int(rng.integers(len(ATTRIBUTES)))]
    value = VALUES[key][int(rng.integers(len(VALUES[key])))]
    return {
        "id": f"s{number:05d}",
        "source": "far" if number % 2 else "near",
        "context": " ".join(document(rng, sentences, {})),
        "instruction": f"recall {key}",
        "response": f"{key} {value} .",
    }


def write_samples(path: Path, records: list[dict[str, str]]) -> None:
    """Records as JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def make_project(folder: Path, *, samples: int = 24, shards: int = 4, training: bool = False, **sections: Any) -> Path:
    """Writes everything into `folder`; returns the configuration file. `sections` replace or add to its sections."""
    folder.mkdir(parents=True, exist_ok=True)
    write_samples(folder / "long.jsonl", [sample(number) for number in range(samples)])
    write_model(folder / "short", seed=1, window=64)
    write_model(folder / "long", seed=2)
    content: dict[str, Any] = {
        "storage": {"root": "store"},
        "long_sft": {"path": "long.jsonl", "shards": shards},
        "models": {"short": {"path": "short", "context": "window"}, "long": {"path": "long"}},
        "scoring": {"max_length": 512, "segment_length": 16, "dtype": "float32", "device": "cpu"},
        "selection": {"fraction": 0.25},
        "training": {
            "enabled": training,
            "max_length": 512,
            "max_steps": 4,
            "batch_size": 1,
            "gradient_accumulation": 2,
            "dtype": "float32",
            "save_steps": 1,
        },
        "evaluation": {
            "heldout": {"samples": 4, "buckets": [64]},
            "needle": {
                "lengths": [128],
                "depths": [0.0, 1.0],
                "repeats": 1,
                "fact": " note {key} {value} . ",
                "question": "recall {key}",
                "answer": "{key} {value} .",
                "pairs": [{"key": key, "values": list(VALUES[key])} for key in ATTRIBUTES[:4]],
            },
        },
    }
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section} if isinstance(section, dict) else section
    file = folder / "gateau.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def make_demo(folder: Path, **sections: Any) -> Path:
    """The embedded demo with a configuration file, which it returns; `sections` replace or add to its own."""
    folder.mkdir(parents=True, exist_ok=True)
    content = embedded_demo(folder).model_dump(mode="json", exclude_unset=True)
    file = folder / "gateau.yaml"
    file.write_text(yaml.safe_dump({**content, "storage": {"root": "store"}, **sections}))
    return file


def try_here(folder: Path, place: str, *, records: Any = (), **_: object) -> Trial:
    """Try a chat template in this process, in place of `try_chat_template`, whose process of its own takes seconds."""
    trial = trial_of(open_tokenizer(folder), records)
    if trial.reason:
        raise GateauError("models.chat_template", f"{place}: {trial.reason}")
    return trial


def copied(file: Path, folder: Path) -> Path:
    """A project as it was before its first run, in a new folder; returns its configuration file."""
    shutil.copytree(file.parent, folder, ignore=shutil.ignore_patterns("store", ".gateau"))
    return folder / file.name


def change_config(file: Path, **sections: dict[str, Any]) -> None:
    """Changes keys of sections of a configuration file."""
    content = yaml.safe_load(file.read_text())
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    file.write_text(yaml.safe_dump(content))


def gateau(*arguments: str, folder: Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "gateau_dagster.cli", *arguments],
        cwd=folder,
        env=command_environment(**environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"gateau {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
    return done


def begun(
    *arguments: str, folder: Path, program: tuple[str, ...] = ("gateau_dagster.cli",), out: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Starts the command line in a process group of its own, as a terminal does; `out`: where it writes."""
    return subprocess.Popen(
        [sys.executable, "-m", *program, *arguments],
        cwd=folder,
        env=command_environment(),
        start_new_session=True,
        stdout=out,
        stderr=out,
        text=True,
    )


def command_environment(**environment: str) -> dict[str, str]:
    """This process's environment without a configuration of its own, with the project importable."""
    kept = {name: value for name, value in os.environ.items() if name not in {"GATEAU_CONFIG", "DAGSTER_HOME"}}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
