"""Encode text as token ids and labels in the scoring prompt's format, so that training reads the scored text.

A sequence is built from pieces that are tokenised as in scoring. The positions with loss are therefore exact: the
tokens of every assistant answer and the token that ends it. An answer and its question are one text, see
models.prompt.divided.
"""

# Why pieces: the loss needs the border of each answer in tokens. A search for markers in the tokens of the whole text
# fails where a text repeats a marker. transformers can mark the tokens of answers, too, but only where the chat
# template has `{% generation %}` around them. Few templates do.

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from gateau_dagster.config.models import Template
from gateau_dagster.config.training import TrainedTurns
from gateau_dagster.data.sample import Sample, read_conversation
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.models.chat_rendering import Message, Tools, rendered_answers
from gateau_dagster.models.control_tokens import marked
from gateau_dagster.models.prompt import answer_ends, build_prompt, divided, ending_ids, fitted_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""The label of a position without loss (torch's default ignore_index)."""

Truncation = Literal["context", "right"]
REWRITTEN, DROPPED = "rewritten by the chat template", "left out to fit training.max_length"
"""The reasons why an answer that should be learned has no loss."""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """One training sequence.

    input_ids, labels: int32 [n]. block_tokens: int32 [2 * answers], tokens of each block after truncation, alternating
    instruction and response; their sum is n. bos and context belong to the first instruction, which may be empty if a
    chat template prints nothing before an answer. truncated_tokens: number of tokens removed to fit `max_length`.
    trimmed_tokens: number of context tokens removed before, see encode_long. unlearned: the number of answers that
    should be learned but have no loss, by reason.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    block_tokens: np.ndarray
    truncated_tokens: int
    trimmed_tokens: int = 0
    unlearned: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenRun:
    """Consecutive token ids, all with loss or all without."""

    ids: tuple[int, ...]
    trained: bool = False


def encode_long(
    tokenizer: PreTrainedTokenizerBase,
    sample: Sample,
    *,
    template: Template,
    max_length: int,
    truncation: Truncation = "context",
    trained_turns: TrainedTurns = "all",
    context_tokens: int | None = None,
) -> Encoded:
    """Encode a long sample as a training sequence: the scoring prompt with loss on the response and its end.

    With `context_tokens`, only that number of tokens at the end of its context is kept (`training.trim`), before any
    other truncation.

    A sample that is too long for `max_length` loses the start of its context, as in scoring, or with `right` its end
    (GATEAU, appendix A). The response comes last, so a sample with a prompt of that length has nothing left to learn.

    With template 'chat', a sample of several exchanges is its conversation, with loss on the answers that
    `trained_turns` names. If it is too long, it loses its oldest answers (see `fitted_turns`), or with `right` its end.
    `context_tokens` does not apply to it, because tokens of the scored transcript mark no border in the printed turns.

    Raises:
        UnscorableSampleError: there are no response tokens, truncation leaves none, or the template refuses the sample.
        GateauError: `template` is 'chat' and the tokenizer has no usable chat template.
    """
    if template == "chat":
        _require_chat_template(tokenizer)
        if sample.conversation:
            return _encode_turns(
                tokenizer,
                sample.conversation,
                max_length=max_length,
                truncation=truncation,
                trained_turns=trained_turns,
            )
    ending = ending_ids(tokenizer, template)
    room = max_length - len(ending) if truncation == "context" else sys.maxsize
    try:
        prompt = build_prompt(tokenizer, sample, max_length=room, template=template)
    except UnscorableSampleError as error:
        raise UnscorableSampleError(f"{error} (training.max_length is {max_length})") from error
    whole = len(prompt.context) + prompt.truncated_tokens
    kept = whole if context_tokens is None else min(context_tokens, whole)
    context = prompt.context[max(0, len(prompt.context) - kept) :]
    pieces = [
        TokenRun(ids=prompt.prefix + context + prompt.suffix),
        TokenRun(ids=prompt.response + ending, trained=True),
    ]
    encoded = _cut(pieces, max_length=max_length, cure="Raise it, or set training.truncation: context")
    encoded = replace(encoded, trimmed_tokens=whole - kept)
    if truncation == "right":
        return encoded
    assert encoded.truncated_tokens == 0
    return replace(encoded, truncated_tokens=kept - len(context))


def _encode_turns(
    tokenizer: PreTrainedTokenizerBase,
    conversation: str,
    *,
    max_length: int,
    truncation: Truncation,
    trained_turns: TrainedTurns,
) -> Encoded:
    kept, tools = read_conversation(conversation)
    _check_answers(kept)
    kept = flagged_turns(kept, trained_turns)
    wanted, room, truncated = sum(map(_is_learned, kept)), max_length, 0
    # Each round has less room, so this ends: with too little of it, `fitted_turns` refuses the sample.
    while True:
        if truncation == "context":
            kept, cut = fitted_turns(tokenizer, kept, tools, max_tokens=room)
            truncated += cut
        turns = [{key: value for key, value in message.items() if key != "trained"} for message in kept]
        pieces, rewritten = chat_pieces(tokenizer, turns, [_is_learned(message) for message in kept], tools)
        encoded = _cut(pieces, max_length=max_length, cure="Raise it, or set training.truncation: context")
        if truncation == "right" or not encoded.truncated_tokens:
            return _counted(replace(encoded, truncated_tokens=truncated + encoded.truncated_tokens), wanted, rewritten)
        room -= encoded.truncated_tokens  # tokenised in pieces, a text may have more tokens


def flagged_turns(messages: Sequence[Message], trained_turns: TrainedTurns) -> list[Message]:
    """Return a conversation with `trained: false` on the answers that `trained_turns` excludes."""
    if trained_turns == "all":
        return [*messages]
    return [*({**message, "trained": False} for message in messages[:-1]), messages[-1]]


def _is_learned(message: Message) -> bool:
    return message["role"] == "assistant" and message.get("trained", True)


def _counted(encoded: Encoded, wanted: int, rewritten: int) -> Encoded:
    dropped = wanted - rewritten - len(encoded.block_tokens) // 2
    return replace(encoded, unlearned={why: n for why, n in ((REWRITTEN, rewritten), (DROPPED, dropped)) if n > 0})


def _check_answers(messages: Sequence[Message]) -> None:
    for turn, message in enumerate(messages, start=1):
        # With loss only on the template's end of the turn, the model would learn to answer nothing.
        if message["role"] == "assistant" and not message["content"].strip() and not message.get("tool_calls"):
            raise UnscorableSampleError(f"turn {turn}: the answer is empty")


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    template: Template,
    max_length: int,
    trained: Sequence[bool] | None = None,
) -> Encoded:
    """Encode a short conversation as a training sequence, with loss on every assistant turn and its end.

    trained: for each turn, whether it may have loss; by default every answer may.

    A conversation that is too long for `max_length` loses its end, and then the rest after its last answer.

    Raises:
        UnscorableSampleError: the conversation has no answer within `max_length`, an empty answer, or invalid turns.
        GateauError: `template` is 'chat' and the tokenizer has no usable chat template.
    """
    _check_answers(messages)
    flags = trained or [True] * len(messages)
    answers = [flag for message, flag in zip(messages, flags, strict=True) if message["role"] == "assistant"]
    rewritten = 0
    if template == "chat":
        pieces, rewritten = chat_pieces(tokenizer, messages, trained)
    else:
        pieces, learned = conversation_pieces(tokenizer, messages), iter(answers)  # one piece with loss per answer
        pieces = [replace(piece, trained=next(learned)) if piece.trained else piece for piece in pieces]
    encoded = _cut(pieces, max_length=max_length, cure="Raise it")
    return _counted(encoded, sum(answers), rewritten)


def conversation_pieces(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[TokenRun]:
    """Return `[bos]`, followed by each exchange in the scoring prompt's format without its input part.

    A leading system message is put before the first instruction; a user turn without an answer is left out.

    Raises:
        UnscorableSampleError: an assistant turn answers nothing, or is empty.
    """
    bos = tokenizer.bos_token_id
    pieces = [TokenRun(ids=(bos,))] if isinstance(bos, int) else []
    asked: list[str] = []
    gap = ""
    for turn, message in enumerate(messages, start=1):
        if message["role"] != "assistant":
            asked.append(message["content"])
            continue
        if not asked:
            raise UnscorableSampleError(f"turn {turn}: the assistant answers nothing")
        instruction = "\n\n".join(asked)
        asks, answer = divided(tokenizer, f"{gap}### Instruction: {instruction}\n\n### Response: ", message["content"])
        if not answer:
            raise UnscorableSampleError(f"turn {turn}: the answer has no tokens")
        pieces.append(TokenRun(ids=asks))
        pieces.append(TokenRun(ids=answer + answer_ends(tokenizer, "gateau"), trained=True))
        asked, gap = [], "\n\n"
    return pieces


def chat_pieces(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    trained: Sequence[bool] | None = None,
    tools: Tools = (),
) -> tuple[list[TokenRun], int]:
    """Return the conversation as the chat template renders it, cut at the start and end of each assistant answer.

    The second result is the number of answers that the template rewrites.

    The template's own end of a turn has loss; white space after it and text before an answer do not. An earlier answer
    that the template rewrites, for example without its thoughts, stays in the text without loss. The model never writes
    it in this form. Answers that are not `trained` have no loss, see encode_conversation.

    Raises:
        GateauError: there is no template.
        UnscorableSampleError: the template refuses this conversation, or changes its answers.
    """
    _require_chat_template(tokenizer)
    turns, known = marked(tokenizer, messages), marked(tokenizer, tools)
    text, answers = rendered_answers(tokenizer, turns, tools=known, trained=trained)
    pieces: list[TokenRun] = []
    done = rewritten = 0
    for answer in answers:
        if trained is not None and not trained[answer.turn]:
            continue
        if not answer.kept:
            rewritten += 1
            continue
        asks, said = divided(tokenizer, text[done : answer.begin], text[answer.begin : answer.end], rendered=True)
        pieces += [TokenRun(ids=asks), TokenRun(ids=said, trained=True)]
        done = answer.end
    return pieces, rewritten


def _require_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    if not tokenizer.chat_template:
        raise GateauError(
            "models.chat_template",
            "scoring.template is 'chat', but the tokenizer has no chat template. "
            "Use template: gateau, or a model with a chat template.",
        )


def _cut(pieces: list[TokenRun], *, max_length: int, cure: str) -> Encoded:
    """Truncate the end, and everything after the last token with loss, because later tokens teach nothing.

    The first token has no predecessor, so it has no loss either.
    """
    ids = np.asarray([token for piece in pieces for token in piece.ids], dtype=np.int32)
    trained = np.asarray([piece.trained for piece in pieces for _ in piece.ids], dtype=np.bool_)
    trained[:1] = False
    if not trained.any():
        raise UnscorableSampleError("it has no answer to learn from")
    if not trained[:max_length].any():
        raise UnscorableSampleError(
            f"its first answer begins after training.max_length = {max_length} of its {len(ids)} tokens. {cure}."
        )
    kept = int(np.flatnonzero(trained[:max_length])[-1]) + 1
    return Encoded(
        input_ids=ids[:kept],
        labels=np.where(trained, ids, IGNORED)[:kept].astype(np.int32),
        block_tokens=_blocks(pieces, kept=kept),
        truncated_tokens=len(ids) - kept,
    )


def _blocks(pieces: list[TokenRun], *, kept: int) -> np.ndarray:
    """Return the tokens of each block within the first `kept` tokens, int32; untrained and trained blocks alternate."""
    blocks = [0]
    for piece in pieces:
        if piece.trained == bool(len(blocks) % 2):
            blocks.append(0)
        blocks[-1] += len(piece.ids)
    ends = np.cumsum(blocks)
    last = int(np.searchsorted(ends, kept))  # the block that the last kept token is in
    return np.diff(np.minimum(ends[: last + 1], kept), prepend=0).astype(np.int32)
