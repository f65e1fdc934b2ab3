"""What one tiny model can do here, each answer against transformers' own plain pass."""

from typing import Any

import numpy as np
import torch
from architectures_tiny import loaded, tiny_model
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from gateau_dagster.errors import GateauError
from gateau_dagster.models.context_attention import attention_unseen, context_attention
from gateau_dagster.models.flops import ModelShape
from gateau_dagster.models.forward import response_nll
from gateau_dagster.models.known_attention import attention_layers_of
from gateau_dagster.models.packing import packs_documents
from gateau_dagster.models.prompt import Prompt
from gateau_dagster.models.training_attention import attend_within_documents
from gateau_dagster.training.response_loss import use_chunked_loss

TOLERANCE = 1e-4
"""Largest difference of an NLL in nats, of attention as a part of the largest weight, and of a loss."""
_SHAPES = ((1, 40, 6, 9), (1, 0, 5, 3), (2, 40, 6, 9), (1, 71, 2, 14))  # tokens of prefix, context, suffix, response
_IDS = 390

Answer = dict[str, Any]


def check(kind: str) -> Answer:
    """One row of the table: `class`, then for each check "yes", "no" or another word; `why` for what fails."""
    row: Answer = {"kind": kind, "why": []}
    try:
        model = tiny_model(kind)
        _plain_nll(model.eval(), _ids(24, 1), 8)  # what transformers' own pass does not do, nobody can
    except Exception as error:
        return row | {"built": "no", "why": [_short(error)]}
    row |= {"built": "yes", "class": type(model).__name__}
    for name, ask in {
        "scores": _scores,
        "attention": _attention,
        "packed": _trains_packed,
        "skips": _trains_with_skips,
        "work": _work,
    }.items():
        try:
            row[name] = ask(model if name in {"scores", "attention", "work"} else tiny_model(kind).train(), kind)
        except GateauError as error:
            row[name] = "no"
            row["why"].append(f"{name}: {_short(error)}")
        except Exception as error:
            row[name] = "bare"
            row["why"].append(f"{name}: {type(error).__name__}: {_short(error)}")
    return row


def _short(error: Exception) -> str:
    """One line; of a refusal to train, only the reason."""
    if isinstance(error, KeyError):
        return f"KeyError: {error}"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[-1 if "validation" in lines[0].lower() else 0].strip()
    return line.split("nor with skipped positions: ")[-1].split(". Set training.")[0][:200]


def _ids(count: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(5, _IDS, (count,), generator=generator).tolist())


def _prompts() -> list[Prompt]:
    names = ("prefix", "context", "suffix", "response")
    prompts = []
    for number, shape in enumerate(_SHAPES):
        texts: Any = {
            name: _ids(count, 10 * number + place) for place, (name, count) in enumerate(zip(names, shape, strict=True))
        }
        prompts.append(Prompt(**texts))
    return prompts


def _plain_nll(model: PreTrainedModel, ids: tuple[int, ...], first: int) -> Tensor:
    """-log P of the tokens from `first` on, by the model's own forward pass over all of them: float64."""
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
    return cross_entropy(logits[first - 1 : -1], torch.tensor(ids[first:]), reduction="none")


def _close(got: Tensor, want: Tensor, what: str) -> None:
    difference = float((got.double() - want.double()).abs().max())
    if not difference <= TOLERANCE:
        raise GateauError("models.architecture", f"{what} differs by {difference:.1e}")


@torch.no_grad()
def _scores(model: PreTrainedModel, kind: str) -> str:
    """Packed = alone = plain; "packed", or "one at a time" where documents are not packed."""
    del kind
    one, prompts = loaded(model), _prompts()
    packed = response_nll(one, prompts)
    alone = torch.cat([response_nll(one, [prompt]) for prompt in prompts])
    plain = torch.cat([_plain_nll(model, prompt.ids, prompt.response_span[0]) for prompt in prompts])
    last = prompts[0]
    early = _plain_nll(model, last.ids[:-4], last.response_span[0])
    _close(
        early, _plain_nll(model, last.ids, last.response_span[0])[:-4], "a token with what follows it: no causal model;"
    )
    _close(packed, plain, "packed against plain")
    _close(alone, plain, "alone against plain")
    return "packed" if packs_documents(one) else "one at a time"


@torch.no_grad()
def _attention(model: PreTrainedModel, kind: str) -> str:
    """Seen, and equal to whole matrices where the model gives them."""
    one, prompt = loaded(model), _prompts()[0]
    reason = attention_unseen(one)
    if reason is not None:
        raise GateauError("models.architecture", reason)
    got = context_attention(one, prompt).attention
    layers = (
        f"{attention_layers_of(model.config)} of {model.config.get_text_config(decoder=True).num_hidden_layers} layers"
    )
    want = _eager(kind, prompt)
    if want is None:
        return layers
    _close(got / want.max(), want / want.max(), "attention against whole matrices")
    return layers


def _eager(kind: str, prompt: Prompt) -> Tensor | None:
    """a_t of Eq. 4 from the model's own matrices; None where it gives none."""
    model = tiny_model(kind).eval()
    try:
        model.set_attn_implementation("eager")
        found = model(input_ids=torch.tensor([prompt.ids]), output_attentions=True, use_cache=False).attentions
    except Exception:  # its own code does not give them
        return None
    matrices = [each[0] for each in found or () if isinstance(each, Tensor) and each.ndim == 4]
    if len(matrices) != attention_layers_of(model.config):
        return None
    if any(name.endswith("sinks") for name, _ in model.named_parameters()) and _whole(matrices[0]):
        return None  # what the sinks take is taken off the output (Granite): these are not the weights that count
    rows, columns = slice(*prompt.response_span), slice(*prompt.context_span)
    return torch.stack([each[:, rows, columns].double().mean(dim=(0, 1)) for each in matrices]).mean(dim=0)


def _whole(matrix: Tensor) -> bool:
    """Whether the rows add up to 1."""
    return bool((matrix.sum(-1) - 1).abs().max() < 1e-3)


def _trains_packed(model: PreTrainedModel, kind: str) -> str:
    return _trains(model, kind, skips=False)


def _trains_with_skips(model: PreTrainedModel, kind: str) -> str:
    return _trains(model, kind, skips=True)


def _trains(model: PreTrainedModel, kind: str, *, skips: bool) -> str:
    """Loss of two documents in one row equals that of each by the plain model, and every gradient is finite."""
    attend_within_documents(model)
    chunked = "yes"
    try:
        use_chunked_loss(model)
    except GateauError:
        chunked = "with chunked_loss: false"
    documents = [_ids(23, 1), _ids(37, 2)]
    steps = [np.where(np.arange(len(one)) % 7 == 6, 12, 1) if skips else np.ones(len(one), int) for one in documents]
    positions = [torch.tensor(each.cumsum() - each[0]) for each in steps]
    borders = torch.tensor([0, 23, 60], dtype=torch.int32)
    ids = torch.tensor([sum(documents, ())])
    labels = ids.clone()
    labels[0, [0, 23]] = -100
    row = {"input_ids": ids, "position_ids": torch.cat(positions)[None], "labels": labels}
    loss = model(**row, cu_seq_lens_q=borders, cu_seq_lens_k=borders, max_length_q=37, max_length_k=37).loss
    loss.backward()
    plain, total = tiny_model(kind).eval(), torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for document, places in zip(documents, positions, strict=True):
            given = torch.tensor([document])
            mask = torch.ones_like(given)
            where = {"position_ids": places[None]} if skips else {}  # without skips: where the model itself puts them
            logits = plain(input_ids=given, attention_mask=mask, use_cache=False, **where).logits[0]
            total += cross_entropy(logits[:-1].double(), given[0, 1:], reduction="sum")
    _close(loss.detach(), total / 58, "the loss of documents in a row against each alone")
    if not all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None):
        raise GateauError("models.architecture", "a gradient is not finite")
    return chunked


def _work(model: PreTrainedModel, kind: str) -> str:
    del kind
    shape = ModelShape.of(model.config)
    return "by layer" if shape.each else "by configuration"
