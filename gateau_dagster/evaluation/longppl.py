"""LongPPL (Fang et al. 2024): perplexity of only those tokens that a long context makes likely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from gateau_dagster.config.values import LONGEST
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.evaluation.benchmark import MODELS, Materials, Measured
from gateau_dagster.evaluation.long_texts import (
    LongText,
    LongTextsBenchmark,
    LongTextsOptions,
    or_reject,
    perplexity,
    token_ids,
)
from gateau_dagster.scoring.response_perplexity import GAIN, LEAST, key_tokens, short_context_nlls, token_nlls

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel


class LongPplOptions(LongTextsOptions):
    """The documents to read, and which of their tokens count."""

    length: int = Field(default=32_768, ge=3, le=LONGEST, description="Tokens of a document that are read.")
    short: int = Field(default=4096, ge=2, le=LONGEST, description="Tokens of the short context, at least.")
    step: int = Field(
        default=1024,
        ge=1,
        le=LONGEST,
        description="Tokens that share the beginning of their short context; it grows by at most as many.",
    )
    gain: float = Field(
        default=GAIN, description="A token counts where the long context makes its log-probability higher by more."
    )
    least: float = Field(
        default=LEAST, le=0, description="A token counts if its log-probability in the long context also exceeds this."
    )

    @model_validator(mode="after")
    def _nested(self) -> LongPplOptions:
        if not self.step < self.short < self.length:
            raise GateauError("evaluation.length", "step must be below short, and short below length")
        return self


def _chosen(loaded: LoadedModel, text: LongText, options: LongPplOptions) -> npt.NDArray[np.bool_]:
    """Return the mask of the key tokens, [n-1]. Raises UnscorableSampleError where there are none."""
    long = token_nlls(loaded, text.ids)
    perplexity(long)  # raises for values that are not finite, which would have no key token
    short = short_context_nlls(loaded, text.ids, short=options.short, step=options.step)
    keys = key_tokens(long, short, gain=options.gain, least=options.least)
    if not keys.any():
        raise UnscorableSampleError("no token of it gains by the long context")
    return keys


def _value(loaded: LoadedModel, text: LongText, keys: npt.NDArray[np.bool_]) -> float:
    """Return exp of the mean NLL of the key tokens; as published, <bos> is left out here, but not in `_chosen`.

    Raises UnscorableSampleError.
    """
    if token_ids(loaded.tokenizer, text.text, most=len(text.ids)) != text.ids:
        raise UnscorableSampleError(f"{loaded.name} splits it into other tokens than the base model")
    before = int(text.ids[0] == loaded.tokenizer.bos_token_id)
    return perplexity(token_nlls(loaded, text.ids[before:])[keys[before:]])


class LongPpl(LongTextsBenchmark):
    """LongPPL of any text files."""

    name = "longppl"
    title = "LongPPL"
    description = "Perplexity of the tokens of long documents that the base model needs the long context for."
    code_version = "3"
    options: LongPplOptions

    def longest(self) -> tuple[str, int]:
        return "length", self.options.length

    def measure(self, materials: Materials, variant: str) -> Measured:
        texts = self.texts(materials)
        keys = [*self._base_keys(materials, variant, texts)]
        loaded, rows = materials.model(variant), []
        for done, (text, chosen) in enumerate(zip(texts, keys, strict=True), start=1):
            find = partial(_value, loaded, text)
            value = chosen if isinstance(chosen, Reject) else or_reject(text.name, partial(find, chosen))
            rows.append((text.name, "all", value))
            materials.progress((len(texts) + done) / 2, len(texts), "documents", variant)
        return Measured.of(rows)

    def _base_keys(
        self, materials: Materials, variant: str, texts: Sequence[LongText]
    ) -> Iterator[npt.NDArray[np.bool_] | Reject]:
        """Yield the key tokens of each text by the base model, so that every variant is measured on the same ones."""
        base = materials.model(MODELS[0])  # released when this ends, before the variant is loaded
        for done, text in enumerate(texts, start=1):
            yield or_reject(text.name, partial(_chosen, base, text, self.options))
            materials.progress(done / 2, len(texts), "documents", f"{variant}: tokens that count")
