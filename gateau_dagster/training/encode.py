"""Text to token ids and labels, in the scoring prompt's format: what was scored is what is trained.

A sequence is built from pieces, each tokenised on its own as in scoring (design, section 4), so that the positions with
loss are exact: the tokens of every assistant answer and the token that ends it, nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.scoring.prompt import FIXED_DATE, build_prompt, encode

IGNORED = -100
"""Label of a position without loss (torch's default ignore_index)."""

_RESPONSE = "GATEAURESPONSEHERE"

Message = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """One training sequence: `input_ids` and `labels`, both int32 [n], and how many tokens were cut off."""

    input_ids: np.ndarray
    labels: np.ndarray
    truncated_tokens: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive token ids, all with loss or all without."""

    ids: tuple[int, ...]
    trained: bool = False


def encode_long(tokenizer: PreTrainedTokenizerBase, sample: Sample, *, template: Template, max_length: int) -> Encoded:
    """A long sample as a training sequence: the scoring prompt with loss on the response and its end.

    Too long for `max_length`, it loses the left end of its context, as in scoring: cut on the right, it would lose the
    response, which is all that is learned.

    Raises:
        UnscorableSampleError: there are no response tokens, or all but the context is longer than `max_length` already.
        GateauError: `template` is 'chat' and the tokenizer has no usable chat template.
    """
    ending = _eos(tokenizer) if template == "gateau" else _chat_ending(tokenizer)
    try:
        prompt = build_prompt(tokenizer, sample, max_length=max_length - len(ending), template=template)
    except UnscorableSampleError as error:
        raise UnscorableSampleError(f"{error} (training.max_length is {max_length})") from error
    asked = prompt.prefix + prompt.context + prompt.suffix
    encoded = _cut([Piece(ids=asked), Piece(ids=prompt.response + ending, trained=True)], max_length=max_length)
    assert encoded.truncated_tokens == 0
    return replace(encoded, truncated_tokens=prompt.truncated_tokens)


def encode_conversation(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, template: Template, max_length: int
) -> Encoded:
    """A short conversation as a training sequence, with loss on every assistant turn and its end.

    Raises:
        UnscorableSampleError: it has no answer within `max_length`, or its turns make no sense.
        GateauError: `template` is 'chat' and the tokenizer has no usable chat template.
    """
    make = conversation_pieces if template == "gateau" else chat_pieces
    return _cut(make(tokenizer, messages), max_length=max_length)


def conversation_pieces(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[Piece]:
    """`[bos]`, then each exchange in the scoring prompt's format without its input part, one after the other.

    A leading system message is put before the first instruction; a user turn that nobody answers is left out.

    Raises:
        UnscorableSampleError: an assistant turn answers nothing, or is empty.
    """
    bos = tokenizer.bos_token_id
    pieces = [Piece(ids=(bos,))] if isinstance(bos, int) else []
    asked: list[str] = []
    gap = ""
    for turn, message in enumerate(messages, start=1):
        if message["role"] != "assistant":
            asked.append(message["content"])
            continue
        if not asked:
            raise UnscorableSampleError(f"turn {turn}: the assistant answers nothing")
        answer = encode(tokenizer, message["content"])
        if not answer:
            raise UnscorableSampleError(f"turn {turn}: the answer has no tokens")
        instruction = "\n\n".join(asked)
        pieces.append(Piece(ids=encode(tokenizer, f"{gap}### Instruction: {instruction}\n\n### Response: ")))
        pieces.append(Piece(ids=answer + _eos(tokenizer), trained=True))
        asked, gap = [], "\n\n"
    return pieces


def chat_pieces(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[Piece]:
    """The conversation as the chat template renders it, cut where each assistant answer begins and ends.

    The end-of-turn token is the template's own and carries loss; white space after it does not.

    Raises:
        GateauError: there is no template, or it rewrites earlier turns, so that no exact span exists.
        UnscorableSampleError: the template refuses this conversation.
    """
    pieces: list[Piece] = []
    done = ""
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asked = _render(tokenizer, messages[:turn], add_generation_prompt=True)
        answered = _render(tokenizer, messages[: turn + 1], add_generation_prompt=False)
        if not (asked.startswith(done) and answered.startswith(asked)):
            raise GateauError(
                "the tokenizer's chat template rewrites earlier turns, so the positions with loss are not exact. "
                "Set scoring.template: gateau, or use a model whose template only appends."
            )
        answer = answered[len(asked) :].rstrip()
        pieces.append(Piece(ids=encode(tokenizer, asked[len(done) :])))
        pieces.append(Piece(ids=encode(tokenizer, answer), trained=True))
        done = asked + answer
    return pieces


def _chat_ending(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Tokens with which the chat template ends an assistant turn."""
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _RESPONSE}]
    return encode(tokenizer, _render(tokenizer, turns, add_generation_prompt=False).split(_RESPONSE)[-1].rstrip())


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
    if not tokenizer.chat_template:
        raise GateauError(
            "scoring.template is 'chat', but the tokenizer has no chat template. "
            "Use template: gateau, or a model with a chat template."
        )
    conversation: list[Any] = [dict(message) for message in messages]
    try:
        text = tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=add_generation_prompt, date_string=FIXED_DATE
        )
    except TemplateError as error:
        raise UnscorableSampleError(f"the chat template refuses the conversation: {error}") from error
    assert isinstance(text, str)
    return text


def _eos(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The end of an answer, learned with it; nothing if the tokenizer has none."""
    return (tokenizer.eos_token_id,) if isinstance(tokenizer.eos_token_id, int) else ()


def _cut(pieces: list[Piece], *, max_length: int) -> Encoded:
    """Cut on the right. The first token has no predecessor, so it has no loss either."""
    ids = [token for piece in pieces for token in piece.ids]
    labels = [token if piece.trained else IGNORED for piece in pieces for token in piece.ids]
    labels[:1] = [IGNORED] * len(labels[:1])
    if all(label == IGNORED for label in labels):
        raise UnscorableSampleError("it has no answer to learn from")
    if all(label == IGNORED for label in labels[:max_length]):
        raise UnscorableSampleError(
            f"the first answer begins after training.max_length = {max_length} of its {len(ids)} tokens"
        )
    return Encoded(
        input_ids=np.asarray(ids[:max_length], dtype=np.int32),
        labels=np.asarray(labels[:max_length], dtype=np.int32),
        truncated_tokens=max(0, len(ids) - max_length),
    )
