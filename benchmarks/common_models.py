"""Make what the benchmarks score: random Llamas of any shape, a word tokenizer, samples of exact lengths."""

import argparse
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen3Config

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.prompt import Prompt, build_prompt
from gateau_dagster.models.shapes import model_shape
from gateau_dagster.scoring.segments import segment_prompts

_SPECIALS = ("<unk>", "<s>", "</s>", "###", "Input:", "Instruction:", "Response:")
_FRAME_TOKENS = 7  # <s> ### Input: ... ### Instruction: ... ### Response:
_LONGEST = 2**20


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a Llama."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class Qwen3Shape(Shape):
    """The sizes of a Qwen3, with an independent head size and an output layer that may be the embeddings."""

    head_dim: int
    tied: bool = True


SMALL = Shape(layers=4, hidden=256, heads=8, kv_heads=8, intermediate=688, vocabulary=32_000)
SEVEN_BILLION = Shape(layers=32, hidden=4096, heads=32, kv_heads=32, intermediate=11_008, vocabulary=32_000)
GROUPED = Shape(layers=32, hidden=4096, heads=32, kv_heads=8, intermediate=14_336, vocabulary=128_256)
TINY = Shape(layers=2, hidden=32, heads=4, kv_heads=2, intermediate=48, vocabulary=300)
FOUR_BILLION = Qwen3Shape(
    layers=36, hidden=2560, heads=32, kv_heads=8, head_dim=128, intermediate=9728, vocabulary=151_936
)
EIGHT_BILLION = Qwen3Shape(
    layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=12_288, vocabulary=151_936, tied=False
)
TINY_QWEN3 = Qwen3Shape(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=16, intermediate=48, vocabulary=300)


def build_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token per word: `<s>`, the words of the scoring prompt, then w7, w8, ..."""
    words = {word: index for index, word in enumerate(_SPECIALS)}
    words |= {f"w{index}": index for index in range(len(words), vocabulary)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    specials = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=_LONGEST, **specials)


def build_model(
    shape: Shape, *, name: str, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0
) -> LoadedModel:
    """Return a random Llama or Qwen3, made on the device itself: 7B parameters never pass through the host's memory.

    The weights are wide enough (1/sqrt(hidden)) for attention that differs from token to token, as a trained one's.
    """
    family, own = LlamaConfig, {}
    if isinstance(shape, Qwen3Shape):
        family, own = Qwen3Config, {"head_dim": shape.head_dim, "tie_word_embeddings": shape.tied}
    config = family(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=_LONGEST,
        initializer_range=shape.hidden**-0.5,
        bos_token_id=1,
        eos_token_id=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        **own,
    )
    torch.manual_seed(seed)
    place = torch.device(device)
    with place:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.eval().requires_grad_(False)
    tokenizer = build_tokenizer(shape.vocabulary)
    return LoadedModel(model=model, tokenizer=tokenizer, window=_LONGEST, device=model.device, name=name)


def copy_to(loaded: LoadedModel, shape: Shape, *, dtype: torch.dtype, device: str) -> LoadedModel:
    """Return the same weights in another dtype or on another device."""
    twin = build_model(shape, name=loaded.name, dtype=dtype, device=device)
    twin.model.load_state_dict(loaded.model.state_dict())
    return twin


def make_samples(
    vocabulary: int, count: int, *, tokens: int, response_tokens: int, instruction_tokens: int = 20, seed: int = 0
) -> list[Sample]:
    """Return random samples whose scoring prompt has exactly `tokens` tokens of `build_tokenizer(vocabulary)`."""
    context = tokens - _FRAME_TOKENS - instruction_tokens - response_tokens
    assert context > 0, f"{tokens} tokens have no room for a context"
    rng = random.Random(seed)

    def text(words: int) -> str:
        return " ".join(f"w{rng.randrange(len(_SPECIALS), vocabulary)}" for _ in range(words))

    return [
        Sample(
            sample_id=f"s{index:04d}",
            source="random",
            context=text(context),
            instruction=text(instruction_tokens),
            response=text(response_tokens),
        )
        for index in range(count)
    ]


def prompt_of(loaded: LoadedModel, sample: Sample) -> Prompt:
    """Return the whole prompt, without truncation."""
    return build_prompt(loaded.tokenizer, sample, max_length=_LONGEST)


def scoring_config(*, device: str, dtype: str, tokens: int, segment_length: int, batch_tokens: int) -> ScoringConfig:
    """Return the settings of a run of the pipeline on these samples."""
    values = {"device": device, "dtype": dtype, "max_length": max(16, tokens), "segment_length": segment_length}
    return ScoringConfig.model_validate(values | {"batch_tokens": batch_tokens})


def segment_batches(prompt: Prompt, *, segment_length: int, batch_tokens: int) -> Iterator[list[Prompt]]:
    """Yield the segment prompts of a sample, longest first, in batches of at most `batch_tokens` tokens."""
    batch: list[Prompt] = []
    held = 0
    for segment in sorted(segment_prompts(prompt, segment_length), key=lambda each: -each.length):
        if batch and held + segment.length > batch_tokens:
            yield batch
            batch, held = [], 0
        batch.append(segment)
        held += segment.length
    if batch:
        yield batch


def pass_flops(loaded: LoadedModel, prompts: list[Prompt], *, attention_rows: bool = False) -> float:
    """Return the FLOPs of reading these prompts, each attending to itself, with the output layer over the responses.

    The last layer counts as far as it is computed: for the rows that predict the responses.
    """
    shape = model_shape(loaded.model.config)
    lengths, rows = (
        np.array(each, dtype=np.float64)
        for each in ([prompt.length for prompt in prompts], [len(prompt.response) for prompt in prompts])
    )
    total = float(shape.pass_flops(lengths, rows).sum()) + shape.head_flops(float(rows.sum()))
    if attention_rows:
        total += sum(shape.attention_row_flops(len(prompt.response), prompt.length) for prompt in prompts)
    return total


def add_shape_options(parser: argparse.ArgumentParser) -> None:
    """Add one option for each size of the model."""
    group = parser.add_argument_group("the models", "randomly initialised Llamas; speed does not depend on the weights")
    for name, value in asdict(SMALL).items():
        group.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=" ")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides which models run, where and how."""
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    add_shape_options(parser)


def shape_of(arguments: argparse.Namespace) -> Shape:
    """Return the shape in the options."""
    return replace(SMALL, **{name: getattr(arguments, name) for name in asdict(SMALL)})
