"""Define the usable records: a sample of the long data or a short conversation, with digest and shard."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal, Self

SHORTEST_DOCUMENT = 32
"""Characters of the shortest context that is a document: a shorter one is a label such as `Passage:`."""


def text_digest(parts: Sequence[str]) -> str:
    """Return the SHA-256 (hex) of the parts; lengths are hashed too, so that no two lists of parts share a digest."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


# The control tokens of the known families of models. The data are read without a tokenizer, so a text such as `<s>`
# counts for every model. Pipes or a TOKEN within angle brackets are a form that all of them have in common.
_CONTROL_TOKEN = re.compile(
    r"<(?:[|｜][^\s<>]{1,60}>|[^\s<>|｜]{1,60}[|｜]>|[A-Z]{2,20}_TOKEN>|/?s>"
    r"|(?:unk|pad|bos|eos|mask|cls|sep|sop|eop|eod|eot|eoh|eoa|image|video|audio|UNK|PAD|CLS|SEP|MASK)>"
    r"|(?:start|end|begin)_of_[a-z]{1,20}>|(?:extra_id|mask|unk|reserved|SPECIAL|TOKENS_UNUSED)_\d{1,5}>"
    r"|(?:unused|madeupword)\d{1,5}>|seed:[a-z_]{1,30}>|(?:image|audio)_soft_token>"
    r"|(?:fim_[a-z]{1,10}|repo_name|reponame|file_sep|filename|gh_stars|empty_output)>"
    r"|(?:issue|jupyter|commit|pr)_[a-z_]{1,30}>)"
    r"|\[(?:\|\w{1,40}\||/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CONTENT|MODEL_SETTINGS)"
    r"|TOOL_CALLS|ARGS|CALL_ID|IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|TRANSCRIBE|PREFIX|MIDDLE|SUFFIX"
    r"|CLS|SEP|PAD|MASK|UNK|BOS|EOS|gMASK|sMASK|unused\d{1,4}|UNUSED_TOKEN_\d{1,4})\]"
    r"|\]~!?b\[|\[e~\["
)
_AS_TEXT = "control tokens are text"


def spelled_control_tokens(texts: Iterable[str]) -> list[str]:
    """Return the control tokens of known families of models that these texts spell, each once, sorted."""
    return sorted({token for text in texts for token in _CONTROL_TOKEN.findall(text)})


@dataclass(frozen=True, kw_only=True)
class Beginnings:
    """Digests by which the index finds a conversation that begins another one.

    turns: the number of turns.
    ends: for each answer to the user, 64 bits of the digest of all turns up to it; the last is that of the sample.
    unlearned: for each of `ends`, the bits of the assistant turns up to it that have no loss; empty if all have.
    """

    turns: int
    ends: tuple[int, ...]
    unlearned: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample (c, x; y) of the paper: `context`, `instruction` and target `response`.

    conversation: the turns of several exchanges up to the response, as JSON text of `{"messages": [...],
        "tools": [...]}` in OpenAI's form. A turn without loss has `"trained": false`. Empty for one exchange.
    """

    sample_id: str
    source: str
    context: str
    instruction: str
    response: str
    conversation: str = ""
    border: str = field(default="given", compare=False)
    """The rule that found the border of context and instruction: a user_turns.Border; "none" for an empty context."""
    beginnings: Beginnings | None = field(default=None, compare=False, repr=False)
    instructions: int = field(default=0, compare=False)
    """The characters at the context's start that are the system text and the definitions of tools."""

    @cached_property
    def digest(self) -> str:
        """Return the content digest, by which unchanged samples keep their scores.

        Early releases read the control tokens that a text spells as control tokens. So samples with some have another
        digest than there, and are scored again.
        """
        conversation = (self.conversation,) if self.conversation else ()
        as_text = (_AS_TEXT,) if self.control_tokens else ()
        return text_digest((self.context, self.instruction, self.response, *conversation, *as_text))

    @cached_property
    def control_tokens(self) -> list[str]:
        """Return the control tokens that the texts spell, see `spelled_control_tokens`."""
        return spelled_control_tokens((self.context, self.instruction, self.response, self.conversation))

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the sample of a row of `raw_long_sft` or `selected_subset`, whose other columns are left out."""
        texts = {name: row[name] for name in ("sample_id", "source", "context", "instruction", "response")}
        return cls(**texts, conversation=row.get("conversation") or "")

    @property
    def user_turn(self) -> str:
        """Return document, blank line and instruction: LongAlign's form, which models.prompt.chat_frame scores."""
        return f"{self.context}\n\n{self.instruction}" if self.context else self.instruction

    @property
    def lengths(self) -> tuple[int, int]:
        """Return the characters of all texts, and of those outside the context."""
        tail = len(self.instruction) + len(self.response)
        return len(self.context) + tail, tail


def read_conversation(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages and the tools of `Sample.conversation`.

    JSON text in the arguments of a tool call becomes its value, because most chat templates expect that. Arguments that
    are nested too deeply stay text.
    """
    content = json.loads(text)
    for message in content["messages"]:
        for call in message.get("tool_calls") or ():
            with suppress(TypeError, ValueError, RecursionError):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return content["messages"], content.get("tools") or []


Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One message of a conversation.

    trained: false if the data exclude it from the loss.
    tool_calls: the calls of an assistant turn in OpenAI's form, with the arguments as JSON text.
    name, call_id: the tool and the call that a tool turn answers; empty if the data lack them.
    """

    role: Role
    content: str
    trained: bool = True
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    name: str = ""
    call_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Turns in order: an optional system turn, then user and assistant in turn, ending with the assistant."""

    own_id: str | None
    source: str
    turns: tuple[Turn, ...]

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 (hex) of roles and contents, and of the places of answers without loss, if any.

        As with Sample.digest, a conversation that spells control tokens has another digest than in early releases.
        """
        return text_digest([*self._parts, *([_AS_TEXT] if self.control_tokens else [])])

    @property
    def _parts(self) -> list[str]:
        parts = [part for turn in self.turns for part in (turn.role, turn.content)]
        flagged = [str(place) for place, turn in enumerate(self.turns) if turn.role == "assistant" and not turn.trained]
        return [*parts, *(["without loss", ",".join(flagged)] if flagged else [])]

    @cached_property
    def control_tokens(self) -> list[str]:
        """Return the control tokens that the texts spell, see `spelled_control_tokens`."""
        return spelled_control_tokens(turn.content for turn in self.turns)

    @property
    def sample_id(self) -> str:
        """Return the record's id, else 128 bits of its content's digest."""
        return self.own_id or text_digest(self._parts)[:32]

    @property
    def lengths(self) -> tuple[int, int]:
        """Return the characters of all texts twice, since a conversation has no context."""
        total = sum(len(turn.content) for turn in self.turns)
        return total, total


@dataclass(frozen=True, kw_only=True)
class Reject:
    """A sample that cannot be used, and the reason.

    short_of_memory: another device may have enough. refused: by a server; another one may accept it.
    """

    sample_id: str
    reason: str
    short_of_memory: bool = False
    refused: bool = False

    @property
    def may_pass(self) -> bool:
        """Return whether another device or server may succeed, which changes no result; see Asset.means."""
        return self.short_of_memory or self.refused


def shard_of(sample_id: str, shards: int) -> int:
    """Return a stable hash of the id modulo `shards`, equal in every process and on every machine."""
    # By the id and not by the place: a new record then moves no other to another shard. `hash` of a text differs
    # between processes.
    return (
        int.from_bytes(hashlib.sha256(sample_id.encode("utf-8", errors="surrogatepass")).digest()[:8], "big") % shards
    )


def shard_keys(shards: int) -> list[str]:
    """Return the partition keys, zero-padded so that they sort: 16 shards are '00' to '15'."""
    return list(_shard_keys(shards))


@cache
def _shard_keys(shards: int) -> tuple[str, ...]:
    # Cached, since callers ask once per shard, of which there may be thousands.
    width = len(str(shards - 1))
    return tuple(f"{shard:0{width}d}" for shard in range(shards))
