"""Builds a small homologous pair from the documents of your own samples: OUT/short is theta_A, OUT/long is theta_B.

    .venv/bin/python examples/real/build_pair.py --data data/long.jsonl.gz --out build/example-real/pair

theta_A is a Llama with a window of 1,024 tokens, trained from nothing on short stretches of the documents. theta_B is
theta_A with a larger base of its rotary embedding, trained on to read 4,096 tokens. Instructions and responses are not
trained on. A pair that is there for the same data and settings is left alone.
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from text_rows import BOS, EOS, Stage, encode_documents, train_tokenizer
from torch.nn import functional
from training_display import TrainingDisplay
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from gateau_dagster.config import LongSftConfig
from gateau_dagster.data.index import build_index, read_shards
from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError

VOCABULARY, HIDDEN, LAYERS = 4096, 128, 4
STEPS_SHORT, STEPS_LONG = 160, 40
SHORT_WINDOW, LONG_WINDOW = 1024, 4096
SHORT_THETA, LONG_THETA = 1e4, 1e6
SHORT_RATE, LONG_RATE = 4e-3, 2e-3
# 4,096 tokens per step. Short rows are cheap, and what they teach carries over.
SHORT_SHAPES = ((16, 256), (8, 512), (4, 1024))
LONG_SHAPES = ((1, 4096), (2, 2048), (1, 4096), (8, 512))
MOST_CHARACTERS = 20_000_000  # of documents read: enough for a model of this size, whatever the data's
WARM_UP_STEPS = 10
RECIPE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings that decide the pair's weights, besides the documents."""

    steps_short: int = STEPS_SHORT
    steps_long: int = STEPS_LONG
    vocabulary: int = VOCABULARY
    hidden: int = HIDDEN
    layers: int = LAYERS
    seed: int = 0
    version: int = RECIPE_VERSION


def documents(path: str) -> list[str]:
    """The contexts of the usable samples, by sample id, up to MOST_CHARACTERS; raises GateauError if there is none."""
    config, folder = LongSftConfig(path=path, shards=1), Path.cwd()
    index = build_index(config, folder)
    ((_, raw, _),) = read_shards(config, index, [0])
    texts: list[str] = []
    total = 0
    for text in raw["context"]:
        if total >= MOST_CHARACTERS:
            break
        if text:
            texts.append(text)
            total += len(text)
    if not texts:
        raise GateauError("training.no_text", f"{path}: no sample has a context, so there is no text to learn from")
    return texts


def model_config(tokenizer: PreTrainedTokenizerFast, recipe: Recipe, *, window: int, theta: float) -> LlamaConfig:
    """A Llama with heads of 32 dimensions and tied embeddings."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=2 * recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=max(1, recipe.hidden // 32),
        num_key_value_heads=max(1, recipe.hidden // 32),
        max_position_embeddings=window,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.backend_tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.backend_tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.backend_tokenizer.token_to_id(EOS),
        use_cache=False,
        dtype="float32",
    )


def rate_factor(step: int, steps: int) -> float:
    """A linear rise over the first steps, and a linear fall to 0.1 over the last 40 %."""
    rise = min(1.0, (step + 1) / WARM_UP_STEPS)
    start = 0.6 * steps
    return rise if step <= start else rise * (1.0 - 0.9 * (step - start) / (steps - start))


def train(
    model: LlamaForCausalLM,
    stage: Stage,
    ids: np.ndarray,
    *,
    rate: float,
    rng: np.random.Generator,
    after_step: Callable[[int, float], None],
) -> None:
    """AdamW (0.9, 0.98), gradients clipped to norm 1; changes `model`. `after_step` gets a batch's tokens and loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, stage.steps))
    model.train()
    for step in range(stage.steps):
        batch = torch.from_numpy(stage.batch(step, ids, rng))
        logits = model(input_ids=batch).logits[:, :-1]
        loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        after_step(batch.numel(), loss.item())
    model.eval()


def save(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: dict[str, object]) -> None:
    """Write a Hugging Face folder with its recipe; it appears complete or not at all, and replaces an older one."""
    # Writing calls DeepSpeed, which says that it found no GPU; the bar would be of one small file.
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator" not in record.getMessage())
    disable_progress_bar()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        made, replaced = Path(name) / "made", Path(name) / "replaced"
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        (made / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
        if folder.exists():
            folder.rename(replaced)
        made.rename(folder)


def is_current(folder: Path, recipe: dict[str, object]) -> bool:
    """Return whether `folder` holds the model of this recipe."""
    file = folder / "recipe.json"
    return file.is_file() and json.loads(file.read_text(encoding="utf-8")) == recipe


def build_pair(data: str, out: Path, recipe: Recipe, console: Console) -> bool:
    """Builds what is missing of `out`/short and `out`/long; returns whether anything was.

    Raises GateauError when the data cannot be read.
    """
    texts = documents(data)
    recipes = wanted_recipes(recipe, texts)
    if all(is_current(out / name, wanted) for name, wanted in recipes.items()):
        console.print(f"The pair in {out} is up to date: nothing to train.")
        return False
    kept = is_current(out / "short", recipes["short"])
    if kept:
        console.print("theta_A is there already: only theta_B is trained.")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(out / "short")
    else:
        tokenizer = train_tokenizer(texts, recipe.vocabulary, SHORT_WINDOW)
    ids = encode_documents(tokenizer, texts)
    console.print(f"{len(texts)} documents, {len(ids):,} tokens of a byte-level BPE vocabulary of {len(tokenizer):,}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        if kept:
            short = LlamaForCausalLM.from_pretrained(out / "short", dtype=torch.float32)
        else:
            short = LlamaForCausalLM(model_config(tokenizer, recipe, window=SHORT_WINDOW, theta=SHORT_THETA))
            stage = Stage(name="theta_A", steps=recipe.steps_short, shapes=SHORT_SHAPES)
            run_stage(short, stage, ids, rate=SHORT_RATE, seed=recipe.seed, console=console)
            save(out / "short", short, tokenizer, recipes["short"])
        long = LlamaForCausalLM(model_config(tokenizer, recipe, window=LONG_WINDOW, theta=LONG_THETA))
        long.load_state_dict(short.state_dict())
        stage = Stage(name="theta_B", steps=recipe.steps_long, shapes=LONG_SHAPES)
        run_stage(long, stage, ids, rate=LONG_RATE, seed=recipe.seed + 1, console=console)
        tokenizer.model_max_length = LONG_WINDOW
        save(out / "long", long, tokenizer, recipes["long"])
    return True


def wanted_recipes(recipe: Recipe, texts: list[str]) -> dict[str, dict[str, object]]:
    """Return the settings of each model. theta_A does not depend on how long theta_B is trained."""
    digest = text_digest(texts)
    return {
        "short": {**asdict(recipe), "steps_long": None, "documents": digest},
        "long": {**asdict(recipe), "documents": digest},
    }


def run_stage(
    model: LlamaForCausalLM, stage: Stage, ids: np.ndarray, *, rate: float, seed: int, console: Console
) -> None:
    """Trains one model with a progress bar, or a line every 15 seconds where the console is no terminal."""
    with TrainingDisplay(console, stage) as shown:
        train(model, stage, ids, rate=rate, rng=np.random.default_rng(seed), after_step=shown.after_step)


def main() -> None:
    """Parse, announce, build."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="long samples, in any form that long_sft.path takes")
    parser.add_argument("--out", type=Path, default=Path("build/example-real/pair"))
    parser.add_argument("--steps-short", type=int, default=STEPS_SHORT, help="of theta_A (%(default)s)")
    parser.add_argument("--steps-long", type=int, default=STEPS_LONG, help="of theta_B (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="tokens, at most (%(default)s)")
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="width, a multiple of 32 (%(default)s)")
    parser.add_argument("--layers", type=int, default=LAYERS, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    data, out = options.pop("data"), options.pop("out")
    try:
        build_pair(data, out, Recipe(**options), Console(highlight=False, soft_wrap=True))
    except GateauError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
