"""NoLiMa: needles are placed, characters drawn and names found as by the published code; the texts are our own."""

import json
import random
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from gateau_dagster.features.evaluation.benchmarks.nolima import names
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from tests.features.evaluation import official
from tests.features.evaluation.builders import asked, chosen, materials, values
from tests.features.evaluation.suites import CHARACTERS, FRAME, Letters, configured, folder_of
from tests.features.evaluation.suites import nolima_row as row
from tests.kit.error_codes import refused

METRICS = ("contains", "EM", "lastline_contains", "lastline_EM")


folder, _project = folder_of("nolima"), partial(configured, "nolima")


def _slow_snippet(book: str, needle: str, length: int, depth: float) -> str:
    """Letter by letter: the needle replaces the line that the first line break from the depth on ends."""
    at = next(i for i in range(len(book)) if (i == 0 or book[i] == "\n") and i / (length + 1) >= depth)
    start = at - round(length * depth)
    before = book[start : at + 1]
    while before and before[-1] != "\n":
        before = before[:-1]
    return f"{before[:-1]} {needle}\n{''.join(book[i] for i in range(at + 1, start + length))}"


def test_prompts_hide_the_needle_at_every_depth_of_every_book(folder: Path) -> None:
    wanted = {}
    for length in (250, 1000):
        for number in (1, 2):
            book = (folder / "books" / f"book_{number}.txt").read_text()
            for name, needle, asks in (
                ("0401/T1/onehop", "{} grows wheat.", "Who eats bread?"),
                ("0401/T1/twohop", "{} grows wheat.", "Who knows mills?"),
                ("0401/T2/onehop", "{} grows vines.", "Who eats grapes?"),
                ("0401/T2/twohop", "{} grows vines.", "Who knows wine?"),
                ("0402Inv/T1/onehop", "wheat grow where {} lives.", "{}, or who: bread?"),
                ("0402Inv/T2/onehop", "vines grow where {} lives.", "{}, or who: grapes?"),
            ):
                drawn = np.random.RandomState(42 + int(name[:4]) + number - 1)
                for percent in (0, 20, 40, 60, 80, 100):
                    who = str(drawn.choice(CHARACTERS))
                    snippet = _slow_snippet(book, needle.format(who), length, percent / 100)
                    turn = FRAME.format(haystack=snippet, question=asks.format(who))
                    wanted[f"{length}/{percent}/{name}/{number}"] = (turn, who)
    found = asked(_project(folder))
    assert {each.question_id: (each.turns[0], each.references[0]) for each in found} == wanted
    first, last, benchmark = found[0], found[-1], chosen(_project(folder))
    assert (first.group, last.group, first.system, first.chat) == ("250", "1000", "", True)
    assert (first.generation.max_new_tokens, first.generation.temperature) == (192, 0)
    assert (benchmark.cell(first.question_id), benchmark.cell(last.question_id)) == ((250, 0), (1000, 1))
    assert {of(each.question_id) for each in found for of in benchmark.groupings.values()} == {
        *("onehop", "twohop", "default", "inverted")
    }
    sizes = benchmark.sizes()
    assert len(sizes) == len(found) and {*sizes} == {(250 + 320, 192), (1000 + 320, 192)}


def test_prompts_are_the_published_code_s(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code: Any = official.loaded(official.code("NoLiMa/data/book_haystack.py"), monkeypatch)
    for each in asked(_project(folder, placements=26)):
        length, percent, name, test, _, number = each.question_id.split("/")
        plant, who = "wheat" if test == "T1" else "vines", each.references[0]
        published = code.BookHaystack(str(folder / "books" / f"book_{number}.txt")).generate_w_needle_placement(
            f"{plant} grow where {who} lives." if name == "0402Inv" else f"{who} grows {plant}.",
            token_count_func=len,
            encoding_func=lambda text: Letters()(text)["input_ids"],
            decoding_func=Letters().decode,
            context_length=int(length),
            depth=float(percent) / 100,
        )
        assert each.turns[0].startswith(f"Read:\n{published['text']}\nAsked: ")


def _answers() -> list[str]:
    """Answers that we made: right, wrong, wordy, over several lines, of other scripts, and empty."""
    parts = ("Bo", "bo", "Ada", " ", "\n", "\r\n", "\t", ".", "Bob", "ボー", "\u2028", "The answer is ")
    rng = random.Random(0)
    return ["", "Bo", *("".join(rng.choices(parts, k=rng.randrange(1, 7))) for _ in range(400))]


def _slow_names(response: str, metric: str) -> bool:
    response = response.strip()
    if "lastline" in metric:
        while "\n" in response:
            response = response[response.index("\n") + 1 :]
    return response == "Bo" if "EM" in metric else any(response[i : i + 2] == "Bo" for i in range(len(response)))


@pytest.mark.parametrize("metric", METRICS)
def test_an_answer_is_right_as_in_the_published_code(metric: Any, folder: Path) -> None:
    said = _answers()
    wanted = [_slow_names(each, metric) for each in said]
    assert [names(each, "Bo", metric) for each in said] == wanted and 10 < sum(wanted) < len(said)
    config = _project(folder, metric=metric, lengths=[250], placements=2)
    questions = asked(config)
    found = values(config, questions, {each.question_id: f"Ada\n{each.references[0]}" for each in questions})
    assert {*found.values()} == ({0.0} if metric == "EM" else {100.0})


def _values(rng: random.Random, lengths: tuple[int, ...], kept: float = 1.0) -> dict[str, float]:
    """Values by question; those of lengths above 1,000 are right with `kept` of the chance."""
    return {
        f"{length}/{depth}/{name}/T1/{hops}/{book}": 100.0
        * (rng.random() < (0.5 if hops == "onehop" else 0.9) * (kept if length > 1000 else 1))
        for length in lengths
        for depth in (0, 50, 100)
        for name in ("0401", "0402Inv")
        for hops in ("onehop", "twohop")
        for book in (1, 2)
    }


def test_the_base_score_is_the_mean_of_the_best_short_scores(folder: Path) -> None:
    remark = chosen(_project(folder)).remark
    for seed in range(30):
        found = _values(random.Random(seed), (250, 500, 1000, 2000, 4000), kept=seed / 30)
        best = []
        for example in {name.split("/", 2)[2].rpartition("/")[0] for name in found}:
            of = {name: value for name, value in found.items() if f"/{example}/" in name}
            best.append(
                max(fmean(v for n, v in of.items() if n.startswith(f"{length}/")) for length in (250, 500, 1000))
            )
        base = fmean(best)
        means = {
            length: fmean(v for n, v in found.items() if n.startswith(f"{length}/")) for length in (1000, 2000, 4000)
        }
        kept = [length for length, mean in means.items() if mean >= 0.85 * base]
        effective = f"effective length {max(kept):,} tokens" if kept else "effective length below 1,000 tokens"
        assert remark(found).startswith(f"base score {base:.1f} %, {effective} ")
    assert remark(_values(random.Random(0), (2000, 4000))) == ""


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"distractors": {"onehop": "x"}}, "it has distractors"),
        ({"id": "Inv"}, "its id 'Inv' lacks a number"),
        ({"needle": "Nobody grows {1}."}, r"lacks a number, or its needle \{CHAR\}"),
        ({"task_template": "{haystack}"}, "task_template has other gaps"),
        ({"task_template": "{haystack} {question} {"}, ""),
        ({"tests": {"T1": "x"}}, "T1 is a text; expected an object"),
        ({"tests": {"T1": {"input_args": "x"}}}, "input_args is a text"),
        ({"questions": {"onehop": "Who {4}?"}}, r"T1 has no input for \{4\}"),
    ],
)
def test_a_row_of_another_form_is_named(wrong: dict[str, Any], words: str, folder: Path) -> None:
    (folder / "set.json").write_text(json.dumps([row(), row("0402", **wrong)]))
    with refused("evaluation.benchmark_data", rf"nolima\.needles: .*{words}"):
        asked(_project(folder))


def test_lengths_beyond_the_prompt_and_books_that_are_too_short_are_named_before_any_model_runs(folder: Path) -> None:
    with refused("evaluation.length", r"nolima\.lengths: 10000000 tokens"):
        scored_benchmarks(_project(folder, lengths=[10_000_000]))
    (folder / "books" / "book_2.txt").write_text("short\n")
    config = _project(folder)
    with refused("evaluation.length", r"nolima\.lengths: book_2\.txt has 6 tokens, too few for 1,000"):
        chosen(config).probe(materials(config))
