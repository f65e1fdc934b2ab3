"""Perplexity of documents by length (LADM, Fig. 4): the first 2k, 4k ... tokens of the same documents."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

from pydantic import Field

from gateau_dagster.config.values import LONGEST
from gateau_dagster.data.sample import Reject
from gateau_dagster.evaluation.benchmark import Benchmark
from gateau_dagster.evaluation.grading import measured
from gateau_dagster.evaluation.long_texts import (
    LongTextsOptions,
    check_texts,
    long_texts,
    no_memory,
    texts_settings,
    token_ids,
    token_nlls,
)
from gateau_dagster.evaluation.materials import Materials
from gateau_dagster.evaluation.scored import Measured, Scored

TEXTS = "evaluation.text_perplexity.texts"


class TextPerplexityOptions(LongTextsOptions):
    """Which documents are read, and how far."""

    lengths: list[Annotated[int, Field(ge=2, le=LONGEST)]] = Field(
        default=[2048, 4096, 8192, 16_384, 32_768],
        min_length=1,
        description="Tokens; documents with fewer than the most are left out, so that all lengths have the same ones.",
    )


def _measure(materials: Materials, name: str, options: TextPerplexityOptions) -> Measured:
    """exp of the mean NLL of each length's tokens, all lengths from one pass over the longest: a model looks back only.

    Which documents are long enough the base model's tokenizer says; each model reads them with its own.
    """
    lengths = sorted({*options.lengths})
    texts = long_texts(materials, options, TEXTS, tokens=lengths[-1])
    loaded, rows, rejected = materials.model(name), [], []
    for done, text in enumerate(texts, start=1):
        ids = token_ids(loaded.tokenizer, text.text, most=lengths[-1])
        nlls = token_nlls(loaded, ids)
        for length in lengths:
            question = f"{text.name}/{length}"
            if nlls is None:
                rejected.append(no_memory(question, len(ids)))
            elif len(ids) < length:
                rejected.append(Reject(sample_id=question, reason=f"{loaded.name} makes {len(ids)} tokens of it"))
            else:
                rows.append((question, str(length), math.exp(nlls[: length - 1].mean())))
        materials.progress(done, len(texts), "documents", name)
    return measured(rows, rejected)


BENCHMARK = Benchmark(
    name="text_perplexity",
    title="Perplexity by length",
    description="Perplexity of the first tokens of long documents, by how many tokens are read.",
    options=TextPerplexityOptions,
    settings=partial(texts_settings, place=TEXTS),
    check=partial(check_texts, place=TEXTS),
    scored=Scored(unit="PPL", higher=False, by_base=True, groups="length", measure=_measure),
)
