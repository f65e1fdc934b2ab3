"""Measure the loss on responses of `benchmarks/real_text.py`, and whether generated answers are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import groupby, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.models import Template
from gateau_dagster.config.values import InputAddress
from gateau_dagster.data.sample import Sample
from gateau_dagster.features.evaluation.benchmark import (
    Generation,
    Materials,
    Measured,
    MeasuredBenchmark,
    Question,
    QuestionBenchmark,
)
from gateau_dagster.features.evaluation.benchmarks.generated_needle import holds
from gateau_dagster.features.evaluation.grading import normalised_words
from gateau_dagster.features.evaluation.question_files import QuestionFiles

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.models.loaded import LoadedModel
    from gateau_dagster.models.prompt import Prompt


class SamplesOptions(Section):
    """The file of the samples."""

    samples: InputAddress | None = Field(default=None, description="JSON lines of benchmarks/real_text.py.")


def _files(benchmark: AnswerLoss | Answers) -> list[QuestionFiles]:
    cure = "make it with benchmarks/real_text.py"
    place, path = benchmark.place("samples"), benchmark.options.samples
    return [QuestionFiles(config=benchmark.config, place=place, path=path, cure=cure)]


def _records(files: QuestionFiles) -> Iterator[dict[str, Any]]:
    return (record for _, _, record in files.objects(files.find()))


class AnswerLoss(MeasuredBenchmark):
    """Negative log-likelihood of the responses, by what they need: far text, near text or none.

    A sample has up to three values, each a question of the benchmark:

    - `<sample_id>`: all tokens of its response.
    - `<sample_id> answer`: the tokens that the text decides, those in the ranges `gold` of the file. In a response of
      a sentence, most tokens are the same whatever the text says.
    - `<sample_id> evidence`: the same tokens with the evidence as the whole context. The loss that the rest of the text
      adds, `answer` less `evidence`, is the deficit of a model that cannot find the evidence in a long text. A sample
      that only asks the context of another one for more (`follows`) has no such value.

    Neighbours in the file with one context are measured together: the model reads the text once.
    """

    name = "answer_loss"
    title = "Loss on the answers"
    description = (
        "Mean negative log-likelihood of a response's tokens; of its answer's tokens; and of these with the evidence "
        "only. Read the groups: the total is over all three."
    )
    unit = "NLL"
    higher = False
    by_group = False
    groups = "what the response needs"
    options: SamplesOptions
    code_version = "3"

    def files(self) -> Sequence[QuestionFiles]:
        return _files(self)

    def measure(self, materials: Materials, variant: str) -> Measured:
        """Return the losses of each sample: one pass over a text for all questions of it, one over each evidence."""
        loaded, rows = materials.model(variant), list[tuple[str, str, float]]()
        records, done = [*_records(self.files()[0])], 0
        for _, group in groupby(records, key=itemgetter("context")):
            asked = [*group]
            samples = [Sample(**{name: record[name] for name in _FIELDS}) for record in asked]
            whole = self._losses(loaded, samples)
            for record, sample, losses in zip(asked, samples, whole, strict=True):
                name, needs = sample.sample_id, _needs(record)
                gold = gold_tokens(loaded.tokenizer, sample, record.get("gold", []), self.config.scoring.template)
                rows.append((name, needs, float(losses.mean())))
                if gold:
                    rows.append((f"{name} answer", f"{needs}: answer", float(losses[gold].mean())))
                if gold and record["evidence"] and not record.get("follows"):
                    (alone,) = self._losses(loaded, [_evidence_only(sample, record["evidence"])])
                    rows.append((f"{name} evidence", f"{needs}: answer, evidence only", float(alone[gold].mean())))
            done += len(asked)
            materials.progress(done, len(records), "samples", variant)
        return Measured.of(rows)

    def _losses(self, loaded: LoadedModel, samples: Sequence[Sample]) -> list[Tensor]:
        """Return -log P in nats of the response tokens of samples of one context: float64 [|y|] each."""
        from gateau_dagster.models.prompt import build_prompt

        most, template = self.config.scoring.max_length, self.config.scoring.template
        prompts = [build_prompt(loaded.tokenizer, each, max_length=most, template=template) for each in samples]
        return shared_nll(loaded, prompts)


def shared_nll(loaded: LoadedModel, prompts: Sequence[Prompt]) -> list[Tensor]:
    """Return -log P in nats of the response tokens of each prompt: float64 [|y|] on the device.

    The tokens at which all prompts begin are read once. A model whose output has no `past_key_values` (Mamba) reads
    each prompt whole.
    """
    import torch

    from gateau_dagster.models.forward import predicting_span, response_nll, token_nll
    from gateau_dagster.models.last_layers import backbone

    begin = sum(
        1 for _ in takewhile(lambda each: len({*each}) == 1, zip(*(prompt.ids for prompt in prompts), strict=False))
    )
    begin = min(begin, *(predicting_span(prompt)[0] for prompt in prompts))
    ids = [torch.tensor([prompt.ids], device=loaded.device) for prompt in prompts]
    model, losses = backbone(loaded), list[torch.Tensor]()
    with torch.no_grad():
        read = model(input_ids=ids[0][:, :begin], use_cache=True) if len(prompts) > 1 and begin else None
        cache = getattr(read, "past_key_values", None)
        if cache is None:
            return [response_nll(loaded, [prompt]) for prompt in prompts]
        for each, prompt in zip(ids, prompts, strict=True):
            start, stop = predicting_span(prompt)
            states = model(input_ids=each[:, begin:], past_key_values=deepcopy(cache)).last_hidden_state[0]
            losses.append(token_nll(loaded, states[start - begin : stop - begin], prompt.response))
    return losses


_FIELDS = ("sample_id", "source", "context", "instruction", "response")


def _needs(record: dict[str, Any]) -> str:
    return "far text" if record["needs_far"] else "near text" if record["evidence"] else "no text"


def _evidence_only(sample: Sample, evidence: Sequence[Sequence[int]]) -> Sample:
    return replace(sample, context="\n\n".join(sample.context[begin:end] for begin, end in evidence))


def gold_tokens(
    tokenizer: PreTrainedTokenizerBase, sample: Sample, gold: Sequence[Sequence[int]], template: Template
) -> list[int]:
    """Return the indices of the response tokens that hold a character of a range of `gold`, in order.

    `gold`: first and one-past-last characters of the response.
    """
    from gateau_dagster.models.prompt import response_offsets

    if not gold:
        return []
    offsets = response_offsets(tokenizer, sample, template)
    # Of several tokens of one character, the first holds it, and the others, which are empty, belong to it.
    starts = [begin if begin < end else begin - 1 for begin, end in offsets]
    ends = [max(begin + 1, end) for begin, (_, end) in zip(starts, offsets, strict=True)]
    return [
        place
        for place, (start, end) in enumerate(zip(starts, ends, strict=True))
        if any(begin < end and start < stop for begin, stop in gold)
    ]


class Answers(QuestionBenchmark):
    """The share of questions whose generated answer contains the right one."""

    name = "answers"
    title = "Right answers"
    description = "Share of the questions with one answer in the text whose generated answer contains it."
    unit = "%"
    by_group = False
    groups = "place of the answer"
    options: SamplesOptions

    def files(self) -> Sequence[QuestionFiles]:
        return _files(self)

    def questions(self, materials: Materials) -> list[Question]:  # noqa: ARG002
        """Return the questions with one answer, in the prompt of the training."""
        return [
            Question(
                question_id=record["sample_id"],
                group="far" if record["needs_far"] else "near",
                turns=(f"{record['context']}\n\n{record['instruction']}",),
                generation=Generation(max_new_tokens=24),
                references=tuple({record["context"][begin:end] for begin, end in record["answers"]}),
            )
            for record in _records(self.files()[0])
            if len(record["questions"]) == 1 and record["answers"]
        ]

    def value(self, question: Question, answer: str) -> float:
        """Return 100 if the answer contains a right one as whole words, as in Liu et al. 2023; else 0."""
        return 100.0 * any(holds(answer, normalised_words(right)) for right in question.references)
