"""The engine in this process: left-padded batches of similar length, halved if they do not fit into memory."""

# What it is for: a model that is on this machine, without another program. It answers in batches, and a batch ends with
# its longest answer. Rows that have ended wait for it. A server (`evaluation.engine`) may fill such places at once, and
# then suits many or long answers.
#
# Batches depend on all questions, not only on unanswered ones. A batch changes rounding, so an interrupted run could
# otherwise give other answers than an undisturbed one.

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.features.evaluation.benchmark import Generation
from gateau_dagster.features.evaluation.generation.answering import Answer, AskedTurn, Note, Outcome, unwatched
from gateau_dagster.features.evaluation.generation.prompts import PromptBuilder, Shown, turn_endings
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.memory import is_out_of_memory
from gateau_dagster.models.model_config import learned_positions
from gateau_dagster.models.packing import token_ids, vocabulary
from gateau_dagster.models.probe import ROUNDING
from gateau_dagster.readable import plural

_PROBE = 6  # unit of the probe's prompt lengths, in tokens


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A prompt, the generation settings of its answer, and the seed of its draws."""

    ids: Sequence[int]
    generation: Generation
    draws: str


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A model's answer.

    `tokens`: generated tokens, including the ending one. ended: whether a token or a stop ended it, not the limit.
    """

    text: str
    tokens: int
    ended: bool


@torch.no_grad()
def decode(
    loaded: LoadedModel,
    wanted: Sequence[GenerationRequest],
    endings: frozenset[int],
    said: Callable[[int], None] | None = None,
) -> list[Decoded]:
    """Return the answers to these prompts as one left-padded batch; each is the same as in a separate pass.

    Args:
        endings: token ids that end an answer, beside those of the model's own generation_config.
        said: called after each token with the number of tokens generated so far.
    """
    ends = endings | _own_endings(loaded.model)
    ids, mask = _padded(loaded, [each.ids for each in wanted])
    ending = _Endings(loaded.tokenizer, ids.shape[1], [each.generation for each in wanted], loaded.device, said)
    config = _plain(ends, max_new_tokens=max(each.generation.max_new_tokens for each in wanted))
    with _no_defaults(loaded.model):
        out: Any = loaded.model.generate(  # pyright: ignore[reportCallIssue]
            input_ids=ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=[_Draws(wanted, loaded.device)],
            stopping_criteria=[ending],
        )
    rows = out[:, ids.shape[1] :].tolist()
    return [
        _decoded(loaded.tokenizer, row[: ending.lengths.get(place)], each.generation, ends)
        for place, (row, each) in enumerate(zip(rows, wanted, strict=True))
    ]


def _decoded(
    tokenizer: PreTrainedTokenizerBase, row: Sequence[int], generation: Generation, ends: frozenset[int]
) -> Decoded:
    said = list(row[: generation.max_new_tokens])
    place = next((place for place, token in enumerate(said) if token in ends), None)
    text = _text(tokenizer, said if place is None else said[:place])
    stops = [text.find(stop) for stop in generation.stop if stop in text]
    tokens = len(said) if place is None else place + 1
    return Decoded(text=text[: min(stops)] if stops else text, tokens=tokens, ended=bool(stops) or place is not None)


def _text(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True))


def _own_endings(model: PreTrainedModel) -> frozenset[int]:
    own: Any = getattr(model.generation_config, "eos_token_id", None)
    return frozenset([own] if isinstance(own, int) else own or [])


def _plain(ends: frozenset[int], **options: Any) -> GenerationConfig:
    # Padding is masked, so any token serves for it.
    eos = sorted(ends)
    return GenerationConfig(
        do_sample=False, num_beams=1, eos_token_id=eos or None, pad_token_id=(eos or [0])[0], **options
    )


@contextmanager
def _no_defaults(model: PreTrainedModel) -> Iterator[None]:
    """Disable the checkpoint's own defaults, such as a temperature or a repetition penalty."""
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


def _padded(loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids and attention mask [n, longest], the prompts at the right.

    Raises GateauError for a token that the model does not know.
    """
    longest = max(len(prompt) for prompt in prompts)
    token_ids(loaded, [max(token for prompt in prompts for token in prompt)])
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids.to(loaded.device), mask.to(loaded.device)


class _Draws(LogitsProcessor):
    """Keep only the drawn token of each sampled row; leave the other rows unchanged.

    Each row has its own generator. A uniform number per token is looked up in the cumulated probabilities of the
    tokens, in order of probability, without those beyond `top_p`.
    """

    def __init__(self, wanted: Sequence[GenerationRequest], device: torch.device) -> None:
        sampled = [(row, each) for row, each in enumerate(wanted) if each.generation.temperature > 0]
        self._rows = [row for row, _ in sampled]
        # A generator for each row: with torch's common one, an answer would depend on the other rows of its batch.
        self._sources = [random.Random(each.draws) for _, each in sampled]
        self._temperature = _column([each.generation.temperature for _, each in sampled], device)
        self._top_p = _column([each.generation.top_p for _, each in sampled], device)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del input_ids
        if not self._rows:
            return scores
        chances = torch.softmax(scores[self._rows].double() / self._temperature, dim=-1)
        ordered, tokens = chances.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        kept = torch.where(before < self._top_p, ordered, 0.0).cumsum(-1)
        draw = _column([source.random() for source in self._sources], scores.device) * kept[:, -1:]
        places = torch.searchsorted(kept, draw, right=True).clamp(max=kept.shape[-1] - 1)
        drawn = tokens.gather(-1, places)
        scores = scores.clone()
        scores[self._rows] = torch.full_like(scores[self._rows], -torch.inf).scatter(-1, drawn, 0.0)
        return scores


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)[:, None]


class _Endings(StoppingCriteria):
    """End a row at its own length and stops. lengths: the tokens of rows that a stop has ended."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        width: int,
        generations: Sequence[Generation],
        device: torch.device,
        said: Callable[[int], None] | None,
    ) -> None:
        self._tokenizer, self._width, self._said = tokenizer, width, said
        self._limits = torch.tensor([each.max_new_tokens for each in generations], device=device)
        self._stops: Mapping[int, tuple[str, ...]] = {
            row: each.stop for row, each in enumerate(generations) if each.stop
        }
        self.lengths: dict[int, int] = {}

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del scores, kwargs
        said = input_ids[:, self._width :]
        if self._said is not None:
            self._said(said.shape[1])
        ended = self._limits <= said.shape[1]
        for row, stops in self._stops.items():
            if row not in self.lengths:
                # The whole answer, since a stop may span tokens, and a token may be a part of a letter. That is
                # quadratic in the length, but only for rows with stops.
                text = _text(self._tokenizer, said[row].tolist())
                if any(stop in text for stop in stops):
                    self.lengths[row] = said.shape[1]
            ended[row] |= row in self.lengths
        return ended


_padding: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def pads_left(loaded: LoadedModel) -> bool:
    """Return whether a padded prompt gives the same answer as one without padding; probed once per loaded model.

    It does not if a layer carries a state from token to token, and so through the padding. Such a model answers one
    question at a time.
    """
    if loaded.model not in _padding:
        _padding[loaded.model] = _probe(loaded)
    return _padding[loaded.model]


@torch.no_grad()
def _probe(loaded: LoadedModel) -> bool:
    """Return whether two tokens' logits are the same; the second is read from a cache that contains the padding."""
    size = min(vocabulary(loaded), 3 * _PROBE) // 3
    short, long = range(size), range(size, 3 * size)
    try:
        alone, beside = (_logits(loaded, prompts) for prompts in ([short], [short, long]))
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise  # this does not depend on the model
        return False
    return bool(((alone - beside).norm(dim=-1) <= ROUNDING[loaded.model.dtype] * alone.norm(dim=-1)).all())


def _logits(loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Return the logits of the first prompt's answer, whose tokens are fixed: float32 [2, vocabulary]."""
    ids, mask = _padded(loaded, prompts)
    config = _plain(frozenset(), max_new_tokens=2, output_logits=True, return_dict_in_generate=True)
    with _no_defaults(loaded.model):
        out: Any = loaded.model.generate(  # pyright: ignore[reportCallIssue]
            input_ids=ids, attention_mask=mask, generation_config=config, logits_processor=[_given_token]
        )
    return torch.stack([logits[0].float() for logits in out.logits])


def _given_token(input_ids: Tensor, scores: Tensor) -> Tensor:
    """Force token 0, so that two passes that differ by rounding do not diverge."""
    del input_ids
    given = torch.full_like(scores, -torch.inf)
    given[:, 0] = 0.0
    return given


class InProcess:
    """Answers with a loaded model.

    Args:
        batch_tokens: most tokens of a batch of several prompts, padding and answers included.
    """

    def __init__(self, loaded: LoadedModel, prompts: PromptBuilder, *, batch_tokens: int) -> None:
        self._loaded, self._prompts = loaded, prompts
        self._batch_tokens = batch_tokens
        self._fitting = batch_tokens  # shrinks where memory runs out
        self._endings = turn_endings(loaded.tokenizer)

    def answers(
        self, asked: Sequence[AskedTurn], missing: Collection[str], note: Note = unwatched
    ) -> Iterator[Sequence[Outcome]]:
        """Implement Engine.answers. Batches depend on all questions, so that a killed run resumes with the same."""
        rejected: dict[str, Reject] = {}
        sizes: list[tuple[int, int]] = []
        for number, each in enumerate(asked, start=1):
            note(f"question {number:,} of {len(asked):,} into tokens")
            try:
                sizes.append((len(self._shown(each).ids), each.question.generation.max_new_tokens))
            except UnscorableSampleError as error:
                sizes.append((0, 0))
                rejected[each.question.question_id] = Reject(sample_id=each.question.question_id, reason=str(error))
        if unusable := [reject for name, reject in rejected.items() if name in missing]:
            yield unusable
        for batch in self._batches(sizes):
            wanted = [asked[place] for place in batch if asked[place].question.question_id in missing]
            if wanted := [each for each in wanted if each.question.question_id not in rejected]:
                yield from self._answered(wanted, note)

    def _shown(self, asked: AskedTurn) -> Shown:
        """Return the prompt. Raises UnscorableSampleError for a question that does not fit this model."""
        shown = self._prompts.shown(asked)
        if not shown.ids:
            raise UnscorableSampleError("the question has no tokens")
        most, needed = (
            learned_positions(self._loaded.model.config),
            len(shown.ids) + asked.question.generation.max_new_tokens,
        )
        if most is not None and needed > most:
            raise UnscorableSampleError(
                f"question and answer may take {needed} tokens, more than the {most} that the model has positions for: "
                "lower evaluation.input_length"
            )
        return shown

    def _batches(self, sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
        """Return batches of places in `sizes` (tokens of prompt and answer): similar ones together, longest first."""
        room = self._batch_tokens if pads_left(self._loaded) else 0
        batches: list[list[int]] = []
        # By the length of the answer first: a row that may end long before the others of its batch would wait for them.
        for place in sorted(range(len(sizes)), key=lambda each: (*(-size for size in reversed(sizes[each])), each)):
            several = [*batches[-1], place] if batches else [place]
            tokens = len(several) * (max(sizes[each][0] for each in several) + sizes[several[0]][1])
            if batches and tokens <= room:
                batches[-1].append(place)
            else:
                batches.append([place])
        return batches

    def _answered(self, batch: Sequence[AskedTurn], note: Note) -> Iterator[Sequence[Outcome]]:
        from gateau_dagster.models.memory import out_of_memory_reason, unless_out_of_memory

        shown = [self._shown(each) for each in batch]
        longest = max(len(each.ids) for each in shown)
        tokens = len(batch) * (longest + max(each.question.generation.max_new_tokens for each in batch))
        if len(batch) == 1 or tokens <= self._fitting:
            made = unless_out_of_memory(lambda: self._generated(batch, shown, note))
            if made is not None:
                yield made
                return
            # Remembered: the batches after this one are about as large, and would each fail once before they are
            # halved.
            self._fitting = min(self._fitting, tokens // 2)
            if len(batch) == 1:
                reason = out_of_memory_reason(longest, "lower evaluation.input_length, or use a larger device")
                yield [Reject(sample_id=batch[0].question.question_id, reason=reason, short_of_memory=True)]
                return
        half = len(batch) // 2
        yield from self._answered(batch[:half], note)
        yield from self._answered(batch[half:], note)

    def _generated(self, batch: Sequence[AskedTurn], shown: Sequence[Shown], note: Note) -> list[Answer]:

        wanted = [
            GenerationRequest(ids=each.ids, generation=asked.question.generation, draws=asked.draws)
            for asked, each in zip(batch, shown, strict=True)
        ]
        most = max(each.generation.max_new_tokens for each in wanted)
        beside = plural(len(wanted), "question") + (" side by side" if len(wanted) > 1 else "")
        note(f"{beside}: reading {sum(len(each.ids) for each in shown):,} tokens")
        started = time.perf_counter()
        decoded = decode(
            self._loaded, wanted, self._endings, lambda said: note(f"{beside}: token {said:,} of at most {most:,}")
        )
        seconds = time.perf_counter() - started
        tokens = [len(each.ids) + said.tokens for each, said in zip(shown, decoded, strict=True)]
        return [
            Answer(
                question_id=asked.question.question_id,
                turn=asked.turn,
                digest=asked.question.digest,
                prompt=each.text,
                answer=said.text.removeprefix(each.gap),
                prompt_tokens=len(each.ids),
                cut_tokens=each.cut_tokens,
                answer_tokens=said.tokens,
                finish_reason="stop" if said.ended else "length",
                seconds=seconds * size / sum(tokens),
            )
            for asked, each, said, size in zip(batch, shown, decoded, tokens, strict=True)
        ]
