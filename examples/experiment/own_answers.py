"""Measure the loss on responses of `benchmarks/real_text.py`, and whether generated answers are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import InputAddress
from gateau_dagster.data.sample import Sample
from gateau_dagster.evaluation.benchmark import (
    Generation,
    Materials,
    Measured,
    MeasuredBenchmark,
    Question,
    QuestionBenchmark,
)
from gateau_dagster.evaluation.generated_needle import holds
from gateau_dagster.evaluation.grading import normalised_words
from gateau_dagster.evaluation.question_files import QuestionFiles


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
    """Negative log-likelihood of the responses, by what they need: far text, near text or none."""

    name = "answer_loss"
    title = "Loss on the answers"
    description = "Mean negative log-likelihood of a response's tokens."
    unit = "NLL"
    higher = False
    by_group = False
    groups = "what the response needs"
    options: SamplesOptions

    def files(self) -> Sequence[QuestionFiles]:
        return _files(self)

    def measure(self, materials: Materials, variant: str) -> Measured:
        """Return the loss of each sample's response."""
        from gateau_dagster.models.forward import response_nll
        from gateau_dagster.models.prompt import build_prompt

        loaded, scoring, rows = materials.model(variant), self.config.scoring, []
        records = [*_records(self.files()[0])]
        for done, record in enumerate(records, start=1):
            texts = {name: record[name] for name in ("sample_id", "source", "context", "instruction", "response")}
            prompt = build_prompt(
                loaded.tokenizer, Sample(**texts), max_length=scoring.max_length, template=scoring.template
            )
            needs = "far text" if record["needs_far"] else "near text" if record["evidence"] else "no text"
            rows.append((record["sample_id"], needs, float(response_nll(loaded, [prompt]).mean())))
            materials.progress(done, len(records), "samples", variant)
        return Measured.of(rows)


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
