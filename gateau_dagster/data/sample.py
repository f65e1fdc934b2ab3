"""What a usable record becomes: a sample of the long data or a short conversation; its digest and its shard."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal


def text_digest(parts: Sequence[str]) -> str:
    """SHA-256 (hex) of the parts; lengths are hashed too, so that no two lists of parts share a digest."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """(c, x; y) of the paper: `context`, `instruction` and target `response`."""

    sample_id: str
    source: str
    context: str
    instruction: str
    response: str
    border: str = field(default="given", compare=False)
    """How the border of context and instruction was found: a user_turns.Border, or "none" for an empty context."""

    @cached_property
    def digest(self) -> str:
        """Content digest: unchanged samples keep their scores."""
        return text_digest((self.context, self.instruction, self.response))

    @property
    def lengths(self) -> tuple[int, int]:
        """Characters of all texts, and of those that are no context."""
        tail = len(self.instruction) + len(self.response)
        return len(self.context) + tail, tail


Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One message of a conversation. trained: false where the data say that it is not to be learned."""

    role: Role
    content: str
    trained: bool = True


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Turns in order: an optional system turn, then user and assistant in turn, ending with the assistant."""

    own_id: str | None
    source: str
    turns: tuple[Turn, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of roles and contents, and of the answers without loss where there are some."""
        parts = [part for turn in self.turns for part in (turn.role, turn.content)]
        flagged = [str(place) for place, turn in enumerate(self.turns) if turn.role == "assistant" and not turn.trained]
        return text_digest([*parts, *(["without loss", ",".join(flagged)] if flagged else [])])

    @property
    def sample_id(self) -> str:
        """The record's id, else 128 bits of its content's digest."""
        return self.own_id or self.digest[:32]

    @property
    def lengths(self) -> tuple[int, int]:
        """Characters of all texts, and of those that are no context: a conversation has none."""
        total = sum(len(turn.content) for turn in self.turns)
        return total, total


@dataclass(frozen=True, kw_only=True)
class Reject:
    """A sample that cannot be used, and why.

    short_of_memory: another device may have enough. refused: by a server; another one may take it.
    """

    sample_id: str
    reason: str
    short_of_memory: bool = False
    refused: bool = False

    @property
    def may_pass(self) -> bool:
        """Whether other means may do, which change no result; see Node."""
        return self.short_of_memory or self.refused


def shard_of(sample_id: str, shards: int) -> int:
    """Stable hash of the id modulo `shards`; the same in every process and on every machine."""
    return (
        int.from_bytes(hashlib.sha256(sample_id.encode("utf-8", errors="surrogatepass")).digest()[:8], "big") % shards
    )


def shard_keys(shards: int) -> list[str]:
    """Partition keys, equally wide so that they sort: 16 shards are '00' to '15'."""
    return list(_shard_keys(shards))


@cache
def _shard_keys(shards: int) -> tuple[str, ...]:
    """Asked for once a shard, of which there may be thousands."""
    width = len(str(shards - 1))
    return tuple(f"{shard:0{width}d}" for shard in range(shards))
