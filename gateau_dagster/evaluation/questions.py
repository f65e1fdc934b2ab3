"""A question of a benchmark, for all engines and judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gateau_dagster.storage.stamp import fingerprint


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Settings of an answer's generation; every field is always sent, so that no engine's default decides.

    temperature: 0 for greedy decoding. stop: texts before which the answer ends.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question: `turns` of the user, each answered before the next one is asked.

    question_id: unique in the benchmark. group: data set, category or cell that it belongs to.
    chat: whether it goes through the tokenizer's chat template where there is one; else the text is continued.
    prefill: the beginning of the answer, given to the model.
    references: right answers. facts: what else grading needs; JSON.
    """

    question_id: str
    group: str
    turns: tuple[str, ...]
    generation: Generation
    system: str = ""
    chat: bool = True
    prefill: str = ""
    references: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return a digest of all that decides the answer; it excludes what only grading reads."""
        asked = asdict(self)
        return fingerprint({name: asked[name] for name in ("turns", "generation", "system", "chat", "prefill")})
