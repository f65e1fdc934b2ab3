"""Documents from text files, long enough for every length, and their NLL token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gateau_dagster.config.addresses import InputAddresses
from gateau_dagster.config.base import Section
from gateau_dagster.data.sample import Reject
from gateau_dagster.data.text_corpus import CorpusText, TextFields, read_texts
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.evaluation.benchmark import MeasuredBenchmark
from gateau_dagster.evaluation.question_files import QuestionFiles
from gateau_dagster.models.positions import learned_positions
from gateau_dagster.scoring.response_perplexity import mean_nll_and_perplexity
from gateau_dagster.scoring.sample_stream import rejected

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.evaluation.benchmark import Materials


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
    """A document's first tokens, after `<bos>` where there is one; `text`: the text that they encode."""

    name: str
    text: str
    ids: tuple[int, ...]


def token_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, most: int) -> tuple[int, ...]:
    """Return the first `most` token ids of a text, after `<bos>` where the tokenizer has one."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return tuple([*begin, *ids][:most])  # pyright: ignore


def perplexity(nlls: npt.NDArray[np.float64]) -> float:
    """Return exp of the mean NLL. Raises UnscorableSampleError where it is not finite."""
    return mean_nll_and_perplexity(nlls, of="the text")[1]


def or_reject(name: str, find: Callable[[], _Found]) -> _Found | Reject:
    """Return what `find` returns, or a reject with the reason why it cannot."""
    try:
        return find()
    except UnscorableSampleError as error:
        return rejected(name, error)


class LongTextsBenchmark(MeasuredBenchmark):
    """A benchmark that reads long documents, each with the same number of tokens."""

    options: LongTextsOptions
    unit = "PPL"
    higher = False
    by_base = True

    def longest(self) -> tuple[str, int]:
        """Return the option that decides how many tokens of a document are read, and their number."""
        raise NotImplementedError

    def files(self) -> Sequence[QuestionFiles]:
        return [
            QuestionFiles(
                config=self.config, place=self.place("texts"), path=self.options.texts, cure=CURE, plain_texts=True
            )
        ]

    def check_known_models(self) -> None:
        """Raise GateauError where the trained model is known to read fewer tokens."""
        from gateau_dagster.models.known_model import known_model

        (option, length), name = self.longest(), self.config.training.model
        known = known_model(self.config, name).config
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

        Raises GateauError where there is none, or a record holds no text.
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
        (files,) = self.files()
        for text in read_texts(files.find(), TextFields(text=self.options.field), lambda _: None, plain_texts=True):
            if isinstance(text, Reject):
                raise GateauError(
                    "evaluation.no_text",
                    f"{files.place}: {text.sample_id}: {text.reason}. Correct the file, or give others",
                )
            yield text
