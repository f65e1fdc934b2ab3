"""A generator of which nothing is accepted: the yield is reported, and another generator is asked."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from gateau_dagster.cli.plan import print_plan
from gateau_dagster.cli.validate import print_validation
from gateau_dagster.features.synthesis import CHECKS_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.candidate_checks import figure_sentence
from gateau_dagster.features.synthesis.config import SYNTHETIC_SAMPLES, SynthesisChecksConfig
from gateau_dagster.features.synthesis.forecast import planned_synthesis
from gateau_dagster.features.synthesis.scripted_generator import ScriptedGenerator
from gateau_dagster.pipeline.checks import checked_plan, checks_of
from gateau_dagster.pipeline.losses import losses
from gateau_dagster.resources.history import History, asset_statuses
from tests.assets.harness import Pipeline, pipeline_on
from tests.cli.command import Command
from tests.features.synthesis.test_pipeline import COUNT, project, table
from tests.kit.error_codes import refused
from tests.kit.fake_server import FakeServer, Handler, content, serving
from tests.kit.project import change_config

_NO_EVIDENCE = {"question": "Which lamp is lit?", "answer": "the brass lamp", "evidence": ["no such text"] * 2}
# By the model's name; any other one is honest.
REFUSED: dict[str, Callable[[Handler], None]] = {
    "list": content(json.dumps({"question": "Which?", "answer": ["brass", "copper"], "evidence": ["a"]})),
    "cut": content('{"question": "Which lamp', "length"),
    "declining": content('{"question": ""}'),
    "inventing": content(json.dumps(_NO_EVIDENCE)),
}


class OddServer(FakeServer):
    """It answers as the model's name says."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.honest = ScriptedGenerator()
        self.honest.server_close()

    def _answer(self, handler: Handler) -> None:
        act = REFUSED.get(str(handler.body["model"]))
        act(handler) if act else handler.say(self.honest.reply({**handler.body}))


@pytest.fixture
def server() -> Iterator[OddServer]:
    with serving(OddServer()) as running:
        yield running


def with_generator(file: Path, model: str) -> None:
    given = yaml.safe_load(file.read_text())["synthesis"]["generator"]
    change_config(file, synthesis={"generator": {**given, "model": model}})


def all_ways_say(pipeline: Pipeline, match: str) -> None:
    """Commands, Python and the step of the UI report the yield."""
    config = pipeline.config
    ways: dict[str, Callable[[], object]] = {
        "run": pipeline.refresh,
        "run --until": lambda: pipeline.refresh(SYNTHETIC_SAMPLES),
        "plan": lambda: print_plan(config, None),
        "plan --until": lambda: print_plan(config, SYNTHETIC_SAMPLES),
        "validate": lambda: print_validation(config),
        "status": lambda: asset_statuses(pipeline.state(), History()),
        "Python": lambda: checked_plan(pipeline.state()),
        "Materialize": checks_of(pipeline.state()).check_accepted,
    }
    for way in ways.values():
        with refused("synthesis.none_accepted", match):
            way()


def test_the_yield_is_said_and_another_generator_is_asked(tmp_path: Path, server: OddServer, command: Command) -> None:
    file = project(tmp_path, server.address, generator={"model": "inventing"})
    yields = r"0 of 1\d candidates accepted: verbatim \d, duplicate \d"
    with pipeline_on(file) as pipeline:
        with refused("synthesis.none_accepted", yields):
            pipeline.refresh()
        all_ways_say(pipeline, yields)
        status, _, said = command("plan", "--config", str(file))
        assert status == 1 and said.count("Error: synthesis: 0 of 1") == said.count("Error") == 1
        with_generator(file, "scripted")
        state, asked = pipeline.state(), len(server.requests)
        plan = state.plan()
        planned = planned_synthesis(state, plan)
        assert planned is not None and planned.candidates > 9 and planned.measured is None
        assert plan.of(QUESTIONS_TABLE) and not [each for each in checks_of(state).warnings if " 0 " in each]
        print_plan(pipeline.config, None)
        waiting = {each.asset: each.standing for each in asset_statuses(state, History())}
        assert (waiting["raw_long_sft"], waiting["synthetic/passages"]) == ("missing", "current")
        pipeline.refresh("raw_long_sft")
        assert table(pipeline.state(), SYNTHETIC_SAMPLES).height == pipeline.state().read("raw_long_sft").height > 0
        assert len(server.requests) > asked


@pytest.mark.long
def test_replies_that_are_cut_end_the_first_run_and_are_counted_in_the_second(
    tmp_path: Path, server: OddServer
) -> None:
    file = project(tmp_path, server.address, generator={"model": "cut"}, shards=1)
    with pipeline_on(file) as pipeline:
        with refused("evaluation.server_unusable", r"cut after.*synthesis\.generator\.max_tokens"):
            pipeline.refresh(SYNTHETIC_SAMPLES)
        with refused(
            "synthesis.none_accepted", r"0 of 12 candidates accepted: no reply 12[\s\S]*mostly the reply was cut"
        ):
            pipeline.refresh(SYNTHETIC_SAMPLES)
        assert len(server.requests) == COUNT, "what is paid for is not asked for again"


def test_an_empty_shard_is_no_rejected_record(tmp_path: Path, server: OddServer) -> None:
    paths = ["long.jsonl", "synthetic:"]
    file = project(tmp_path, server.address, paths=paths, documents=2, shards=4, generator={"model": "declining"})
    with pipeline_on(file) as pipeline:
        pipeline.refresh("raw_long_sft")
        state = pipeline.state()
        assert state.read("raw_long_sft").height == 6 and state.index.rejected.is_empty()
        (said,) = [each for each in checks_of(state).warnings if "accepted" in each]
        assert "declined" in said and "prompts read in part only" in said, "the server reports 10 tokens of each"
        lost = {each.asset: each.sentence for each in losses(state, {CHECKS_TABLE}) if each.notable}
        assert re.match(r"0 of \d+ candidates accepted: declined \d+$", lost[CHECKS_TABLE])
        assert re.match(r"(\d+) of \1 prompts read in part only: .* at least", lost[QUESTIONS_TABLE])
        with_generator(file, "scripted")
        pipeline.refresh(SYNTHETIC_SAMPLES)
        state = pipeline.state()
        keys = map(str, state.pipeline.partitions(SYNTHETIC_SAMPLES))
        made = [state.store.read(SYNTHETIC_SAMPLES, key).height for key in keys]
        assert 0 in made and sum(made) > 0
        assert state.index.rejected.is_empty() and state.index.records == 6 + sum(made)


def test_validate_shows_a_refused_candidate_per_reason_and_where_the_rest_is(
    tmp_path: Path, server: OddServer, command: Command
) -> None:
    file = project(tmp_path, server.address, documents=2, count=6, generator={"model": "inventing"})
    status, out, _ = command("validate", "--synthesis", "--config", str(file))
    lines = [line.strip() for line in out.splitlines()]
    examples = lines.count("question: Which lamp is lit?")
    assert status == 0 and examples == lines.count("answer: the brass lamp") == 2, out
    assert "prompts read in part only" in out
    assert any(line.startswith("why: ") and "evidence" in line for line in lines)
    kept = [json.loads(line) for line in (tmp_path / ".gateau/refused_candidates.jsonl").read_text().splitlines()]
    assert {each["reason"] for each in kept} == {"verbatim", "duplicate"} and str(len(kept)) in lines[-2]
    assert {(each["question"], each["answer"]) for each in kept} == {("Which lamp is lit?", "the brass lamp")}
    with_generator(file, "list")
    _, out, _ = command("validate", "--synthesis", "--config", str(file))
    assert 'reply: {"question": "Which?", "answer": ["brass", "copper"]' in out


def test_a_figure_is_shown_with_its_threshold() -> None:
    checks = SynthesisChecksConfig()
    assert figure_sentence("closed_book", 0.05, checks) == "0.050, and checks.closed_book asks for at least 0.2"
    assert figure_sentence("robust", 0.9, checks) == "0.900, and checks.robust asks for at most 0.5"
    assert figure_sentence("verbatim", 0.0, checks) == figure_sentence("needed", None, checks) == ""
