"""The tables of the selection benchmark at the size of a real run: every method, every kind."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from common_harder import KINDS, needs_far_context

from gateau_dagster.demo.long_samples import KINDS as BASE_KINDS

Script = Callable[[str], ModuleType]
EVERY = (*BASE_KINDS, *KINDS)


@pytest.fixture
def sections(script: Script, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, list[str]]]:
    """What is printed, by title, of methods with random scores on two of every kind; `best` knows the labels."""
    report, ranking, grouped = (script(name) for name in ("selection_report", "common_ranking", "common_groups"))
    sources = [[kind for kind in EVERY for _ in range(2)]]
    labels = {kind: needs_far_context(kind) for kind in EVERY}
    tasks = ranking.tasks_of(sources, labels, grouped.groups() | grouped.counterparts(), set(EVERY))
    truth = np.array([labels[kind] for kind in sources[0]], dtype=np.float64)

    def made(names: list[str], **options: Any) -> dict[str, list[str]]:
        rng, found = np.random.default_rng(0), {}
        for name in names:
            scores = truth if name == "best" else rng.random(truth.size)
            found[name] = {
                task.name: ranking.measure(task, [scores], ranking.drawn_weights(task, draws=2)) for task in tasks
            }
        report.printed(found, tasks, **{"columns": ["best"], "reference": "best", "answers": {}} | options)
        blocks = [block.splitlines() for block in capsys.readouterr().out.strip().split("\n\n")]
        return {lines[0]: lines[1:] for lines in blocks}

    return made


def test_precision_fits_the_page(script: Script, sections: Callable[..., dict[str, list[str]]]) -> None:
    names = ["best", *(label for label, _, _ in script("common_methods").candidates())]
    precision = {title: lines for title, lines in sections(names).items() if title.startswith("Precision")}
    assert len(precision) == 3
    assert max(len(line) for title, lines in precision.items() for line in (title, *lines)) <= 125
    by_group, whole, by_kind = precision.values()
    assert len(by_group) == 2 + 1 + len(names) and len(whole) == 2 + len(names)
    assert {line.split()[0] for line in by_kind[2:]} >= set(EVERY)


def test_precision_by_group(sections: Callable[..., dict[str, list[str]]]) -> None:
    found = sections(["best"])
    by_group = found["Precision in the best 10 %, 20 %, 40 %, among a group's own kinds as they come"]
    assert by_group[2].split()[2] == f"{np.mean([needs_far_context(kind) for kind in BASE_KINDS]):.2f}"
    assert by_group[3].split()[:4] == ["best", "1.00", "1.00", "1.00"]


def test_precision_of_each_share_is_in_its_column(script: Script) -> None:
    report, figures = script("selection_report"), np.array([[0.9, 0.1, 0.2, 0.4]])
    both = script("common_ranking").Figures(whole=figures, draws=figures[None])
    task = script("common_ranking").Task(name="all", members=[], positive=[np.array([True, False])], balanced=False)
    *_, row = report.precision_by_kind({"two_hop": both}, ["two_hop"], "m").splitlines()
    assert row.split() == [
        "two_hop",
        "far",
        "0.100",
        "(0.100-0.100)",
        "0.200",
        "(0.200-0.200)",
        "0.400",
        "(0.400-0.400)",
    ]
    *_, blind, row = report.precision_by_group({"m": {"all": both}}, [task], ["m"]).splitlines()
    assert blind.split() == ["drawn", "blindly", "0.50"] and row.split() == ["m", "0.10", "0.20", "0.40"]


def test_without_the_reference_the_best_is_shown(sections: Callable[..., dict[str, list[str]]]) -> None:
    titles = list(sections(["other", "best"], reference="not asked for"))
    assert [title.split(" by kind")[0] for title in titles if "by kind" in title][-1] == "Precision of best"
