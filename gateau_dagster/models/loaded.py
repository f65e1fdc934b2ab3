"""Define a loaded model, and count the work that it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A causal language model ready to score: in evaluation mode, without gradients, on `device`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    window: int | None  # tokens; ModelConfig.window, else the checkpoint's own; None: the architecture has no limit
    device: torch.device  # the input's device; with device_map the other layers may be elsewhere
    name: str  # as written in the configuration
    opening: str = ""  # text before every scoring prompt (ModelConfig.opening)


@dataclass(kw_only=True)
class ForwardWork:
    """Tokens through a model and their FLOPs, added up as batches are done. added: called after each addition."""

    tokens: int = 0
    flops: float = 0.0
    added: Callable[[], object] | None = None

    def add(self, tokens: int, flops: float) -> None:
        """Add one batch."""
        self.tokens += tokens
        self.flops += flops
        if self.added is not None:
            self.added()


@dataclass(kw_only=True)
class Meter:
    """The cost of scoring so far, by table; theta_B's full pass counts for `perplexity` if that table is scored."""

    perplexity: ForwardWork = field(default_factory=ForwardWork)
    cam: ForwardWork = field(default_factory=ForwardWork)
