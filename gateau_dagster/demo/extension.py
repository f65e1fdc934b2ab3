"""theta_B from theta_A, by the code that makes a `homologous:` model: long and short texts of the language, a larger
base of the rotary embedding, packed rows whose documents do not see one another."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from gateau_dagster.config import ModelConfig, TrainingConfig
from gateau_dagster.config.made_models import stage_training
from gateau_dagster.config.models import HOMOLOGOUS, HomologousOptions
from gateau_dagster.config.training_sections import PositionExtension
from gateau_dagster.data.sources import resolve_files
from gateau_dagster.data.streams import unheard
from gateau_dagster.demo.long_texts import LONG_LENGTHS, SHORT_LENGTHS, write_texts
from gateau_dagster.demo.tokenizer import build_tokenizer

TOKENS_PER_STEP = 4096


def extend(
    short: Path,
    folder: Path,
    *,
    window: int,
    theta: float,
    steps: int,
    rate: float,
    seed: int,
    after_step: Callable[[float], None],
) -> None:
    """Trains the model in `short` on and writes `folder`/output, a Hugging Face folder; `folder` is scratch space.

    Args:
        short: Hugging Face folder of theta_A.
        folder: empty; holds texts, mix and unfinished work besides the result.
        window: tokens of the longest text, and of a packed row.
        theta: base of the rotary embedding.
        steps, rate: of the optimiser, TOKENS_PER_STEP tokens each; the learning rate falls linearly to nothing.
        seed: of the texts and their order.
        after_step: gets each step's loss.
    """
    from gateau_dagster.training.spec import TrainingSpec
    from gateau_dagster.training.train import train

    options = _options(window, theta, steps, rate, seed)
    _write_mix(folder, options)
    section = ModelConfig(path=f"{HOMOLOGOUS}short", homologous=options)
    machine = TrainingConfig(dtype="float32", batch_size=TOKENS_PER_STEP // window, save_steps=steps)
    spec = TrainingSpec(
        mix=folder / "mix.parquet",
        base_model=str(short),
        output=folder / "output",
        work=folder / "work",
        training=stage_training(section, machine).model_copy(update={"max_steps": steps}),
        fingerprint="demo",
    )
    with _own_random_numbers():
        train(spec, lambda metrics: after_step(metrics["loss"]), cpu=True)  # as theta_A: the seed decides the weights


def _options(window: int, theta: float, steps: int, rate: float, seed: int) -> HomologousOptions:
    """The section that a configuration of one's own would have: ProLong's 60 % of long texts, and a recipe for a model
    of some ten thousand parameters."""
    return HomologousOptions(
        texts="long.jsonl",
        short_texts="short.jsonl",
        length=window,
        tokens=steps * TOKENS_PER_STEP,
        positions=PositionExtension(method="theta", theta=theta),
        tokens_per_step=TOKENS_PER_STEP,
        learning_rate=rate,
        scheduler="linear",
        warmup_ratio=0.0,
        adam_betas=(0.9, 0.98),
        weight_decay=0.0,
        seed=seed,
    )


def _write_mix(folder: Path, options: HomologousOptions) -> None:
    """`mix.parquet` (tables.TRAINING_MIX), from texts that are written beside it."""
    from gateau_dagster.training.text_mix import build_text_mix
    from gateau_dagster.training.text_pieces import TextSource

    assert options.tokens is not None and isinstance(options.texts, str) and isinstance(options.short_texts, str)
    rng = np.random.default_rng((options.seed, options.tokens))
    wanted = round(options.tokens * options.long_share)
    write_texts(folder / options.texts, rng, tokens=wanted, lengths=LONG_LENGTHS)
    write_texts(folder / options.short_texts, rng, tokens=options.tokens - wanted, lengths=SHORT_LENGTHS)
    field = options.text_field
    long, short = (resolve_files(name, folder) for name in (options.texts, options.short_texts))
    sources = (
        TextSource(origin="long", files=long, text_field=field, on_bytes=unheard),
        TextSource(origin="short", files=short, text_field=field, on_bytes=unheard),
    )
    made = build_text_mix(*sources, build_tokenizer(options.length), options=options)
    made.mix.write_parquet(folder / "mix.parquet")


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """The training seeds all generators of the process; the caller's go on as if it had not."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
