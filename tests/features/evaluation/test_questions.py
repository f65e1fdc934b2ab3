"""Questions are read before anything runs: what is broken is named then."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.cli.plan import print_plan
from gateau_dagster.cli.validate import print_validation
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.questions import check_questions
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.project import load_project
from tests.assets.harness import pipeline_on
from tests.features.evaluation.ruler_files import write_ruler
from tests.kit.error_codes import refused
from tests.kit.project import make_project

RULER = {"official": "ruler", "tasks": ["vt"], "lengths": [512], "samples": 1}
NEEDLE = {"lengths": [300], "answer_tokens": 50}
TEXTS = {"texts": "texts.jsonl", "lengths": [128]}


def _project(folder: Path, benchmark: str, options: dict[str, Any]) -> Path:
    write_ruler(folder / "ruler")
    (folder / "essay.txt").write_text("the note .")
    (folder / "empty.txt").write_text("")
    (folder / "texts.jsonl").write_text(json.dumps({"text": "the note"}) + "\n")
    asked = {"benchmarks": [benchmark], benchmark: options}
    return make_project(folder, samples=24, shards=2, training=True, evaluation=asked, variants={"methods": ["random"]})


@pytest.mark.parametrize(
    ("benchmark", "options", "broken", "words"),
    [
        ("ruler", RULER, "niah_single_1: {}", r"ruler\.official: .*synthetic\.yaml.*'vt'.*clone"),
        ("ruler", RULER, "a: [", r"ruler\.official: .*synthetic\.yaml is not YAML"),
        ("ruler", RULER, "a", r"ruler\.official: .*synthetic\.yaml is not a YAML mapping"),
        (
            "generated_needle",
            {**NEEDLE, "haystack": "essay.txt", "lengths": [201, 300]},
            None,
            "201 tokens leave no room for text",
        ),
        (
            "generated_needle",
            {**NEEDLE, "haystack": "empty.txt"},
            None,
            r"generated_needle\.haystack: empty\.txt: empty file",
        ),
        ("text_perplexity", {**TEXTS, "field": "body"}, None, r"text_perplexity\.texts: texts\.jsonl:1: no text"),
        ("text_perplexity", {**TEXTS, "texts": "empty.txt"}, None, r"text_perplexity\.texts: "),
    ],
)
def test_what_cannot_be_read_is_named_beforehand(
    benchmark: str, options: dict[str, Any], broken: str | None, words: str, tmp_path: Path
) -> None:
    file = _project(tmp_path, benchmark, options)
    state = state_of(config=load_project(file))
    if broken is not None:
        check_questions(state)
        (tmp_path / "ruler" / "scripts" / "synthetic.yaml").write_text(broken)
    with pytest.raises(GateauError, match=words):
        check_questions(state)
    check_questions(state, Plan())


def test_validation_plan_and_run_look_at_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = _project(tmp_path, "ruler", RULER)
    (tmp_path / "ruler" / "scripts" / "synthetic.yaml").write_text("niah_single_1: {}")
    with refused("evaluation.benchmark_data", "'vt'"):
        print_validation(load_project(file))
    with refused("evaluation.benchmark_data", "'vt'"):
        print_plan(load_project(file), None)
    assert "answers/ruler" in capfd.readouterr().out, "the plan is shown all the same"
    with pipeline_on(file) as pipeline:
        with refused("evaluation.benchmark_data", "'vt'"):
            pipeline.refresh()
        assert not pipeline.runs()
