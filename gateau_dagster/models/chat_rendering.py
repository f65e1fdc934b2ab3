"""Render conversations by a tokenizer's chat template, in the same way for scoring, training, evaluation and
checkpoints.

An answer's frame is the text that the template prints around a *finished* answer. Its left side may be longer than the
template's generation prompt: an empty `<think>` block, the name of a channel, a space. Samples are scored after it,
conversations are trained after it without loss on it, and questions are asked with it. Dates are fixed, so that
templates print the same on every day.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from gateau_dagster.errors import UnscorableSampleError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Templates that print today's date would give other scores tomorrow. Some take it as `date_string` (Llama 3), some
# always call `strftime_now` (gpt-oss, SmolLM3).
_FIXED = datetime(2024, 7, 26, tzinfo=UTC)
FIXED_DATE = f"{_FIXED:%d %b %Y}"
# The tokens around thoughts: Qwen, DeepSeek and GLM; Mistral; Cohere; Seed-OSS.
THOUGHTS = (
    *(("<think>", "</think>"), ("[THINK]", "[/THINK]")),
    *(("<|START_THINKING|>", "<|END_THINKING|>"), ("<seed:think>", "</seed:think>")),
)
# In the control tokens that texts of the data spell, see models.control_tokens. Every filter of a template leaves
# letters and digits as they are, and no text of the data has these: they are random.
MARK = f"gateau{secrets.token_hex(8)}"
_ANSWER, _ASKED, _SYSTEM = "GATEAUANSWERHERE", "GATEAUASKEDHERE", "GATEAUSYSTEMHERE"
_CALL = {"id": "gateau001", "type": "function", "function": {"name": "GATEAUCALLHERE", "arguments": {"x": "y"}}}
_CURE = "Train a model whose chat template prints tool calls and their results, or set scoring.template: gateau"
_ENDINGS: dict[tuple[str, str, int], str] = {}  # by template, eos and size of the vocabulary
_KEEPS_SYSTEM: dict[str, bool] = {}  # by template
_KEEPS_CALLS: dict[str, bool] = {}
_CALLED = "strftime_now"
_CODES = (*"aAbBcdDeFfgGhHIjmMnprRStTuUVwWxXyYzZ", *(f"-{code}" for code in "dHIjmMSy"), "%")

Message = Mapping[str, Any]
"""`role` and `content`; in an assistant turn `tool_calls`, in a tool turn `tool_call_id` and `name`: OpenAI's form."""
Tools = Sequence[Mapping[str, Any]]


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    conversation: Sequence[Message],
    *,
    add_generation_prompt: bool,
    tools: Tools = (),
) -> object:
    """Return a conversation as the template prints it. Raise what the template raises."""
    known: list[Any] | None = [dict(tool) for tool in tools] or None
    template = _dated_template(tokenizer, tools)

    def rendered(given: Sequence[Message]) -> object:
        turns: list[Any] = [dict(message) for message in given]
        return tokenizer.apply_chat_template(
            turns,
            tools=known,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            date_string=FIXED_DATE,
        )

    try:
        return rendered(conversation)
    except TypeError:  # a template such as DeepSeek-V3's joins the arguments of a call to text
        if not any(message.get("tool_calls") for message in conversation):
            raise
        return rendered([_with_text_arguments(message) for message in conversation])


def _dated_template(tokenizer: PreTrainedTokenizerBase, tools: Tools) -> str:
    template = tokenizer.get_chat_template(tools=[dict(tool) for tool in tools] or None)
    if _CALLED not in template:
        return template
    # `strftime_now` as a macro before the template: the library accepts no function of that name, and a macro shadows
    # its own. The trailing line end is not printed, so the template still begins on a separate line.
    replaced = "".join(f".replace('%{code}', {_FIXED.strftime(f'%{code}')!r})" for code in _CODES)
    return f"{{% macro {_CALLED}(format) %}}{{{{ format{replaced} }}}}{{% endmacro %}}\n{template}"


def _with_text_arguments(message: Message) -> Message:
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "tool_calls": calls} if calls else message


def with_system_place(tokenizer: PreTrainedTokenizerBase, conversation: Sequence[Message]) -> list[dict[str, Any]]:
    """Return a conversation whose system text the template prints: if need be, as the start of the first user turn.

    A template may refuse a system turn, or drop it silently.
    """
    found = [dict(message) for message in conversation]
    if len(found) > 1 and found[0]["role"] == "system" and not keeps_system(tokenizer):
        system, first, *rest = found
        return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]
    return found


def keeps_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the template prints the text of a system turn."""
    template = str(tokenizer.chat_template)
    if template not in _KEEPS_SYSTEM:
        probe = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": "?"}]
        try:
            _KEEPS_SYSTEM[template] = _SYSTEM in generation_prompt(tokenizer, probe)
        except Exception:  # it is a program that comes with the model, and may raise anything
            _KEEPS_SYSTEM[template] = False
    return _KEEPS_SYSTEM[template]


def _keeps_calls(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the template prints tool calls, or raises: its error then is the reason for each conversation."""
    template = str(tokenizer.chat_template)
    if template not in _KEEPS_CALLS:
        probe = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]
        try:
            printed = str(render_chat(tokenizer, probe, add_generation_prompt=False))
            _KEEPS_CALLS[template] = _CALL["function"]["name"] in printed
        except Exception:  # it is a program that comes with the model, and may raise anything
            _KEEPS_CALLS[template] = True
    return _KEEPS_CALLS[template]


def answer_frame(tokenizer: PreTrainedTokenizerBase, conversation: Sequence[Message]) -> tuple[str, str]:
    """Return the text before and after an answer to `conversation`, as the template prints a finished one.

    For a template that cannot print an answer, return its generation prompt and an empty text. Raises what the template
    raises for that prompt.
    """
    conversation = with_system_place(tokenizer, conversation)
    finished = _finished_frame(tokenizer, conversation)
    return (generation_prompt(tokenizer, conversation), "") if isinstance(finished, Exception) else finished


def generation_prompt(tokenizer: PreTrainedTokenizerBase, conversation: Sequence[Message], tools: Tools = ()) -> str:
    """Return the text that the template prints to have an answer generated. Raises what the template raises."""
    text = render_chat(tokenizer, conversation, add_generation_prompt=True, tools=tools)
    if not isinstance(text, str):
        raise TypeError("it prints no text")
    return text


def frame_change(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """Return the end of the generation prompt that the frame of a finished answer lacks, and what replaces it.

    Both are empty if the two agree, as with most templates. Raises what the template raises for one user turn.
    """
    conversation = [{"role": "user", "content": "?"}]
    prompt, (before, _) = generation_prompt(tokenizer, conversation), answer_frame(tokenizer, conversation)
    shared = next((place for place, (one, other) in enumerate(zip(prompt, before, strict=False)) if one != other), None)
    shared = min(len(prompt), len(before)) if shared is None else shared
    return prompt[shared:], before[shared:]


def _finished_frame(
    tokenizer: PreTrainedTokenizerBase, conversation: Sequence[Message], tools: Tools = ()
) -> tuple[str, str] | Exception:
    answered = [*conversation, {"role": "assistant", "content": _ANSWER}]
    try:
        text = str(render_chat(tokenizer, answered, add_generation_prompt=False, tools=tools))
    except Exception as error:  # it is a program that comes with the model, and may raise anything
        return error
    before, answer, after = text.partition(_ANSWER)
    return (before, after) if answer and _ANSWER not in after else ValueError("it does not print the answer once")


def before_answer(before: str, answer: str) -> str:
    """Return the left side of an answer's frame, without the template's empty thoughts if the answer has its own."""
    for begin, end in THOUGHTS:
        rest, found, thoughts = before.rpartition(begin)
        if answer.lstrip().startswith(begin) and found and not thoughts.replace(end, "").strip():
            return rest
    return before


def without_thoughts(answer: str) -> str:
    """Return an answer without the thoughts at its start, if there are any."""
    for begin, end in THOUGHTS:
        if answer.lstrip().startswith(begin) and end in answer:
            return answer.partition(end)[2].strip()
    return answer


@dataclass(frozen=True, kw_only=True)
class AnswerSpan:
    """The place of an answer in a rendered conversation: its first character, and the one after its ending's last.

    turn: index of its message. kept: whether the text up to `end` is what the model reads and writes when it gives this
    answer. If a template rewrites earlier turns, only the last answer is kept.
    """

    turn: int
    begin: int
    end: int
    kept: bool


def rendered_answers(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    tools: Tools = (),
    trained: Sequence[bool] | None = None,
) -> tuple[str, list[AnswerSpan]]:
    """Return a conversation up to its last answer, as the template prints it, and where its answers are.

    The template renders the conversation up to each answer. An answer is `kept` if the whole conversation begins with
    exactly this text. Thoughts that a template drops even from a last answer stay in it: the model should write them.
    What a template prints before it reads the next turn begins every conversation with the same turns. There an answer
    between the texts around an earlier one of its kind is found without another rendering.

    Args:
        tokenizer: has the chat template.
        messages: the turns of the conversation.
        tools: the tools that the assistant may call.
        trained: whether to find the answer of each turn; default: every answer. The last answer is always found.

    Raises:
        UnscorableSampleError: the template refuses the conversation, or prints another answer than the given one.
    """
    system = len(messages) - len(with_system_place(tokenizer, messages))  # 1 if it has no separate turn
    messages = with_system_place(tokenizer, messages)
    turns = [turn for turn, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        return "", []
    if not _keeps_calls(tokenizer) and any(message.get("tool_calls") for message in messages):
        raise UnscorableSampleError(f"the chat template does not print tool calls. {_CURE}")
    whole, begin, end = _as_last(tokenizer, messages[: turns[-1] + 1], tools, number=turns[-1] + system + 1)
    _check_printed(messages[: turns[-1]], whole, first=system + 1)
    answers: list[AnswerSpan] = []
    places = _places(tokenizer, messages[: turns[-1] + 1], tools, whole)
    ending, frames = answer_ending(tokenizer), dict[tuple[Any, ...], tuple[str, str]]()
    for turn in turns[:-1]:
        if trained is not None and not trained[turn + system]:
            continue
        message, start = messages[turn], places[turn]
        block, kind = whole[start : places[turn + 1]], _kind(messages, turn)
        before, after = frames.get(kind, ("", ""))
        fits = len(block) >= len(before) + len(after) and block.startswith(before) and block.endswith(after)
        said = block[len(before) : len(block) - len(after)]
        if kind in frames and fits and _says(said, message["content"], message.get("tool_calls") or ()):
            first, last, kept = start + len(before), start + len(block) - len(after) + len(ending), True
        else:
            text, first, last = _as_last(tokenizer, messages[: turn + 1], tools, number=turn + system + 1)
            kept = whole.startswith(text[:last])
            if kept and ending and start <= first < last <= places[turn + 1] and text[:last].endswith(ending):
                frames[kind] = whole[start:first], whole[last - len(ending) : places[turn + 1]]
        answers.append(AnswerSpan(turn=turn + system, begin=first, end=last, kept=kept))
    return whole, [*answers, AnswerSpan(turn=turns[-1] + system, begin=begin, end=end, kept=True)]


def _kind(messages: Sequence[Message], turn: int) -> tuple[Any, ...]:
    """Return the settings that may change the text that a template prints around an answer."""
    message, before = messages[turn], messages[turn - 1]["role"] if turn else ""
    content = message["content"].lstrip()
    thinks = any(content.startswith(begin) for begin, _ in THOUGHTS)
    return before, bool(message.get("tool_calls")), bool(content), thinks


class _Turns(Sequence[Message]):
    """The turns of a conversation from `start` on, which tell `read` the last place that a template knows of.

    After the number of turns, or one counted from the end, it knows of all.
    """

    def __init__(self, turns: Sequence[Message], read: Callable[[int], None], start: int = 0) -> None:
        self._turns, self._read, self._start = turns, read, start

    def __iter__(self) -> Iterator[Message]:
        for place in range(self._start, len(self._turns)):
            self._read(place)
            yield self._turns[place]
        self._read(len(self._turns))

    def __len__(self) -> int:
        self._read(len(self._turns))
        return len(self._turns) - self._start

    def __getitem__(self, place: Any) -> Any:
        own = range(self._start, len(self._turns))
        if isinstance(place, slice) and place.step is None and place.stop is None and (place.start or 0) >= 0:
            return _Turns(self._turns, self._read, min(self._start + (place.start or 0), len(self._turns)))
        if isinstance(place, int) and 0 <= place < len(own):
            self._read(own[place])
            return self._turns[own[place]]
        self._read(len(self._turns))
        return self._turns[self._start :][place]


def _places(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Tools, whole: str) -> Sequence[int]:
    """Return, for each turn and the end, how many characters of `whole` the template prints before it reads that turn.

    All are 0 if it reads all turns first, or if it prints another text when it is run here.
    """
    from transformers.utils.chat_template_utils import _compile_jinja_template

    found, printed, size = list[int](), list[str](), 0

    def read(place: int) -> None:
        found.extend([size] * (place + 1 - len(found)))

    typed: Any = tokenizer
    try:
        known = [dict(tool) for tool in tools] or None
        turns = _Turns([dict(message) for message in messages], read)
        given = {**typed.special_tokens_map, "date_string": FIXED_DATE, "tools": known, "documents": None}
        template = _compile_jinja_template(_dated_template(tokenizer, tools))
        for piece in template.generate(messages=turns, add_generation_prompt=False, **given):
            printed.append(piece)
            size += len(piece)
    except Exception:  # it is a program that comes with the model, and may raise anything
        found.clear()
    if len(found) <= len(messages) or not whole.startswith("".join(printed)[: found[-2]]):
        return [0] * (len(messages) + 1)
    return found


def _check_printed(messages: Sequence[Message], whole: str, *, first: int) -> None:
    """Raise UnscorableSampleError if a turn's text is not in the `whole` text, as it is or escaped as in JSON."""
    squeezed, place = _squeezed(whole), 0
    for turn, message in enumerate(messages, start=first):
        content = message["content"]
        if message["role"] == "assistant":
            continue
        text = _squeezed(content)
        if (found := squeezed.find(text, place)) >= 0:  # nearly always behind the turn before it
            place = found
            continue
        if text in squeezed:
            continue
        if _squeezed(json.dumps(content, ensure_ascii=False)[1:-1]) not in squeezed:
            cure = f". {_CURE}" if message["role"] == "tool" else ""
            raise UnscorableSampleError(
                f"turn {turn}: the chat template does not print what {message['role']} says{cure}"
            )


def _squeezed(text: str) -> str:
    return "".join(text.split())


def unmarked(text: str) -> str:
    """Return a text without the marks in its control tokens."""
    return text.replace(MARK, "")


def refusal(messages: Sequence[Message], error: Exception) -> UnscorableSampleError:
    """Return the reason to reject a conversation whose template raised `error`."""
    reason = f"the chat template refuses the conversation: {unmarked(str(error)) or type(error).__name__}"
    has_tools = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
    return UnscorableSampleError(f"{reason.rstrip('.')}. {_CURE}" if has_tools else reason)


def _as_last(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Tools, *, number: int
) -> tuple[str, int, int]:
    """Return the text of a conversation that ends with an answer, and where the answer is.

    A tool call may have another frame than a text, such as a channel's name. It then begins where the template asks for
    an answer, and ends with the text.

    number: the number of the answer's turn in the original conversation, for messages.
    """
    asked, answer, calls = messages[:-1], messages[-1]["content"], messages[-1].get("tool_calls") or ()
    frame = _finished_frame(tokenizer, asked, tools)
    try:
        if isinstance(frame, Exception):
            raise frame
        printed = str(render_chat(tokenizer, messages, add_generation_prompt=False, tools=tools))
        begins = [generation_prompt(tokenizer, asked, tools)] if calls else []
    except Exception as error:  # it is a program that comes with the model, and may raise anything
        raise refusal(messages, error) from error
    before, after = frame
    ending = answer_ending(tokenizer)
    # Some templates drop thoughts even from a last answer, so the answer without them is tried, too.
    for text in dict.fromkeys((answer, without_thoughts(answer))):
        for left in dict.fromkeys((before_answer(before, answer), before, *begins)):
            same_end = printed.endswith(after)
            said = printed[len(left) : len(printed) - len(after)] if same_end else printed[len(left) :].rstrip()
            if not (printed.startswith(left) and (same_end or calls) and _says(said, text, calls)):
                continue
            first, rest = before_answer(left, answer), printed[len(left) :]
            whole = printed if text == answer else first + answer.strip().removesuffix(text) + rest
            begin = len(left) if text == answer else len(first)
            # The tokens that end an answer belong to it; without them it ends before the trailing white space.
            has_ending = same_end and ending and after.startswith(ending)
            return whole, begin, len(whole) - len(after) + len(ending) if has_ending else len(whole.rstrip())
    what = "prints another answer than the one that is given"
    if calls:
        what = f"does not print its text and its tool calls as they are given. {_CURE}"
    raise UnscorableSampleError(f"turn {number}: the chat template {what}")


def _says(said: str, answer: str, calls: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether `said` is the answer, or has its text and the names of its calls; white space may differ."""
    rest, text = _squeezed(said), _squeezed(answer)
    if not calls:
        return rest == text
    for part in (text, *(_squeezed(call["function"]["name"]) for call in calls)):
        if part not in rest:
            return False
        rest = rest.replace(part, "", 1)
    return True


def answer_ending(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text that the chat template prints after an answer, up to the dedicated tokens that end it.

    Text after them does not belong to the answer: an eos of the whole text, or the header of a next turn. If they
    include the token that ends a user's turn, the ending stops after it. Without a dedicated token, all text counts but
    trailing white space.
    """
    key = (str(tokenizer.chat_template), str(tokenizer.eos_token), len(tokenizer))
    if key not in _ENDINGS:
        before, after = answer_frame(tokenizer, [{"role": "user", "content": _ASKED}])
        typed: Any = tokenizer
        own = {*typed.all_special_tokens, *typed.get_added_vocab()} - {typed.unk_token}  # it may represent any text
        _ENDINGS[key] = _up_to_end([str(token) for token in own if token], before.rpartition(_ASKED)[2], after)
    return _ENDINGS[key]


def _up_to_end(tokens: Sequence[str], before: str, after: str) -> str:
    first = {text.find(token): token for token in tokens for text in [before] if token in text}
    of_user = first[min(first)] if first else None
    place = min((after.find(token) for token in tokens if token in after), default=None)
    if place is None:
        return after.rstrip()
    while token := max((token for token in tokens if after.startswith(token, place)), key=len, default=""):
        place += len(token)
        if token == of_user:
            break
    return after[:place]


def own_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the first run of `ids` that are dedicated tokens: special or added ones, which no text makes."""
    typed: Any = tokenizer
    # The unknown token may represent any text.
    known: set[int] = {*typed.all_special_ids, *typed.get_added_vocab().values()} - {typed.unk_token_id}
    first = next((place for place, token in enumerate(ids) if token in known), len(ids))
    return tuple(takewhile(known.__contains__, ids[first:]))


def rendering_settings(template: str, change: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """Return the settings that decide a prompt besides the template's text.

    For 'chat' these are the fixed date, since a template may print today's, and the change that an answer's frame makes
    to the generation prompt. Other templates have neither.

    Args:
        template: of scoring or evaluation.
        change: frame_change of the model that is asked.
    """
    if template != "chat":
        return {}
    return {"chat template's date": FIXED_DATE} | ({"chat template's frame": list(change)} if any(change) else {})
