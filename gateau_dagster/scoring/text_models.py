"""Score whole texts in padded batches: ratings of a reward model, sentence embeddings."""

# Why padding here, and packed rows for scoring: a reward model or an encoder may read a text from both sides. The
# packed attention is causal. A head takes one vector per row, too. Sorting by length keeps padding small, since texts
# of a group that share a batch are of similar length.
#
# What it costs: rows of a group leave when the whole group is done, so an interrupt loses up to `_BATCHES_SORTED`
# batches. A larger group would pad less and lose more.

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError, ShortOfMemoryError, UnscorableSampleError
from gateau_dagster.models.control_tokens import as_text
from gateau_dagster.models.flops import whole_text_flops
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.memory import TokenBudget, out_of_memory_reason, unless_out_of_memory
from gateau_dagster.models.packing import vocabulary
from gateau_dagster.scoring.sample_stream import rejected

if TYPE_CHECKING:
    from gateau_dagster.scoring.sample_table import Running
from gateau_dagster.models.model_config import Label, label_index

if TYPE_CHECKING:
    from gateau_dagster.scoring.sample_table import Row, Running


Vector = npt.NDArray[np.float64]
Batch = dict[str, Tensor]

_BATCHES_SORTED = 8  # batches filled from one group of samples, so that texts of similar length share a batch
_ADVICE = "give the model a smaller `window`, use dtype bfloat16, or a device with more memory"


@dataclass(frozen=True, kw_only=True)
class Text:
    """Token ids of a text, special tokens included, and the segment that each belongs to."""

    ids: tuple[int, ...]
    types: tuple[int, ...]
    truncated_tokens: int  # cut off at its end


@dataclass(frozen=True, kw_only=True)
class ReadText:
    """A sample's text and the model's output for it: float64 [n]."""

    sample: Sample
    text: Text
    vector: Vector


def read_texts(
    loaded: LoadedModel,
    samples: Iterable[Sample],
    running: "Running",
    *,
    as_pair: bool,
    vectors: Callable[[Batch], Tensor],
    alone: bool = False,
    of_response: bool = False,
    of_context: bool = False,
) -> Iterator[ReadText | Reject]:
    """Yield one outcome per sample, in order.

    Args:
        loaded: see loading.load_encoder; texts are cut to its window.
        samples: read some batches ahead of the outcomes.
        running: `scoring.batch_tokens` bounds a batch, padding included; it is halved if memory is full.
        as_pair: pass instruction and response as the tokenizer's two segments, not as one text with a newline between.
        vectors: one pass over a batch, [B, n]: `input_ids`, `attention_mask` and, if the tokenizer has them,
            `token_type_ids`, [B, T] each, padded on the right. A row's output must not depend on the others.
        alone: run one text per pass.
        of_response: reject texts whose response was truncated away entirely.
        of_context: see read_text; reject texts whose context was truncated away entirely.
    """
    budget = TokenBudget(loaded.model, running.scoring.batch_tokens)
    limit = min(running.max_length, loaded.window or running.max_length)
    passes = _TextPasses(loaded=loaded, running=running, budget=budget, vectors=vectors, alone=alone)
    group: list[tuple[Sample, Text | UnscorableSampleError]] = []
    tokens = 0
    for sample in samples:
        try:
            text = read_text(loaded, sample, limit=limit, as_pair=as_pair, of_context=of_context)
            # Only truncated texts are tokenised a second time.
            if (of_response or of_context) and not as_pair and text.truncated_tokens:
                _check_reads_more(loaded, sample, text, of_context=of_context)
            tokens += len(text.ids)
        except UnscorableSampleError as error:
            text = error
        group.append((sample, text))
        if tokens >= _BATCHES_SORTED * budget.tokens:
            yield from passes.outcomes(group)
            group, tokens = [], 0
    yield from passes.outcomes(group)


def read_text(loaded: LoadedModel, sample: Sample, *, limit: int, as_pair: bool, of_context: bool = False) -> Text:
    """Return the first `limit` tokens of a sample's instruction and response.

    Raise UnscorableSampleError without a response.

    With `as_pair` the longer of the two is cut. With `of_context` the context takes the response's place, after
    `Instruction: ` and the instruction, as in MDCure's program (`score_and_filter.py` of yale-nlp/MDCure).
    """
    if not (sample.context if of_context else sample.response).strip():
        raise UnscorableSampleError(f"the {'context' if of_context else 'response'} is empty")
    texts = [sample.instruction, sample.response]
    if of_context:
        texts = [f"Instruction: {sample.instruction}", sample.context]
    if not as_pair:
        texts = [("\n\n" if of_context else "\n").join(texts)]
    tokenizer: Any = as_text(loaded.tokenizer, *texts)
    try:
        # Tokenised whole first, for the number of tokens that are cut off. The tokenizer itself reports only what it
        # keeps.
        encoded = tokenizer(*texts, return_token_type_ids=True, verbose=False)
        length = len(encoded["input_ids"])
        if length > limit:
            encoded = tokenizer(*texts, return_token_type_ids=True, truncation=True, max_length=limit)
    except (UnicodeEncodeError, TypeError) as error:
        raise UnscorableSampleError(f"the text cannot be tokenised: {error}") from error
    ids = tuple(encoded["input_ids"])
    return Text(ids=ids, types=tuple(encoded["token_type_ids"]), truncated_tokens=length - len(ids))


def _check_reads_more(loaded: LoadedModel, sample: Sample, text: Text, *, of_context: bool) -> None:
    """Raise UnscorableSampleError if the remaining tokens are those of the instruction alone."""
    opening = f"Instruction: {sample.instruction}\n\n" if of_context else f"{sample.instruction}\n"
    tokenizer: Any = as_text(loaded.tokenizer, opening)
    alone = tokenizer(opening, truncation=True, max_length=len(text.ids), verbose=False)
    if tuple(alone["input_ids"]) == text.ids:
        unseen = "context" if of_context else "response"
        raise UnscorableSampleError(
            f"the instruction alone fills the {len(text.ids)} tokens that the model reads: it sees no {unseen}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _TextPasses:
    """Run groups of texts through a model."""

    loaded: LoadedModel
    running: "Running"
    budget: TokenBudget
    vectors: Callable[[Batch], Tensor]
    alone: bool

    def outcomes(self, group: Sequence[tuple[Sample, Text | UnscorableSampleError]]) -> Iterator[ReadText | Reject]:
        """Yield the outcomes of a group, in order."""
        texts = {place: text for place, (_, text) in enumerate(group) if isinstance(text, Text)}
        found: dict[int, Vector | UnscorableSampleError] = {}
        # The longest first: a batch that does not fit is met at once, and the bound is halved before the others are
        # filled.
        line = deque(sorted(texts, key=lambda place: len(texts[place].ids), reverse=True))
        while line:
            # As many as the budget allows if all are as long as the first, which is the longest.
            rows = 1 if self.alone else max(1, self.budget.tokens // len(texts[line[0]].ids))
            places = [line.popleft() for _ in range(min(rows, len(line)))]
            batch = [texts[place] for place in places]
            made = unless_out_of_memory(lambda batch=batch: self.vectors(padded(self.loaded, batch)))
            if made is not None:
                found |= zip(places, made.double().cpu().numpy(), strict=True)
                # Two FLOPs per weight outside the embeddings and token, and the attention of all tokens to all.
                lengths = np.array([len(text.ids) for text in batch], dtype=np.float64)
                config: Any = self.loaded.model.config.get_text_config()
                embedding = self.loaded.model.get_input_embeddings().weight.numel()  # pyright: ignore
                weights = sum(one.numel() for one in self.loaded.model.parameters()) - embedding
                flops = whole_text_flops(lengths, weights, config.num_hidden_layers, config.hidden_size)
                self.running.work.add(int(lengths.sum()), float(flops.sum()))
            elif len(places) > 1:
                self.budget.halve(len(places) * len(batch[0].ids))
                line.extendleft(reversed(places))
            else:
                # Of a batch of one, there is nothing to halve: the text itself is too long for this device.
                found[places[0]] = ShortOfMemoryError(out_of_memory_reason(len(batch[0].ids), _ADVICE))
        for place, (sample, text) in enumerate(group):
            yield _outcome(sample, text, found.get(place))


def padded(loaded: LoadedModel, texts: Sequence[Text]) -> Batch:
    """Return the input of a pass, [B, T] each, on the model's device; raise GateauError for a token unknown to the
    model.
    """
    width = max(len(text.ids) for text in texts)
    # RoBERTa counts positions by the model's own padding, decoders find the text's end with it.
    own = (getattr(loaded.model.config.get_text_config(), "pad_token_id", None), loaded.tokenizer.pad_token_id)
    padding = next((int(one) for one in own if one is not None), 0)  # pyright: ignore
    rows = {
        "input_ids": [text.ids + (padding,) * (width - len(text.ids)) for text in texts],
        "attention_mask": [(1,) * len(text.ids) + (0,) * (width - len(text.ids)) for text in texts],
    }
    taken = inspect.signature(loaded.model.forward).parameters
    # RoBERTa has the input, but one value for it.
    several = getattr(loaded.model.config, "type_vocab_size", 2) > 1
    if several and "token_type_ids" in taken and "token_type_ids" in loaded.tokenizer.model_input_names:
        rows["token_type_ids"] = [text.types + (0,) * (width - len(text.types)) for text in texts]
    largest, known = max(max(text.ids) for text in texts), vocabulary(loaded)
    if largest >= known:
        raise GateauError(
            "models.vocabulary",
            f"{loaded.name}: the tokenizer made token {largest}, but the model has {known}: use the tokenizer "
            "that belongs to the weights",
        )
    return {name: torch.tensor(values, device=loaded.device) for name, values in rows.items()}


def _outcome(
    sample: Sample, text: Text | UnscorableSampleError, found: Vector | UnscorableSampleError | None
) -> ReadText | Reject:
    failure = next((each for each in (text, found) if isinstance(each, UnscorableSampleError)), None)
    if failure is not None:
        return rejected(sample.sample_id, failure)
    assert isinstance(text, Text) and isinstance(found, np.ndarray)
    if not np.isfinite(found).all():
        return Reject(sample_id=sample.sample_id, reason="the model's output is not finite: try dtype float32")
    return ReadText(sample=sample, text=text, vector=found)


def quality_rows(
    loaded: LoadedModel,
    samples: "Iterable[Sample]",
    running: "Running",
    *,
    label: Label | None,
    as_pair: bool,
    text: Literal["response", "context"] = "response",
) -> "Iterator[Row | Reject]":
    """Yield a row (methods.car.QUALITY) or a reject for each sample, in order.

    The quality is the output of a head with one output. For a head with several it is the logarithm of `label`'s
    probability, because such an output has a meaning only relative to the others.

    Raises GateauError, before any sample is read, if the head has several outputs and `label` names none of them.
    """
    config: Any = loaded.model.config
    index = label_index(config.id2label, label, name=loaded.name)
    # A decoder's head reads the last token of each row, which it finds by the padding; without one it accepts one row.
    alone = getattr(config.get_text_config(), "pad_token_id", None) is None

    @torch.no_grad()
    def vectors(batch: Batch) -> Tensor:
        logits = loaded.model(**batch).logits.double()
        rates = logits if logits.shape[1] == 1 else logits.log_softmax(dim=1)
        return rates[:, index : index + 1]

    parts = {"as_pair": as_pair, "of_response": text == "response", "of_context": text == "context"}
    for read in read_texts(loaded, samples, running, vectors=vectors, alone=alone, **parts):
        if isinstance(read, Reject):
            yield read
        else:
            yield {
                "sample_id": read.sample.sample_id,
                "digest": read.sample.digest,
                "quality": float(read.vector[0]),
                "tokens": len(read.text.ids),
                "truncated_tokens": read.text.truncated_tokens,
            }


def embedding_rows(
    loaded: LoadedModel, samples: "Iterable[Sample]", running: "Running", *, weighted: bool = False
) -> "Iterator[Row | Reject]":
    """Yield a row (methods.car.EMBEDDING) or a reject for each sample, in order.

    With `weighted`, the i-th token of a text weighs i, as in RDS+ (Ivison et al. 2025), otherwise all weigh the same.
    """

    @torch.no_grad()
    def vectors(batch: Batch) -> Tensor:
        states, mask = loaded.model(**batch, return_dict=True).last_hidden_state, batch["attention_mask"]
        return mean_pooled(states, mask * mask.cumsum(dim=1) if weighted else mask)

    for read in read_texts(loaded, samples, running, as_pair=False, vectors=vectors):
        if isinstance(read, Reject):
            yield read
        else:
            yield {
                "sample_id": read.sample.sample_id,
                "digest": read.sample.digest,
                "embedding": read.vector.tolist(),
                "tokens": len(read.text.ids),
                "truncated_tokens": read.text.truncated_tokens,
            }


def mean_pooled(states: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of `states` [B, T, d] by the tokens' `weights` [B, T], scaled to length 1: float64 [B, d]."""
    shares = weights[..., None].double()
    mean = (states.double() * shares).sum(dim=1) / shares.sum(dim=1)
    return mean / mean.norm(dim=1, keepdim=True)
