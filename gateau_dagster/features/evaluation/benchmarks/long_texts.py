"""Perplexity of long documents from any text files: by length, and LongPPL.

By length (LADM, Fig. 4): the first 2k, 4k ... tokens of the same documents. LongPPL (Fang et al. 2024): only those
tokens that a long context makes likely.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST, InputAddresses
from gateau_dagster.data.sample import Reject
from gateau_dagster.data.text_corpus import CorpusText, TextFields, read_texts
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.features.evaluation.benchmark import MODELS, Materials, Measured, MeasuredBenchmark
from gateau_dagster.models.model_config import learned_positions
from gateau_dagster.models.prompt import encode
from gateau_dagster.scoring.response_perplexity import (
    GAIN,
    LEAST,
    key_tokens,
    mean_nll_and_perplexity,
    short_context_nlls,
    token_nlls,
)
from gateau_dagster.scoring.sample_stream import rejected

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.models.loaded import LoadedModel


_Found = TypeVar("_Found")

CURE = (
    "give text files, or jsonl, json or parquet files of records with a text, such as the test split of "
    "hf://datasets/hoskinson-center/proof-pile"
)


class LongTextsOptions(Section):
    """The documents to read."""

    texts: InputAddresses | None = Field(
        default=None,
        description="Text files, or records with a text: path, glob, folder, s3:// or hf:// address.",
        examples=["books/*.txt"],
    )
    field: str = Field(default="text", min_length=1, description="Field of a record, with dots for inner fields.")
    documents: int = Field(
        default=100, ge=1, le=1_000_000, description="Number of documents: the first that are long enough."
    )


@dataclass(frozen=True, kw_only=True)
class LongText:
    """A document's first tokens, after `<bos>` if there is one; `text`: the text that they encode."""

    name: str
    text: str
    ids: tuple[int, ...]


def token_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, most: int) -> tuple[int, ...]:
    """Return the first `most` token ids of a text, after `<bos>` if the tokenizer has one."""
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return tuple([*begin, *encode(tokenizer, text)][:most])  # pyright: ignore


def perplexity(nlls: npt.NDArray[np.float64]) -> float:
    """Return exp of the mean NLL. Raises UnscorableSampleError if it is not finite."""
    return mean_nll_and_perplexity(nlls, of="the text")[1]


def or_reject(name: str, find: Callable[[], _Found]) -> _Found | Reject:
    """Return the result of `find`, or a reject with the reason why there is none."""
    try:
        return find()
    except UnscorableSampleError as error:
        return rejected(name, error)


class LongTextsBenchmark(MeasuredBenchmark):
    """A benchmark that reads long documents, each with the same number of tokens."""

    options: LongTextsOptions
    official: ClassVar = {"texts": CURE}
    plain_texts = ("texts",)
    unit = "PPL"
    higher = False
    by_base = True

    @abstractmethod
    def longest(self) -> tuple[str, int]:
        """Return the option that sets the number of tokens to read of a document, and the number."""

    def check_known_models(self) -> None:
        """Raise GateauError if the trained model is known to read fewer tokens."""
        from gateau_dagster.models.model_facts import facts_of

        (option, length), name = self.longest(), self.config.training.model
        known = facts_of(self.config, name).config
        most = None if known is None else learned_positions(known)
        if most is not None and length > most:
            raise GateauError(
                "evaluation.length",
                f"{self.place(option)}: {length} tokens are more than the {most} learned positions of "
                f"models.{name}: give a shorter length, or train a model with computed positions",
            )

    def probe(self, materials: Materials) -> None:
        """Read the first record, which has the same fields as the others."""
        if next(self._read(), None) is None:
            raise GateauError("evaluation.no_text", f"{self.place('texts')}: the files contain no text: {CURE}")

    def texts(self, materials: Materials) -> list[LongText]:
        """Return the first documents that are long enough by the base model's tokenizer.

        Raises GateauError if there is none, or a record holds no text.
        """
        tokenizer, (_, tokens) = materials.base_tokenizer(), self.longest()
        found: list[LongText] = []
        for text in self._read():
            ids = token_ids(tokenizer, text.text, most=tokens)
            if len(ids) == tokens:
                found.append(LongText(name=text.name, text=text.text, ids=ids))
                if len(found) == self.options.documents:
                    break
        if not found:
            raise GateauError(
                "evaluation.no_text",
                f"{self.place('texts')}: no document has {tokens} tokens: lower the longest length, or add longer ones",
            )
        return found

    def _read(self) -> Iterator[CorpusText]:
        files = self.file("texts")
        for text in read_texts(files.find(), TextFields(text=self.options.field), lambda _: None, plain_texts=True):
            if isinstance(text, Reject):
                raise GateauError(
                    "evaluation.no_text",
                    f"{files.place}: {text.sample_id}: {text.reason}. Correct the file, or give others",
                )
            yield text


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
    """Return the mask of the key tokens, [n-1]. Raises UnscorableSampleError if there are none."""
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
