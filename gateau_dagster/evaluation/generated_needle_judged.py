"""LongAlign's needle rated from 1 to 10 by a judge that sees the needle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.benchmark import Benchmark, JudgeRequest, Judging, Materials, Question, Scored
from gateau_dagster.evaluation.generated_needle import (
    CURE,
    GeneratedNeedleOptions,
    cell_of,
    check_needle,
    needle_questions,
    needle_reads,
    needle_settings,
    needle_sizes,
    place_of,
    probe_needle,
)
from gateau_dagster.evaluation.judged import grade_by_rating, needed_judge, rating
from gateau_dagster.evaluation.question_files import (
    assigned,
    check_files,
    files_digest,
    question_files,
    template_gaps,
    texts_in,
    yaml_of,
)

if TYPE_CHECKING:
    from gateau_dagster.config import Config


_NAME = "generated_needle_judged"
_PLACE = place_of(_NAME, "official")
_FILES = ("eval.py", "config-eval.yaml")
JUDGE_TOKENS = 1024
"""LongAlign sets no limit."""


def _paths(options: GeneratedNeedleOptions) -> list[str] | None:
    return None if options.official is None else [f"{options.official}/{name}" for name in _FILES]


def judge_texts(config: Config, options: GeneratedNeedleOptions) -> tuple[str, str]:
    """Return the judge's system message and its prompt, in which only {prediction} is left to fill.

    Raises GateauError where the official files are missing or differ.
    """
    code, settings = question_files(config, _PLACE, _paths(options), cure=CURE)
    system, user, criteria = (
        assigned(code, name, _PLACE)[0] for name in ("SYSTEM_TEMPLATE", "USER_TEMPLATE", "CRITERIA")
    )
    opening = texts_in(code, "get_criteria", _PLACE)[0]
    asked: Any = yaml_of(settings, _PLACE).get("prompt")
    told = opening + "".join(f"{name}: {text}\n" for name, text in criteria.items())
    try:
        template_gaps(user)
        before, after = user.split("{prediction}")
        fill = {"criteria": told, "reference": asked["needle"], "input": asked["retrieval_question"]}
        filled = [part.format(**fill) for part in (before, after)]
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise GateauError(f"{_PLACE}: {code.label} is not the published file ({error}); {CURE}") from error
    return system, "{prediction}".join(filled)


def _questions(materials: Materials, options: GeneratedNeedleOptions) -> list[Question]:
    """Return the questions; `facts` also hold the judge's system message and prompt."""
    system, prompt = judge_texts(materials.config, options)
    return [
        replace(each, facts={**each.facts, "judge_system": system, "judge_prompt": prompt})
        for each in needle_questions(materials, options, _NAME)
    ]


def requests_of(question: Question, answers: Sequence[str], options: GeneratedNeedleOptions) -> list[JudgeRequest]:
    """Return the judge request with the needle and the stripped answer."""
    del options
    prompt = question.facts["judge_prompt"].replace("{prediction}", answers[0].strip())
    messages = [{"role": "system", "content": question.facts["judge_system"]}, {"role": "user", "content": prompt}]
    return [JudgeRequest(question_id=question.question_id, turn=0, messages=messages, max_tokens=JUDGE_TOKENS)]


def _settings(config: Config, options: GeneratedNeedleOptions) -> Mapping[str, Any]:
    judged = files_digest(config, _PLACE, _paths(options), cure=CURE)
    return {**needle_settings(config, options, _NAME), f"{_PLACE}: judge": judged}


def _check(config: Config, options: GeneratedNeedleOptions) -> None:
    """Raise GateauError for missing files, lengths that no prompt may have, and a missing judge."""
    check_files(config, _PLACE, _paths(options), cure=CURE)
    check_needle(config, options, _NAME)
    needed_judge(config, _NAME)


BENCHMARK = Benchmark(
    name=_NAME,
    title="Needle in a haystack by a judge",
    description="A sentence hidden at a depth of a text of a length, and asked for; each answer rated from 1 to 10 by "
    "a judge that sees the sentence.",
    options=GeneratedNeedleOptions,
    settings=_settings,
    check=_check,
    scored=Scored(
        unit="points",
        floor=1.0,
        highest=10.0,
        by_base=True,
        groups="length and depth",
        grid=cell_of,
        reads=needle_reads,
        sizes=needle_sizes,
        probe=partial(probe_needle, benchmark=_NAME),
        questions=_questions,
        grade=grade_by_rating,
        judging=Judging(requests=requests_of, parse=partial(rating, low=1, high=10), again=4),
        asks_as="generated_needle",
    ),
)
