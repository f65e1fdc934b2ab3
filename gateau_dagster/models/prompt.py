"""Open a tokenizer, and build the scoring prompt: four parts with exact offsets.

Prefix and context are tokenised separately. Suffix and response are one text, as a model reads it; see divided().
"""

# Why the parts are tokenised apart: a segment of the context is also shown alone, with the tokens that it has in the
# whole prompt. So the context is tokenised by itself, and cut by tokens. A cut text would be tokenised again, and could
# get other tokens.
#
# What it costs: the tokens at the borders of the context may differ from those of the whole text. Suffix and response
# are one text, because there a wrong token costs most: see `divided`.

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.models.chat_rendering import (
    Message,
    Tools,
    answer_ending,
    answer_frame,
    own_tokens,
    refusal,
    render_chat,
    unmarked,
    with_system_place,
)
from gateau_dagster.models.control_tokens import encoded, marked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_CONTEXT, _INSTRUCTION = "GATEAUCONTEXTHERE", "GATEAUINSTRUCTIONHERE"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Token ids of prefix, context c, suffix (with the instruction x) and response y."""

    prefix: tuple[int, ...]
    context: tuple[int, ...]
    suffix: tuple[int, ...]
    response: tuple[int, ...]
    truncated_tokens: int = 0  # cut at the start of the context

    @property
    def ids(self) -> tuple[int, ...]:
        """Return the token ids of the whole prompt."""
        return self.prefix + self.context + self.suffix + self.response

    @property
    def length(self) -> int:
        """Return the number of tokens of the whole prompt."""
        return len(self.prefix) + len(self.context) + len(self.suffix) + len(self.response)

    @property
    def context_span(self) -> tuple[int, int]:
        """Return the first position of the context and the one after its last."""
        return len(self.prefix), len(self.prefix) + len(self.context)

    @property
    def response_span(self) -> tuple[int, int]:
        """Return the first position of the response and the one after its last, which is the prompt's length."""
        return self.length - len(self.response), self.length

    def with_context(self, context: Sequence[int]) -> Prompt:
        """Return the prompt with other context tokens: a segment s_i of Eq. 3, or none."""
        return replace(self, context=tuple(context), truncated_tokens=0)


def build_prompt(
    tokenizer: PreTrainedTokenizerBase,
    sample: Sample,
    *,
    max_length: int,
    template: Template = "gateau",
    opening: str = "",
) -> Prompt:
    """Tokenise a sample; a context too long for `max_length` tokens is cut at the start.

    `opening` precedes everything (ModelConfig.opening): every segment's prompt contains the demonstrations, too.

    Raises UnscorableSampleError without response tokens, or if the parts other than the context exceed `max_length`.
    Raises GateauError if `template` is 'chat' and the tokenizer has no usable chat template.
    """
    before, after = _frame(tokenizer, sample, template)
    bos, rendered = tokenizer.bos_token_id, template == "chat"
    # The opening is of the configuration, which may write control tokens on purpose.
    prefix = encode(tokenizer, opening, rendered=True) + encode(tokenizer, before, rendered=rendered)
    if template == "gateau" and bos is not None:  # a chat template adds its own
        assert isinstance(bos, int)
        prefix = (bos, *prefix)
    suffix, response = divided(tokenizer, after, _shown(tokenizer, sample.response, template), rendered=rendered)
    if not response:
        raise UnscorableSampleError("the response has no tokens")
    # The context is cut at its start, as theta_A's window cuts it: what is next to the response stays.
    room = max_length - len(prefix) - len(suffix) - len(response)
    if room < 0:
        raise UnscorableSampleError(
            f"{'demonstrations, ' if opening else ''}instruction and response alone take {max_length - room} tokens, "
            f"more than the {max_length} allowed"
        )
    context = encode(tokenizer, sample.context)
    dropped = max(0, len(context) - room)
    return Prompt(prefix=prefix, context=context[dropped:], suffix=suffix, response=response, truncated_tokens=dropped)


def fitted_context(tokenizer: PreTrainedTokenizerBase, sample: Sample, *, max_tokens: int) -> str:
    """Return the end of the context with which a trainer counts at most `max_tokens` tokens for a sample.

    Raises UnscorableSampleError if the sample without context has more.
    Raises GateauError if the tokenizer's chat template cannot be used, and the errors of `token_offsets`.
    """
    fitted = sample
    while (excess := _trained_tokens(tokenizer, fitted) - max_tokens) > 0:
        if not fitted.context:
            raise UnscorableSampleError(
                f"instruction and response alone take {max_tokens + excess} tokens, more than the {max_tokens} allowed"
            )
        # The first tokens may cover no character.
        begins = (begin for begin, _ in token_offsets(tokenizer, fitted.context)[excess:])
        cut = next((begin for begin in begins if begin > 0), len(fitted.context))
        fitted = replace(fitted, context=fitted.context[cut:])
    return fitted.context


def fitted_turns(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Tools, *, max_tokens: int
) -> tuple[list[Message], int]:
    """Return the turns of a conversation that fit `max_tokens` tokens, and the number of tokens that are left out.

    The chat template prints the turns before they are counted. The oldest answers are left out first. The turns before
    the first answer stay, and so does the question that the first kept answer belongs to. If that answer followed a
    tool's result, which is now left out, it gets `trained: false`. The last answer stays with the results that it
    follows. If these turns are too long, the longest of them that is no answer loses its start.

    Raises:
        UnscorableSampleError: the template refuses the conversation, or the kept turns are still too long.
    """
    whole = _chat_tokens(tokenizer, messages, tools)
    if whole <= max_tokens:
        return [*messages], 0
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    follows_question = len(messages) > 1 and messages[-2]["role"] == "user"
    begins = answers[1:] if follows_question else answers[1:-1]
    fitting = bisect_left(
        begins, True, key=lambda begin: _chat_tokens(tokenizer, _later_turns(messages, begin), tools) <= max_tokens
    )
    kept = _later_turns(messages, [*answers[:1], *begins][min(fitting + 1, len(begins))])
    while (total := _chat_tokens(tokenizer, kept, tools)) > max_tokens:
        place = max(
            (place for place, message in enumerate(kept) if message["role"] in {"user", "tool"}),
            key=lambda place: len(kept[place]["content"]),
        )
        text = kept[place]["content"]
        # The first tokens may cover no character.
        ends = (begin for begin, _ in token_offsets(tokenizer, text)[total - max_tokens :] if begin > 0)
        if not (rest := text[next(ends, len(text)) :]):
            raise UnscorableSampleError(
                f"the last answer and the turns that it needs take {total} tokens, more than the {max_tokens} allowed"
            )
        kept[place] = {**kept[place], "content": rest}
    return kept, whole - total


def _later_turns(messages: Sequence[Message], begin: int) -> list[Message]:
    """Return the turns before the first answer, the question of the answer at `begin`, and all turns from there on."""
    first = next(place for place, message in enumerate(messages) if message["role"] == "assistant")
    head = [*messages[:first]]
    asked = next((place for place in range(begin - 1, first, -1) if messages[place]["role"] == "user"), None)
    if asked is not None:
        question = messages[asked]
        if head and head[-1]["role"] == "user":  # many templates refuse two user turns in a row
            question = {**question, "content": f"{head.pop()['content']}\n\n{question['content']}"}
        head.append(question)
    answer, *others = messages[begin:]
    if begin > first and messages[begin - 1]["role"] != "user":  # it may state the result of a tool, which is left out
        answer = {**answer, "trained": False}
    return [*head, answer, *others]


def _chat_tokens(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Tools) -> int:
    """Return the tokens of a conversation as its chat template prints it, without white space at the end."""
    turns = with_system_place(tokenizer, marked(tokenizer, messages))
    try:
        text = str(render_chat(tokenizer, turns, add_generation_prompt=False, tools=marked(tokenizer, tools)))
    except Exception as error:  # it is a program that comes with the model, and may raise anything
        raise refusal(messages, error) from error
    return len(encode(tokenizer, text.rstrip(), rendered=True))


def _trained_tokens(tokenizer: PreTrainedTokenizerBase, sample: Sample) -> int:
    """Return the tokens of a sample for a trainer, which renders it with the chat template and tokenises one text.

    Of a tokenizer without a chat template, the tokens of the scoring prompt and of the answer's end count.
    """
    if not tokenizer.chat_template:
        prompt = build_prompt(tokenizer, sample, max_length=sys.maxsize)
        return prompt.length + len(ending_ids(tokenizer, "gateau"))
    turns = [{"role": "user", "content": sample.user_turn}, {"role": "assistant", "content": sample.response}]
    try:
        text = str(render_chat(tokenizer, marked(tokenizer, turns), add_generation_prompt=False))
    except Exception as error:  # it is a program that comes with the model, and may raise anything
        reason = unmarked(str(error)) or type(error).__name__
        raise GateauError(
            "models.chat_template",
            f"the tokenizer's chat template cannot be used: {reason}. Correct it in the model's folder",
        ) from error
    return len(encode(tokenizer, text, rendered=True))


def _frame(tokenizer: PreTrainedTokenizerBase, sample: Sample, template: Template) -> tuple[str, str]:
    if template == "gateau":
        return "### Input: ", f"\n\n### Instruction: {sample.instruction}\n\n### Response: "
    return chat_frame(tokenizer, sample.instruction)


def _shown(tokenizer: PreTrainedTokenizerBase, text: str, template: Template) -> str:
    # The texts of `_frame` have marks if a chat template made them.
    return marked(tokenizer, text) if template == "chat" else text


def response_ids(tokenizer: PreTrainedTokenizerBase, sample: Sample, template: Template) -> tuple[int, ...]:
    """Return the response's tokens in a sample's prompt; they do not depend on how much of the context is left.

    Raises the errors of `build_prompt`, except those about lengths.
    """
    _, asked = _frame(tokenizer, sample, template)
    response = _shown(tokenizer, sample.response, template)
    return divided(tokenizer, asked, response, rendered=template == "chat")[1]


def response_offsets(tokenizer: PreTrainedTokenizerBase, sample: Sample, template: Template) -> list[tuple[int, int]]:
    """Return the first and one-past-last character in `sample.response` of each response token, in order.

    The white space before the response, which its first token includes, is left out.

    Raises:
        GateauError: see token_offsets.
    """
    _, asked = _frame(tokenizer, sample, template)
    response = _shown(tokenizer, sample.response, template)
    found = token_offsets(tokenizer, asked + response, rendered=template == "chat")
    places = [(max(0, begin - len(asked)), end - len(asked)) for begin, end in found if end > len(asked)]
    if response == sample.response:
        return places
    return [(len(unmarked(response[:begin])), len(unmarked(response[:end]))) for begin, end in places]


def divided(
    tokenizer: PreTrainedTokenizerBase, asked: str, answer: str, *, rendered: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the token ids of `asked` and of `answer`, tokenised as one text; a token with a character of both is
    `answer`'s. `rendered`: see encode.

    Tokenised separately, "### Response: " ends in a lone space. Real models then give the answer's first token a
    probability near 1e-7, against 3e-3 in plain text. Most vocabularies have the space *in* the word that follows.

    Raises UnscorableSampleError for text that is not Unicode.
    """
    if not answer:
        return encode(tokenizer, asked, rendered=rendered), ()
    if tokenizer.is_fast:
        try:
            ids, offsets = ids_and_offsets(tokenizer, asked + answer, rendered=rendered)
        except (UnicodeEncodeError, TypeError) as error:
            raise _not_text(error) from error
        border = next((place for place, (_, end) in enumerate(offsets) if end > len(asked)), len(ids))
    else:  # it reports no offsets: the tokens that are the same for `asked` alone belong to `asked`
        ids, alone = (encode(tokenizer, text, rendered=rendered) for text in (asked + answer, asked))
        border = next((n for n, (one, other) in enumerate(zip(ids, alone, strict=False)) if one != other), len(alone))
    return ids[:border], ids[border:]


def _not_text(error: Exception) -> UnscorableSampleError:
    return UnscorableSampleError(f"the text cannot be tokenised: {error}")


def encode(tokenizer: PreTrainedTokenizerBase, text: str, *, rendered: bool = False) -> tuple[int, ...]:
    """Return the token ids of a text without special tokens. Raises UnscorableSampleError for text that is not
    Unicode.

    A control token that a text of the data spells is read as text. In a text that is `rendered`, a chat template wrote
    the control tokens; those of the data have marks, see models.control_tokens.
    """
    if not text:
        return ()
    try:
        return tuple(encoded(tokenizer, text, rendered=rendered)[0])
    except (UnicodeEncodeError, TypeError) as error:
        raise _not_text(error) from error


def chat_frame(tokenizer: PreTrainedTokenizerBase, instruction: str) -> tuple[str, str]:
    """Return the text before and after the context, up to the response, by the tokenizer's chat template.

    Raises GateauError if there is no template, if it fails, or if it does not print the user's turn exactly once.
    """
    # A user turn in LongAlign's form: document, blank line, instruction. Placeholders mark where the context ends in
    # the rendered text, and templates may strip the content.
    turn = [{"role": "user", "content": f"{_CONTEXT}\n\n{_INSTRUCTION}"}]
    text = by_chat_template(
        tokenizer,
        turn,
        fault="scoring.template is 'chat', but the tokenizer's chat template cannot be used",
        cure="Use template: gateau, or a model with a chat template.",
    )
    if text.count(_CONTEXT) != 1 or text.count(_INSTRUCTION) != 1 or text.index(_CONTEXT) > text.index(_INSTRUCTION):
        raise GateauError(
            "models.chat_template",
            "the tokenizer's chat template does not print the user's turn exactly once: use template: gateau",
        )
    before, rest = text.split(_CONTEXT)
    middle, end = rest.split(_INSTRUCTION)
    return before, middle + marked(tokenizer, instruction) + end


def by_chat_template(
    tokenizer: PreTrainedTokenizerBase, conversation: Sequence[Mapping[str, str]], *, fault: str, cure: str
) -> str:
    """Return a conversation, `role` and `content` by turn, by the tokenizer's chat template, up to the answer's text.

    It includes what the template puts before an answer, see models.chat_rendering. Its texts have the marks of
    models.control_tokens.

    Raises GateauError with `fault`, the reason and `cure` if the template cannot be used.
    """
    try:
        return answer_frame(tokenizer, marked(tokenizer, conversation))[0]
    except Exception as error:  # it is a program that comes with the model, and may raise anything
        reason = unmarked(str(error)) or type(error).__name__
        raise GateauError("models.chat_template", f"{fault}: {reason}. {cure}") from error


def answer_ends(tokenizer: PreTrainedTokenizerBase, template: Template) -> tuple[int, ...]:
    """Return the tokens that end an answer: the tokenizer's eos, or those that its chat template prints after one.

    Only dedicated tokens count, not a text such as "User:" that the template prints there. Return an empty tuple if
    there is no end. Raises what the chat template raises.
    """
    if template == "gateau":
        return (tokenizer.eos_token_id,) if isinstance(tokenizer.eos_token_id, int) else ()
    return own_tokens(tokenizer, encode(tokenizer, answer_ending(tokenizer), rendered=True))


def ending_ids(tokenizer: PreTrainedTokenizerBase, template: Template) -> tuple[int, ...]:
    """Return the tokens that follow an answer's text and are learned with it, including a text such as "User:"."""
    if template == "gateau":
        return answer_ends(tokenizer, template)
    # Tokenise it as the end of a text: alone, some tokenizers put a space before it.
    ending = answer_ending(tokenizer)
    whole, text = encode(tokenizer, f"x{ending}", rendered=True), encode(tokenizer, "x")
    return whole[len(text) :] if whole[: len(text)] == text else encode(tokenizer, ending, rendered=True)


def token_offsets(tokenizer: PreTrainedTokenizerBase, text: str, *, rendered: bool = False) -> list[tuple[int, int]]:
    """Return the first and one-past-last character of each token of a text, in order, without overlaps.

    The tokens are those of models.prompt.encode. If several tokens make up one character, the first has it, and the
    others are empty.

    Raises GateauError for a tokenizer that does not report offsets.
    """
    if not text:
        return []
    if not tokenizer.is_fast:
        raise GateauError(
            "models.no_offsets",
            f"{tokenizer.name_or_path}: this tokenizer ({type(tokenizer).__name__}) does not report which "
            "characters its tokens cover: use a model with a tokenizer.json",
        )
    return ids_and_offsets(tokenizer, text, rendered=rendered)[1]


def ids_and_offsets(
    tokenizer: PreTrainedTokenizerBase, text: str, *, rendered: bool = False
) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Return the token ids of a text and the offsets of `token_offsets`, from a fast tokenizer."""
    ids, offsets = encoded(tokenizer, text, rendered=rendered, offsets=True)
    found: list[tuple[int, int]] = []
    last = 0
    for begin, end in offsets:
        first = max(begin, last)
        last = max(first, end)
        found.append((first, last))
    return tuple(ids), found


def open_tokenizer(source: str | Path, **options: Any) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder or of the hub; `options` go to `AutoTokenizer.from_pretrained`.

    Raises:
        TypeError: its tokenizer_config.json names another class, such as a model. Damaged files raise what transformers
            raises.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    found: Any = AutoTokenizer.from_pretrained(source, **options)
    if not isinstance(found, PreTrainedTokenizerBase):
        raise TypeError(f"the tokenizer_class in its tokenizer_config.json is {type(found).__name__}, not a tokenizer")
    return found
