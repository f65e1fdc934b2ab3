"""Perplexity of documents by length (LADM, Fig. 4): the first 2k, 4k ... tokens of the same documents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gateau_dagster.config.values import LONGEST
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.evaluation.benchmark import Materials, Measured
from gateau_dagster.evaluation.long_texts import (
    LongTextsBenchmark,
    LongTextsOptions,
    or_reject,
    perplexity,
    token_ids,
)
from gateau_dagster.models.positions import learned_positions
from gateau_dagster.scoring.response_perplexity import token_nlls

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel


class TextPerplexityOptions(LongTextsOptions):
    """The documents to read, and the numbers of tokens."""

    lengths: list[Annotated[int, Field(ge=2, le=LONGEST)]] = Field(
        default=[2048, 4096, 8192, 16_384, 32_768],
        min_length=1,
        description="Tokens; documents with fewer than the most are left out, so that all lengths have the same ones.",
    )


def _perplexity(loaded: LoadedModel, ids: tuple[int, ...], nlls: npt.NDArray[np.float64], length: int) -> float:
    """Return the perplexity of the first `length` tokens. Raises UnscorableSampleError.

    nlls: of the tokens that the model can read, [m-1].
    """
    if len(ids) < length:
        raise UnscorableSampleError(f"{loaded.name} makes {len(ids)} tokens of it")
    if len(nlls) < length - 1:
        raise UnscorableSampleError(f"{loaded.name} has learned positions for {len(nlls) + 1} tokens only")
    return perplexity(nlls[: length - 1])


class TextPerplexity(LongTextsBenchmark):
    """Perplexity of any text files by length."""

    name = "text_perplexity"
    title = "Perplexity by length"
    description = "Perplexity of the first tokens of long documents, by how many tokens are read."
    code_version = "2"
    options: TextPerplexityOptions
    groups = "length"

    def longest(self) -> tuple[str, int]:
        return "lengths", max(self.options.lengths)

    def measure(self, materials: Materials, variant: str) -> Measured:
        """Return exp of the mean NLL of each length's tokens.

        All lengths come from one pass over the longest, because a model only looks back. The base model's tokenizer
        decides which documents are long enough; each model reads them with its own.
        """
        lengths, texts = sorted({*self.options.lengths}), self.texts(materials)
        loaded, rows = materials.model(variant), []
        most = learned_positions(loaded.model.config)
        for done, text in enumerate(texts, start=1):
            ids = token_ids(loaded.tokenizer, text.text, most=lengths[-1])
            nlls = or_reject(text.name, partial(token_nlls, loaded, ids[:most]))
            for length in lengths:
                value = nlls
                if not isinstance(nlls, Reject):
                    value = or_reject(text.name, partial(_perplexity, loaded, ids, nlls, length))
                rows.append((f"{text.name}/{length}", str(length), value))
            materials.progress(done, len(texts), "documents", variant)
        return Measured.of(rows)
