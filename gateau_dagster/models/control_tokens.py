"""Read the control tokens that texts of the data spell out, such as `<|im_end|>`, as text.

Only the product and the chat template put control tokens into a prompt. A document, an instruction or an answer may
spell one, too. Read as a control token, it would end a turn in mid-sentence, or begin one that nobody wrote.

A text of the data is read by a twin of the tokenizer (`as_text`). The twin has the same vocabulary and rules, but its
control tokens have names that no text spells. A chat template prints texts and control tokens into one text. So
`marked` puts a mark into each control token of the data before the template runs, and `encoded` tells them apart by it.
"""

from __future__ import annotations

import copy
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gateau_dagster.models.chat_rendering import MARK, THOUGHTS, render_chat, unmarked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PROBE = ("GATEAUPROBEFIRST", "GATEAUPROBEANSWER", "GATEAUPROBESECOND")
_PREFIX = 3  # characters by which the alternatives of a pattern are grouped


def any_of(texts: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that finds the longest of these texts. Some vocabularies have thousands of control tokens."""
    longest = sorted(set(texts), key=lambda text: (-min(len(text), _PREFIX), text[:_PREFIX], -len(text)))
    groups = []
    for prefix, group in groupby(longest, key=lambda text: text[:_PREFIX]):
        rests = "|".join(re.escape(text[_PREFIX:]) for text in group)
        groups.append(f"{re.escape(prefix)}(?:{rests})")
    return re.compile("|".join(groups) or "(?!)")


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the texts of the tokens that only the product and the chat template may write, sorted.

    These are the special tokens, and the other added tokens that the chat template puts around plain turns, such as
    DeepSeek's `<｜User｜>`. Added tokens such as `<tool_call>` are not among them, and neither are those of thoughts:
    answers of the data write them on purpose.
    """
    return _control(tokenizer).tokens


def spelled(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """Return the control tokens of a tokenizer that a text spells, each once, in order."""
    return list(dict.fromkeys(_control(tokenizer).pattern.findall(text)))


def inseparable(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[str]) -> list[str]:
    """Return those of some control tokens that a tokenizer cannot read as text.

    It makes a control token of them, which may be the unknown token, or nothing.
    """
    known = _control(tokenizer)
    control, read = {*known.ids.values()}, {token: _called(known.twin, token, False)[0] for token in tokens}
    return [token for token, ids in read.items() if len(token) < 2 or not ids or control & {*ids}]


def as_text(tokenizer: PreTrainedTokenizerBase, *texts: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer with which these texts of the data are read: its twin if they spell a control token."""
    control = _control(tokenizer)
    return control.twin if any(control.pattern.search(text) for text in texts) else tokenizer


def marked(tokenizer: PreTrainedTokenizerBase, value: Any) -> Any:
    """Return texts of the data with a mark in each control token, so that a chat template can print them.

    Args:
        tokenizer: whose control tokens are marked.
        value: a text, or a list or mapping of values, such as a message or a tool; keys are marked, too.
    """
    return _marked(_control(tokenizer).divisible, value)


def _marked(pattern: re.Pattern[str], value: Any) -> Any:
    if isinstance(value, str):
        while pattern.search(value):  # a mark may leave a shorter token beside it
            value = pattern.sub(lambda match: f"{match[0][0]}{MARK}{match[0][1:]}", value)
        return value
    if isinstance(value, Mapping):
        return {_marked(pattern, key): _marked(pattern, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(pattern, each) for each in value]
    return value


def encoded(
    tokenizer: PreTrainedTokenizerBase, text: str, *, rendered: bool, offsets: bool = False
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the token ids of a text without special tokens, and their places in it if `offsets`.

    Args:
        tokenizer: a fast one for `offsets`.
        text: text of the data, or with `rendered` what a chat template printed of `marked` texts. Places count marks.
        rendered: whether the control tokens without a mark are control tokens.
        offsets: whether to return the first and one-past-last character of each token.
    """
    if not rendered:
        return _called(as_text(tokenizer, text), text, offsets)
    if MARK not in text:
        return _called(tokenizer, text, offsets)
    control = _control(tokenizer)
    if not tokenizer.is_fast:
        return control.slow_ids(tokenizer, text), []
    named, starts = control.named(text)
    ids, places = _called(control.twin, named, offsets)
    plain, marks = [start for start, _ in starts], [place for _, place in starts]

    def place_of(character: int) -> int:
        part = bisect_right(plain, character) - 1
        return marks[part] + character - plain[part]

    return ids, [(place_of(begin), place_of(end)) for begin, end in places]


class KnownTokenizer:
    """A fast tokenizer that reads texts of the data without transformers, which takes seconds to import.

    Texts that spell a control token are read by the tokenizer itself, which is opened then.

    Args:
        control: its `control_tokens`.
        backend: its pipeline, from `backend_tokenizer.to_str()`.
        open_itself: returns it.
    """

    is_fast = True

    def __init__(
        self, control: Sequence[str], backend: str, open_itself: Callable[[], PreTrainedTokenizerBase]
    ) -> None:
        from tokenizers import Tokenizer

        self._control, self._backend, self._open = any_of(control), Tokenizer.from_str(backend), open_itself
        self._backend.no_truncation()
        self._backend.no_padding()

    def __call__(self, text: str, **_: object) -> dict[str, Any]:
        """Return `input_ids` and `offset_mapping` of a text without special tokens."""
        if self._control.search(text):
            ids, places = encoded(self._open(), text, rendered=False, offsets=True)
        else:
            found = self._backend.encode(text, add_special_tokens=False)
            ids, places = found.ids, found.offsets
        return {"input_ids": ids, "offset_mapping": places}


def backend_of(tokenizer: Any) -> str | None:
    """Return the pipeline of a tokenizer for `KnownTokenizer`; None if its class does more than run the pipeline."""
    library = "transformers.tokenization_utils"
    ours = [kind for kind in type(tokenizer).__mro__ if not kind.__module__.startswith(library)]
    more = any({"__call__", "_encode_plus"} & vars(kind).keys() for kind in ours if kind is not object)
    return (
        tokenizer.backend_tokenizer.to_str()
        if tokenizer.is_fast and not more and not tokenizer.split_special_tokens
        else None
    )


def _called(tokenizer: Any, text: str, offsets: bool) -> tuple[list[int], list[tuple[int, int]]]:
    options = {"return_offsets_mapping": True} if offsets else {}
    found = tokenizer(text, add_special_tokens=False, verbose=False, **options)
    return found["input_ids"], found["offset_mapping"] if offsets else []


@dataclass(frozen=True, kw_only=True, eq=False)
class _Control:
    """The control tokens of a tokenizer. template: its chat template when they were found."""

    template: Any
    tokens: tuple[str, ...]
    ids: Mapping[str, int]
    source: Any

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return any_of(self.tokens)

    @cached_property
    def divisible(self) -> re.Pattern[str]:
        """Return the pattern of the tokens that a mark can divide: those of several characters."""
        return any_of([token for token in self.tokens if len(token) > 1])

    @cached_property
    def marks_or_tokens(self) -> re.Pattern[str]:
        return re.compile(f"{MARK}|{self.pattern.pattern}")

    @cached_property
    def names(self) -> dict[str, str]:
        """Return the names of the control tokens in the twin."""
        return {token: f"{MARK}x{number}x" for number, token in enumerate(self.tokens)}

    @cached_property
    def twin(self) -> Any:
        """Return the tokenizer with other names for its control tokens; a slow one splits them by itself."""
        twin = copy.copy(self.source)
        if not twin.is_fast:
            twin.split_special_tokens = True
            return twin
        from tokenizers import Tokenizer

        content = json.loads(twin.backend_tokenizer.to_str())
        content.update(truncation=None, padding=None)
        for added in content["added_tokens"]:
            if added["content"] in self.names:
                added.update(content=self.names[added["content"]], normalized=False)
        _rename_vocabulary(content["model"], self.names)
        backend = Tokenizer.from_str(json.dumps(content))
        moved = [token for token, name in self.names.items() if backend.token_to_id(name) != self.ids[token]]
        assert not moved, f"the twin numbers {moved[:3]} otherwise"
        twin._tokenizer = backend
        return twin

    def named(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """Return a rendered text as the twin reads it, and where its parts start in it and in the rendered text."""
        pieces, starts, size = list[str](), list[tuple[int, int]](), 0

        def add(piece: str, place: int) -> None:
            nonlocal size
            starts.append((size, place))
            pieces.append(piece)
            size += len(piece)

        last = 0
        for match in self.marks_or_tokens.finditer(text):
            add(text[last : match.start()], last)
            if match[0] != MARK:
                add(self.names[match[0]], match.start())
            last = match.end()
        add(text[last:], last)
        return "".join(pieces), starts

    def slow_ids(self, tokenizer: Any, text: str) -> list[int]:
        """Return the ids of a rendered text by a slow tokenizer, which reads the texts between control tokens alone."""
        ids, last = list[int](), 0
        for match in [*self.pattern.finditer(text), None]:
            if part := unmarked(text[last : match.start() if match else len(text)]):
                ids += _called(as_text(tokenizer, part), part, False)[0]
            if match:
                ids.append(self.ids[match[0]])
                last = match.end()
        return ids


def _rename_vocabulary(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Rename tokens in the model of a tokenizer.json, in place, so that it makes none of them from a text."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    else:  # Unigram
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if model.get("merges"):
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        kept = [pair for pair in pairs if not names.keys() & {*pair, "".join(pair)}]
        if len(kept) < len(pairs):
            model["merges"] = kept


_CONTROL: WeakKeyDictionary[Any, _Control] = WeakKeyDictionary()


def _control(tokenizer: PreTrainedTokenizerBase) -> _Control:
    known, template = _CONTROL.get(tokenizer), getattr(tokenizer, "chat_template", None)
    if known is None or known.template != template:
        known = _CONTROL[tokenizer] = _control_of(tokenizer, template)
    return known


def _control_of(tokenizer: Any, template: Any) -> _Control:
    if not hasattr(tokenizer, "added_tokens_decoder"):  # a benchmark may count words with a function
        return _Control(template=template, tokens=(), ids={}, source=None)
    added = {str(token): token.special for token in tokenizer.added_tokens_decoder.values()}
    special = {text for text, is_special in added.items() if is_special or text in tokenizer.all_special_tokens}
    if not tokenizer.is_fast:
        special |= {*map(str, tokenizer.all_special_tokens)}
    frame = _frame(tokenizer) if template and added.keys() - special else ""
    around = {text for text in added.keys() - special if text in frame}
    thoughts = {text for pair in THOUGHTS for text in pair}
    tokens = sorted(text for text in (special | around) - thoughts if text.strip())
    ids = dict(zip(tokens, tokenizer.convert_tokens_to_ids(tokens), strict=True))
    source = copy.copy(tokenizer)  # the weak reference would not end if its value held the tokenizer
    return _Control(template=template, tokens=tuple(tokens), ids=ids, source=source)


def _frame(tokenizer: Any) -> str:
    """Return the text that the chat template prints for two questions and an answer; empty if it refuses them."""
    first, answer, second = _PROBE
    turns = [
        {"role": "user", "content": first},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": second},
    ]
    try:
        return str(render_chat(tokenizer, turns, add_generation_prompt=True))
    except Exception:  # it is a program that comes with the model, and may raise anything
        return ""
