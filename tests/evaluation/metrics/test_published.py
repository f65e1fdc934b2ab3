"""Every metric against what the published code gives: a table of its values, and the code where it is at hand."""

import gzip
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from gateau_dagster.evaluation.longbench_sets import SETS, answer_score
from gateau_dagster.evaluation.metrics.exact import class_share, line_similarity, number_share, passage_share
from gateau_dagster.evaluation.metrics.rouge_l import chinese_rouge_l, rouge_l
from gateau_dagster.evaluation.metrics.word_overlap import chinese_f1, word_f1
from tests.evaluation import official

from .pairs import CLASSES, VALUES, made_pairs, official_code

OURS: dict[str, Callable[[str, str], float]] = {
    "qa_f1_score": word_f1,
    "rouge_score": rouge_l,
    "qa_f1_zh_score": chinese_f1,
    "rouge_zh_score": chinese_rouge_l,
    "count_score": number_share,
    "retrieval_score": passage_share,
    "retrieval_zh_score": passage_share,
    "code_sim_score": line_similarity,
    "classification_score": lambda answer, right: class_share(answer, right, CLASSES),
}


def _known() -> list[dict[str, Any]]:
    return json.loads(VALUES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("metric", OURS)
def test_the_published_values(metric: str) -> None:
    if "zh" in metric and metric != "retrieval_zh_score":
        pytest.importorskip("jieba", reason="Chinese words need jieba")
    known = [each for each in _known() if each["metric"] == metric]
    assert len(known) >= 2 and len({each["value"] for each in known}) > 1
    for each in known:
        assert OURS[metric](each["answer"], each["right"]) == pytest.approx(each["value"], abs=1e-12), each


def test_the_table_is_of_these_pairs() -> None:
    assert [(each["metric"], each["answer"], each["right"]) for each in _known()] == [*made_pairs()]


def _judged() -> Iterator[tuple[str, str]]:
    """Of LongBench-Chat's questions, English and Chinese, each two answers that models gave to the same one."""
    questions = json.loads(official.data("longbench_chat_few_shots.json").read_text(encoding="utf-8"))
    for shots in questions:
        yield from itertools.permutations([shot["answer"] for shot in shots if shot["answer"].strip()], 2)


def _garbled(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Right answers to questions, long and short, and some of their words in another order."""
    with gzip.open(official.data("../natural_questions.jsonl.gz"), "rt", encoding="utf-8") as stream:
        texts = [json.loads(line)["answers"][0] for line in itertools.islice(stream, 100)]
    with gzip.open(official.data("../long_instructions.jsonl.gz"), "rt", encoding="utf-8") as stream:
        texts += [json.loads(line)["messages"][-1]["content"] for line in stream]
    for right in texts:
        words = right.split(" ")
        yield " ".join([*rng.sample(words, rng.randint(1, len(words))), "and", "so", "on."]), right


@pytest.mark.long
def test_the_published_code_on_real_answers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each set's metric, with the first line, the best of two right answers and the classes as there."""
    published = official_code("eval", monkeypatch)
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(20_000)  # the published ROUGE-L walks back by recursion, and is 0 where that ends
    pairs = [*_judged(), *_garbled(random.Random(12))]
    assert len(pairs) >= 300
    nonzero = 0
    for place, (answer, right) in enumerate(pairs):
        name = [*SETS][place % len(SETS)]
        rights = [right[:1200], pairs[place - 1][1][:1200]]
        if "passage_retrieval" in name:
            rights = [f"{'段落' if name.endswith('zh') else 'Paragraph '}{number}" for number in (place % 9, 1)]
        expected = _published(published, name, answer[:1200], rights)
        assert answer_score(name, answer[:1200], rights, CLASSES) == pytest.approx(expected, abs=1e-12), (name, answer)
        nonzero += expected > 0
    assert nonzero > len(pairs) / 2


def _published(code: ModuleType, name: str, answer: str, rights: Sequence[str]) -> float:
    """Of one question, unrounded; its own scorer rounds the mean."""
    if SETS[name].first_line:
        answer = answer.lstrip("\n").split("\n")[0]
    return max(0.0, *(code.dataset2metric[name](answer, right, all_classes=CLASSES) for right in rights))


@pytest.mark.long
def test_the_published_scorer_on_made_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mean over a set, in per cent to two places: first lines and best of several as there."""
    published = official_code("eval", monkeypatch)
    for name in ("trec", "triviaqa", "samsum", "hotpotqa"):
        said = ["\n\nFood\nnot this", "Date of birth", "Body part"]
        rights = [["Food", "Body"], ["Dates of history", "Date"], ["Body part"]]
        wanted = published.scorer(name, said, rights, CLASSES)
        ours = [answer_score(name, answer, right, CLASSES) for answer, right in zip(said, rights, strict=True)]
        assert round(100 * sum(ours) / len(ours), 2) == wanted and wanted > 0
