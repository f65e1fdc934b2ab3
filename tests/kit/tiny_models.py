"""Tiny models of many kinds, a tokenizer trained on the spot, ragged samples of English-like text."""

import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertTokenizer,
    PreTrainedTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from gateau_dagster.config import ModelConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.loading import EncoderTask, load_encoder

_TEXT = """
the of and to in a is that it was for on are with as they at be this from have or by one had not but what all
were when we there can an your which their said if do will each about how up out them then she many some these
so would other into has more two her like him see time could no make than first been its who now people my
made over did down only way find use may water long little very after words called just where most know
harbour lighthouse ledger merchant naïve café winter granite engine signal treaty parliament molecule orbit
archive
"""
_WORDS = _TEXT.split()
_LICENCE = (Path(__file__).parents[2] / "LICENSE").read_text()
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def text(seed: int, words: int) -> str:
    """Sentences and paragraphs; the same for the same seed."""
    rng = random.Random(seed)
    parts = []
    while words > 0:
        count = min(words, rng.randint(4, 14))
        sentence = " ".join(rng.choice(_WORDS) for _ in range(count))
        parts.append(sentence.capitalize() + rng.choice([". ", ".\n", "? ", ", 17; ", ".\n\n"]))
        words -= count
    return "".join(parts).strip()


@cache
def tokenizer(bos: bool = True, chat: bool = True) -> PreTrainedTokenizerFast:
    """Byte-level BPE with 400 tokens."""
    specials = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(  # pyright: ignore
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([text(seed, 300) for seed in range(4)], trainer)
    options: dict[str, Any] = {"bos_token": "<s>"} if bos else {}
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", **options)
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


class SlowTokenizer(PreTrainedTokenizer):
    """A tokenizer in Python, without offsets, with the vocabulary and the tokens of a fast one."""

    def __init__(self, fast: PreTrainedTokenizerFast) -> None:
        self._fast = fast.backend_tokenizer
        names = ("bos_token", "eos_token", "unk_token")
        super().__init__(**{name: getattr(fast, name) for name in names if getattr(fast, name)})
        added: Any = [*fast.added_tokens_decoder.values()]
        self.add_tokens([token for token in added if token.special], special_tokens=True)
        self.add_tokens([token for token in added if not token.special])
        self.chat_template = fast.chat_template

    @property
    def vocab_size(self) -> int:
        return self._fast.get_vocab_size()

    def get_vocab(self) -> dict[str, int]:
        return self._fast.get_vocab()

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        parts = [part for part, _ in self._fast.pre_tokenizer.pre_tokenize_str(text)]  # pyright: ignore
        return [token.value for part in parts for token in self._fast.model.tokenize(part)]

    def _convert_token_to_id(self, token: str) -> int | None:
        return self._fast.token_to_id(token)

    def _convert_id_to_token(self, index: int) -> str | None:
        return self._fast.id_to_token(index)


_SPECIFIC: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 150},
    "gemma3_text": {
        "query_pre_attn_scalar": 1,
        "sliding_window": 150,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma2": {"sliding_window": 48, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    "granite": {"logits_scaling": 3.0, "attention_multiplier": 0.3},
    "cohere": {"logit_scale": 0.2},
    "gpt_oss": {"sliding_window": 48, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16},
    "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "gpt2": {"n_positions": 2048},
    "mamba": {"num_hidden_layers": 2, "state_size": 4},
}
_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "initializer_range": 0.15,
    "vocab_size": 400,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def model_config(kind: str, **changes: Any) -> Any:
    """Configuration of a model with two layers; four heads share two key-value heads where the kind can."""
    shape = dict(_SHAPE)
    if kind in {"gpt2", "mamba", "bloom", "mpt"}:
        shape = {key: _SHAPE[key] for key in ("hidden_size", "initializer_range", "vocab_size", "bos_token_id")}
        shape |= {"eos_token_id": 1, "pad_token_id": None}
    if kind == "gpt2":
        shape |= {"n_layer": 2, "n_head": 4}
    if kind == "bloom":
        shape |= {"n_layer": 2, "n_head": 4}
    if kind == "mpt":
        shape = {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 400}
    options: dict[str, Any] = shape | _SPECIFIC.get(kind, {}) | changes
    return CONFIG_MAPPING[kind](**options)


def replace_model(folder: Path, kind: str, *, seed: int, window: int, **changes: Any) -> None:
    """A random model of this kind in the place of the one in a folder, over the same vocabulary."""
    known = AutoTokenizer.from_pretrained(folder)
    shutil.rmtree(folder)
    torch.manual_seed(seed)
    config = model_config(kind, **changes, vocab_size=len(known), max_position_embeddings=window)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    known.save_pretrained(folder)


def loaded_model(
    kind: str, *, dtype: torch.dtype = torch.float32, bos: bool = True, seed: int = 0, **changes: Any
) -> LoadedModel:
    """A random model of this kind, as load_model would return it."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(model_config(kind, **changes), dtype=dtype).eval()
    model.requires_grad_(False)
    if dtype == torch.float64 and hasattr(model.config, "num_local_experts"):
        model.set_experts_implementation("eager")  # on some processors the grouped product has no float64
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return LoadedModel(
        model=model, tokenizer=tokenizer(bos=bos), window=2048, device=torch.device("cpu"), name=f"tiny-{kind}"
    )


def samples() -> list[Sample]:
    """Ragged contexts (one without, one shorter than a segment) and responses."""
    shapes = [(120, 8, 30), (0, 6, 9), (5, 12, 1), (260, 3, 55), (77, 20, 17)]
    return [
        Sample(
            sample_id=f"s{index}",
            source="test",
            context=text(100 + index, context),
            instruction=text(200 + index, instruction),
            response=text(300 + index, response),
        )
        for index, (context, instruction, response) in enumerate(shapes)
    ]


def passages() -> list[Sample]:
    """Real prose: ragged pieces of the licence, each with a question about it and a passage of it as the answer."""
    pieces = [(0, 1500, 180), (3000, 3600, 95), (5000, 5060, 40), (7000, 8200, 200)]
    return [
        Sample(
            sample_id=f"licence-{start}",
            source="licence",
            context=_LICENCE[start:end],
            instruction="What does this part of the licence say?",
            response=_LICENCE[end : end + length].strip(),
        )
        for start, end, length in pieces
    ]


_BERT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 400,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


def bert_tokenizer() -> PreTrainedTokenizerBase:
    """Word pieces with [CLS] and [SEP], which knows segments."""
    words = sorted({word.lower() for word in text(1, 3000).split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words][:400]
    return BertTokenizer(vocab={word: number for number, word in enumerate(vocabulary)})


def save_encoder(folder: Path, kind: str, task: EncoderTask, *, labels: int = 1, **changes: Any) -> Path:
    """A random model of this kind, `bert`, `roberta` or `llama`, in a new folder."""
    torch.manual_seed(3)
    if kind == "llama":
        config = model_config("llama", **{"pad_token_id": 1, "num_labels": labels, **changes})
    else:
        config = CONFIG_MAPPING[kind](**{**_BERT, "num_labels": labels, **changes})
    auto = AutoModelForSequenceClassification if task == "reward" else AutoModel
    auto.from_config(config).save_pretrained(folder)
    (bert_tokenizer() if kind == "bert" else tokenizer()).save_pretrained(folder)
    return folder


def encoder(folder: Path, task: EncoderTask, **changes: Any) -> LoadedModel:
    """The model of a folder on the CPU in float32."""
    model = ModelConfig(path=str(folder), task=task, **changes)
    return load_encoder(model, task=task, dtype="float32", device="cpu", folder=Path())


def exact_encoder(folder: Path, kind: str, task: EncoderTask, **changes: Any) -> tuple[LoadedModel, float]:
    """A model whose numbers do not hang on the shape of a batch, and how close they are to be.

    In float64, but Llama's norms stay in float32.
    """
    loaded = encoder(save_encoder(folder, kind, task), task, **changes)
    if kind == "llama":
        return loaded, 1e-5
    loaded.model.double()
    return loaded, 1e-10


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self.elements = max(self.elements, item.numel())
        return result
