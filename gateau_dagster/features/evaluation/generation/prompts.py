"""Build the prompts of a question: its turns cut to length, in the format of the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.features.evaluation.benchmark import Question
from gateau_dagster.features.evaluation.config import PROMPT
from gateau_dagster.features.evaluation.generation.answering import AskedTurn
from gateau_dagster.models.chat_rendering import MARK, unmarked
from gateau_dagster.models.control_tokens import as_text, marked
from gateau_dagster.models.prompt import answer_ends, by_chat_template, divided, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def cut_middle(tokenizer: PreTrainedTokenizerBase, text: str, limit: int) -> tuple[str, int]:
    """Return a text of at most about `limit` tokens, and the number of tokens removed from its middle.

    The rule is that of pred.py in THUDM/LongBench. Tokens are counted with the tokenizer's special ones, and half of
    the limit is kept at either end. The halves are joined as decoded text, without special tokens. Encoded again, the
    text may have a few tokens more or less than `limit`.

    Raises UnscorableSampleError for text that is not Unicode.
    """
    assert limit >= 2, "half of it is kept at either end"
    try:
        ids = as_text(tokenizer, text)(text, verbose=False)["input_ids"]
    except (UnicodeEncodeError, TypeError) as error:
        raise UnscorableSampleError(f"the text cannot be tokenised: {error}") from error
    assert isinstance(ids, list)
    if len(ids) <= limit:
        return text, 0
    half = limit // 2
    ends = [str(tokenizer.decode(part, skip_special_tokens=True)) for part in (ids[:half], ids[-half:])]
    return "".join(ends), len(ids) - 2 * half


Message = dict[str, str]
GAP = "\n\n"
_SPACE = " "


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A prompt as text and as token ids; `cut_tokens`: tokens cut out of its turns, before the template.

    gap: white space before the answer that is not part of it, because models have it in the first word's token.
    """

    text: str
    ids: tuple[int, ...]
    cut_tokens: int
    gap: str = ""


@dataclass(frozen=True, kw_only=True)
class PromptBuilder:
    """Builds the prompts for one model.

    template: `chat`, the tokenizer's own, where it has one; `gateau`, the format in which conversations are trained on;
    or a text in which {prompt} is replaced by a turn. Questions with `chat=False` are shown without a template, to be
    continued.
    max_length: tokens of prompt and answer.
    input_length: tokens of a turn, before the template, above which its middle is cut out; None: what the longest
    answer leaves of max_length.
    """

    tokenizer: PreTrainedTokenizerBase
    template: str
    max_length: int
    input_length: int | None = None

    def is_chat(self, question: Question) -> bool:
        """Return whether the question goes through the tokenizer's chat template."""
        return question.chat and self.template == "chat" and bool(self.tokenizer.chat_template)

    def cut(self, asked: AskedTurn) -> tuple[list[str], int]:
        """Return the turns up to the current one, without the middle where they are too long, and the number of tokens
        cut.

        Raises UnscorableSampleError for text that is not Unicode.
        """
        turns = asked.question.turns[: asked.turn + 1]
        limit = self.input_length or max(2, self.max_length - asked.question.generation.max_new_tokens)
        cut = [cut_middle(self.tokenizer, turn, limit) for turn in turns]
        return [text for text, _ in cut], sum(tokens for _, tokens in cut)

    def shown(self, asked: AskedTurn) -> Shown:
        """Return the prompt.

        Raises:
            UnscorableSampleError: the question is not Unicode.
            GateauError: the chat template cannot be used.
        """
        turns, cut = self.cut(asked)
        question = asked.question
        if self.is_chat(question):
            before = rendered(self.tokenizer, messages(question, turns, asked.answers))
            # Models have a space that the template puts before an answer in the token of its first word.
            text = before + self._marked(question.prefill) if question.prefill else before.rstrip(_SPACE)
            gap = "" if question.prefill else before[len(text) :]
            ids = encode(self.tokenizer, text, rendered=True)
            return Shown(text=unmarked(text), ids=ids, cut_tokens=cut, gap=gap)
        asks, said = _exchanges(question, turns, asked.answers)
        if question.chat and self.template == "gateau":
            text, ids = self._as_trained(asks, said, question.prefill)
            return Shown(text=text, ids=ids, cut_tokens=cut, gap="" if question.prefill else _SPACE)
        form = self.template if question.chat and PROMPT in self.template else PROMPT
        text = self._framed(form, [*map(self._marked, asks)], [*map(self._marked, said)])
        text += self._marked(question.prefill)
        return Shown(text=unmarked(text), ids=to_continue(self.tokenizer, text), cut_tokens=cut)

    def _marked(self, text: str) -> str:
        return marked(self.tokenizer, text)

    def _as_trained(self, turns: Sequence[str], said: Sequence[str], prefill: str) -> tuple[str, tuple[int, ...]]:
        """Return text and ids as training.encode.conversation_pieces does, up to the answer's first token."""
        tokenizer = self.tokenizer
        bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        texts = [str(tokenizer.bos_token)] if isinstance(bos, int) else []
        ids = [bos] if isinstance(bos, int) else []
        for place, turn in enumerate(turns):
            asks = f"{GAP if place else ''}### Instruction: {turn}\n\n### Response:"
            if place < len(said):
                before, answer = divided(tokenizer, asks + _SPACE, said[place])
                ids += [*before, *answer, *([eos] if isinstance(eos, int) else [])]
                texts += [asks, _SPACE, said[place], str(tokenizer.eos_token or "")]
            else:
                texts.append(asks + (_SPACE + prefill if prefill else ""))
                ids += encode(tokenizer, texts[-1])
        return "".join(texts), tuple(ids)

    def _framed(self, form: str, turns: Sequence[str], said: Sequence[str]) -> str:
        """Return the turns in the template with their answers; without a template, nothing but a gap ends an answer."""
        end = GAP if form == PROMPT else str(self.tokenizer.eos_token or "")
        asks = [form.replace(PROMPT, turn) for turn in turns]
        exchanges = [ask + answer + end for ask, answer in zip(asks, said, strict=False)]
        return "".join(exchanges) + asks[-1]


def to_continue(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """Return the tokens of a text to continue, with what the tokenizer adds before it by itself.

    An eos or a [SEP] that some tokenizers add after every text would end it: it is left out. Texts of the data in it
    have the marks of models.control_tokens.
    """
    if MARK in text:
        begins, letter = to_continue(tokenizer, "a"), encode(tokenizer, "a")
        return begins[: len(begins) - len(letter)] + encode(tokenizer, text, rendered=True)
    whole, alone = tuple(tokenizer(text, verbose=False)["input_ids"]), encode(tokenizer, text, rendered=True)  # pyright: ignore
    for first in range(len(whole) - len(alone) + 1):
        if whole[first : first + len(alone)] == alone:
            return whole[: first + len(alone)]
    return whole


def _exchanges(question: Question, turns: Sequence[str], answers: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the questions and the answers so far, including earlier messages.

    The system message and messages of the user in a row are joined with what follows them, as in training.
    """
    asks, said, waiting = list[str](), list[str](), [question.system] if question.system else []
    for role, text in question.earlier:
        if role == "assistant":
            asks.append(GAP.join(waiting))
            said.append(text)
            waiting = []
        else:
            waiting.append(text)
    first, *others = turns
    return [*asks, GAP.join([*waiting, first]), *others], [*said, *(question.prefill + answer for answer in answers)]


def messages(question: Question, turns: Sequence[str], answers: Sequence[str]) -> list[Message]:
    """Return the conversation up to the current turn; answers include their prefill."""
    found = [{"role": "system", "content": question.system}] if question.system else []
    found += [{"role": role, "content": text} for role, text in question.earlier]
    for place, turn in enumerate(turns):
        found.append({"role": "user", "content": turn})
        if place < len(answers):
            found.append({"role": "assistant", "content": question.prefill + answers[place]})
    return found


def rendered(tokenizer: PreTrainedTokenizerBase, conversation: Sequence[Message]) -> str:
    """Return a conversation in the tokenizer's chat template, up to the answer, with the marks of by_chat_template.

    If the template has no place for a system message, it precedes the first turn.

    Raises GateauError when the template cannot be used.
    """
    return by_chat_template(
        tokenizer,
        conversation,
        fault="evaluation.template: the tokenizer's chat template cannot be used",
        cure=f"Set it to gateau, or to a text with {PROMPT}.",
    )


def turn_endings(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the tokens that end an answer: the tokenizer's own, and those with which its chat template ends a turn."""
    found = {*answer_ends(tokenizer, "gateau")}
    if tokenizer.chat_template:
        with suppress(Exception):  # a template is a program that may raise anything; `rendered` reports it
            found |= {*answer_ends(tokenizer, "chat")}
    return frozenset(found)
