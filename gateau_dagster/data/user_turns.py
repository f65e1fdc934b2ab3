"""Split a user turn into context and instruction, and name the rule that found the border.

The rules are in the order in which they are tried. A text is long if it has `_LONG` characters or more.

| border | when | context | instruction |
|---|---|---|---|
| label | a document in tags (`<document>…</document>`), or a last label such as `Question:` without a blank line | the text before the instruction | the text after the tags, or from the label on |
| instruction first | tags or a label of a document (`### Input:`) follow the instruction, and nothing asks after it | the document | the text before it, and a cue such as `### Response:` after it |
| instruction first | the first paragraph is a request, and the last one is very long and no request | all after the first paragraph | the first paragraph |
| last blank line | there is one, and it has text on both sides | the text before it | the text after it |
| uncertain | as before, but the text looks as if the border is elsewhere | the text before it | the text after it |
| last line | no blank line; the last line is a request after a long text | the lines before | the last line |
| instruction first | no blank line; the first line is a request before a long text that does not end in one | the lines after it | the first line |
| none | no other rule applies | empty | the whole turn |

A request is short, and ends in a question mark or begins as a command does ("Summarise …"). At the beginning of a turn
it may end in a colon instead. A label overrides a blank line only if that is inside the document, or before it.
"""  # noqa: E501 - a table's rows

# Why rules: the border decides what is context, and so every score. A model might find it more often, at the price of a
# pass for each sample, and another version would draw other borders. The rule is kept with each sample, so that `gateau
# validate` can count the uncertain ones. Where the data have context and instruction as fields, no rule is needed, and
# that is better.

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Border = Literal[
    "given", "last blank line", "label", "last line", "instruction first", "uncertain", "none", "conversation"
]
"""The rule that found the border of context and instruction.

given: they are separate fields. conversation: the context holds the turns beside the last request and the response.
"""

_LINE_END = r"(?>\r{1,2}\n|[\n\r\v\x85\u2028\u2029])"
_SPACE = r"(?:[^\S\n\r\v\x85\u2028\u2029]|[\u200b-\u200d\u2060\ufeff])"
# A run of blank lines with the line end before it; U+2029 separates paragraphs by itself.
_BLANK_LINES = re.compile(f"{_LINE_END}(?:{_SPACE}*+{_LINE_END})++|\u2029")
_LINE_ENDS = re.compile(_LINE_END)
_LONG, _VERY_LONG, _SHORT = 200, 2000, 600  # characters
_FAR_LONGER = 4  # times
_SEARCHED = 4000  # characters of each end of a turn that are searched for labels

_DOCUMENT = (
    "(?:documents?|docs?|context|passages?|articles?|text|input|source text|background|transcript|paper|report|story"
    "|book|excerpt)"
)
_ASKING = "(?:user )?(?:question|query|instructions?|task|request)"
_CUE = "(?:your |final )?(?:response|answer|output|assistant|summary)"
_OPENING_TAG = re.compile(rf"<({_DOCUMENT})(?:\s[^<>]*)?>", re.IGNORECASE)
_WEB_PAGE = re.compile(r"<(?:!doctype|\?xml|html|head|body|div|svg)\b", re.IGNORECASE)
_LABEL = re.compile(
    rf"(?:\A|(?<=[\n\r\v\x85\u2028\u2029]))[ \t]*(?:#{{1,6}}[ \t]*|\*\*|\[)?"
    rf"(?:(?P<document>{_DOCUMENT})|(?P<asking>{_ASKING})|(?P<cue>{_CUE}))(?:\*\*|\])?[ \t]*[:：]",
    re.IGNORECASE,
)
_LABEL_IN_LINE = re.compile(rf"(?<=\s){_ASKING}\s*[:：]", re.IGNORECASE)
_QUESTION_THEN_DOCUMENT = re.compile(
    rf"\s*{_ASKING}\s*[:：][^\n\r]{{1,{_SHORT}}}?\s(?={_DOCUMENT}\s*[:：])", re.IGNORECASE
)
_COMMANDS = (
    "summari[sz]e write list explain describe translate answer analy[sz]e identify extract find give provide compare "
    "rewrite create generate classify complete continue discuss evaluate tell name read determine outline paraphrase "
    "return count choose select correct fix convert suggest draft highlight state show calculate compute review "
    "critique simplify edit proofread quote cite propose design implement refactor use using based according given "
    "what who whom whose when where which why how"
)
_COMMAND = re.compile(
    rf"[\W_]*(?:(?:please|kindly|now|first|finally|then|next)[,\s]+)*(?:{'|'.join(_COMMANDS.split())}"
    r"|(?:can|could|would|will) you|i (?:want|need|would like)|your task|in (?:one|two|three|a few|\d+) \w+"
    r"|请|總結|总结|概括|根据|根據|翻译|解释|列出|写)(?:\b|(?<=[\u4e00-\u9fff]))",
    re.IGNORECASE,
)
_CLOSING = "*_\"'”’»)]} \t"


class UserTurn(NamedTuple):
    """A user turn in its two parts."""

    context: str
    instruction: str
    border: Border


def split_user_turn(content: str) -> UserTurn:
    """Return context and instruction of a user turn, by the rules of this module.

    No character other than white space is lost or changed. Take a turn without a label whose blank lines are all
    `\\n\\n`, and whose last one has text on both sides. It is split there exactly: `context + "\\n\\n" + instruction`.
    """
    body = content.rstrip()
    # White space at the end of a turn is no blank line.
    end = len(body) if "\n\n" in content[len(body) :] else len(content)
    blank = _last_blank_lines(body)
    labelled = _labelled(content[:end], blank)
    if labelled is not None:
        return labelled
    if blank is None or not content[: blank[0]].strip():
        place = blank[0] if blank is not None and content.startswith("\n\n", blank[0]) else -2
        found = _without_blank_line(content[blank[1] if blank else 0 : end])
        return found or UserTurn(content[: max(0, place)], content[place + 2 : end] if body else "", "none")
    context, instruction = content[: blank[0]], content[blank[1] : end]
    first = _BLANK_LINES.search(body, len(body) - len(body.lstrip()))
    assert first is not None
    opening = body[: first.start()]
    if not is_request(opening, colon=True):
        return UserTurn(context, instruction, "uncertain" if _is_doubtful(context, instruction) else "last blank line")
    if len(instruction) >= max(_VERY_LONG, _FAR_LONGER * len(opening)) and not _asks(instruction):
        return UserTurn(content[first.end() : end], opening, "instruction first")
    doubtful = _is_doubtful(context, instruction) or (len(instruction) >= _LONG and not _asks(instruction))
    return UserTurn(context, instruction, "uncertain" if doubtful else "last blank line")


def is_request(text: str, *, colon: bool = False) -> bool:
    """Return whether a text is short and asks for something; with `colon`, also where it announces what follows."""
    text = text.strip()
    if not text or len(text) > _SHORT:
        return False
    ends = text.rstrip(_CLOSING)[-1:]
    return ends in ("?", "？", "؟") or (colon and ends in (":", "：")) or _COMMAND.match(text) is not None


def _asks(text: str) -> bool:
    lines = [line for line in _LINE_ENDS.split(text.strip()) if line.strip()]
    return any(is_request(line[-_SHORT:]) or is_request(line[:_SHORT]) for line in (lines[0], lines[-1]))


def _is_doubtful(context: str, instruction: str) -> bool:
    """Return whether the last blank line is an unlikely border: a cue follows it, or most of the text."""
    cue = _LABEL.match(instruction)
    if cue is not None and cue["cue"] and len(instruction) < cue.end() + 20:
        return True
    return len(instruction) >= _VERY_LONG and len(instruction) > len(context)


def _last_blank_lines(body: str) -> tuple[int, int] | None:
    """Return where the context ends and the instruction begins; None without a blank line."""
    place = body.rfind("\n\n")
    found = (place, place + 2) if place >= 0 else None
    for match in _BLANK_LINES.finditer(body, place + 2 if found else 0):
        if found is None or body[found[1] : match.start()].strip():
            found = match.start(), match.end()
    return found


def _labelled(content: str, blank: tuple[int, int] | None) -> UserTurn | None:
    """Return the parts that tags or labels of a document mark; None without any, or if a blank line is right."""
    span = _tagged(content) or _after_instruction(content, blank)
    if span is None or (blank is not None and blank[0] >= span[1] and content[span[1] : blank[0]].strip()):
        return None
    before, document, after = content[: span[0]], content[span[0] : span[1]], content[span[1] :]
    is_cue = _LABEL.match(after.lstrip())
    if after.strip() and not (is_cue is not None and is_cue["cue"] and before.strip()):
        if blank is not None and blank[0] >= span[1]:
            return None  # the blank line after the document
        return UserTurn(content[: span[1]], after.lstrip(), "label")
    if not before.strip():
        return None
    instruction = "\n\n".join(part for part in (before.strip(), after.strip()) if part)
    return UserTurn(document.strip(), instruction, "instruction first")


def _tagged(content: str) -> tuple[int, int] | None:
    """Return the span of a document in tags that is most of a turn."""
    opening = _OPENING_TAG.search(content, 0, _SEARCHED)
    if opening is None:
        return None
    end = content.rfind(f"</{opening[1]}>")
    end = end + len(opening[1]) + 3 if end >= 0 else -1
    rest = content[: opening.start()] + content[end:]
    if end - opening.start() < len(content) / 2 or not rest.strip() or _WEB_PAGE.search(rest):
        return None
    return opening.start(), end


def _after_instruction(content: str, blank: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the span of a document whose label follows that of an instruction, and which is most of a turn."""
    labels = [*_LABEL.finditer(content, 0, _SEARCHED)]
    asking = next((label for label in labels if label["asking"]), None)
    start = next(
        (label.start() for label in labels if label["document"] and asking and label.start() > asking.end()), -1
    )
    if start < 0 and (line := _QUESTION_THEN_DOCUMENT.match(content)):
        start = line.end()
    if start < 0:
        return None
    last = [*_LABEL.finditer(content, max(start + 1, len(content) - _SEARCHED))]
    end = last[-1].start() if last and last[-1]["cue"] and len(content) - last[-1].end() < _LONG else len(content)
    if end - start < len(content) / 2 or any(label["asking"] for label in last):
        return None
    if blank is not None and start < blank[0] < end and is_request(content[blank[1] : end]):
        return None  # a question without a label follows the document
    return start, end


def _without_blank_line(content: str) -> UserTurn | None:
    """Return the parts of a turn without a blank line; None if no border is clear."""
    tail = max(0, len(content) - _SEARCHED)
    labels = [match for match in _LABEL.finditer(content, tail) if match["asking"]]
    head = _LABEL.match(content.lstrip())
    if not labels and head is not None and head["document"]:
        labels = [*_LABEL_IN_LINE.finditer(content, tail)]
    if labels and len(context := content[: labels[-1].start()].rstrip()) > len(content) / 2:
        return UserTurn(context, content[labels[-1].start() :], "label")
    ends = [match.span() for match in _LINE_ENDS.finditer(content.strip())]
    if not ends:
        return None
    text = content.strip()
    first, last = text[: ends[0][0]], text[ends[-1][1] :]
    if is_request(last) and ends[-1][0] >= max(_LONG, _FAR_LONGER * len(last)):
        return UserTurn(text[: ends[-1][0]], last, "last line")
    rest = text[ends[0][1] :]
    if is_request(first, colon=True) and not _asks(rest) and len(rest) >= max(_LONG, _FAR_LONGER * len(first)):
        return UserTurn(rest, first, "instruction first")
    return None
