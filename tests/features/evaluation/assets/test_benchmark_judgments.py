"""The asset `judgments/<benchmark>`: a real server judges answers of variants; failures are readable, nothing is paid
twice, and the key is nowhere.
"""

import sys
from base64 import b64encode
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from rich.console import Console

from gateau_dagster import tables
from gateau_dagster.assets.runs.checks import checked
from gateau_dagster.cli.commands import command_line
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.forecast import judging_record, show_judging
from gateau_dagster.features.evaluation.judging.asking import BudgetError
from gateau_dagster.features.evaluation.planned_judging import check_budget, planned_judging
from gateau_dagster.features.evaluation.server_client import Client
from gateau_dagster.storage import Stamp
from tests.assets.harness import Pipeline, failure_of, in_place, pipeline_on
from tests.features.evaluation.builders import answers
from tests.features.evaluation.judges import JudgeServer, judge_server, said
from tests.features.evaluation.mt_bench_files import write_files
from tests.kit.fake_server import Act, fake_server, leaks, parts_in, refuse
from tests.kit.project import change_config, make_project

ASSET, KEY = "judgments/mt_bench", "sk-test-0123456789abcdefghij"
GIVEN = {"81": ["Once.", "Again."], "111": ["2", "4"]}


class Judged:
    """A project whose models' answers are there, and a server that judges them."""

    def __init__(self, pipeline: Pipeline, server: JudgeServer, judge: dict[str, Any]) -> None:
        self.pipeline, self.server, self.judge = pipeline, server, judge

    def answer(self, variant: str, given: dict[str, list[str]]) -> None:
        self.pipeline.state().store.write(answers(given), "answers/mt_bench", variant, Stamp(fingerprint=variant))

    def configure(self, **judge: Any) -> None:
        self.judge |= judge
        change_config(self.pipeline.file, evaluation={"judge": self.judge})

    def run(self, variant: str, asset: str = ASSET) -> dg.ExecuteInProcessResult:
        return self.pipeline.make(asset, variant, fails=True)

    def paid(self, variant: str) -> int:
        """Judge a variant's answers; return the requests that it took."""
        (event,) = self.run(variant).asset_materializations_for_node("judgments__mt_bench")
        return event.metadata["requests_paid"].value  # type: ignore[return-value]

    def reason(self, variant: str) -> str:
        """Judge a variant's answers; return the failure message of the step, empty without one."""
        return failure_of(self.run(variant)) or ""


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judged]:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with judge_server() as server:
        judge = {"base_url": server.address, "model": "judge", "key": "JUDGE_KEY", "retries": 0}
        options = write_files(tmp_path).options.model_dump()
        evaluation = {"benchmarks": ["mt_bench"], "judge": judge, "mt_bench": options}
        file = make_project(tmp_path, samples=4, shards=1, training=True, evaluation=evaluation)
        with pipeline_on(file) as pipeline:
            found = Judged(pipeline, server, judge)
            found.answer("base", GIVEN)
            found.answer("checkpoint", {**GIVEN, "81": ["Once.", "Other."]})
            yield found


def test_answers_are_judged_and_equal_ones_of_another_variant_cost_nothing(judged: Judged) -> None:
    assert judged.paid("base") == 4
    state = judged.pipeline.state()
    table = state.store.read(ASSET, "base")
    assert table.schema == tables.schema(tables.JUDGMENTS)
    assert table["score"].to_list() == [5.0] * 4
    assert judged.server.keys == {f"Bearer {KEY}"}
    assert judged.paid("checkpoint") == 1
    assert judged.server.asked[4].endswith("Other.")
    assert state.store.read(ASSET, "checkpoint").height == 4
    judged.run("base")
    assert len(judged.server.requests) == 5
    thinking = {name: [f"<think>It may be {n}.</think>\n\n{text}" for n, text in enumerate(texts)]
                for name, texts in GIVEN.items()}  # fmt: skip
    judged.answer("checkpoint", thinking)
    assert judged.paid("checkpoint") == 0, "without its thoughts it is what the other variant answered"


def test_where_the_judge_is_changes_nothing_and_another_one_judges_again(judged: Judged) -> None:
    judged.run("base")
    before = judged.pipeline.state().wanted_stamp(ASSET, "base").fingerprint
    judged.configure(concurrency=2, timeout=9.0, prices={"prompt": 1.0, "reply": 1.0}, budget={"money": 5.0})
    assert judged.pipeline.state().wanted_stamp(ASSET, "base").fingerprint == before
    for change in ({"temperature": None}, {"temperature": "benchmark", "repeats": 2}, {"model": "other"}):
        judged.configure(**change)
        assert judged.pipeline.state().wanted_stamp(ASSET, "base").fingerprint != before
    judged.configure(model="judge")
    judged.run("base")
    assert len(judged.server.requests) == 8, "the second judgments of four answers"
    assert judged.pipeline.state().store.read(ASSET, "base")["repeat"].to_list() == [0, 1] * 4


def test_the_plan_says_what_it_costs_and_above_the_budget_nothing_is_sent(judged: Judged) -> None:
    judged.configure(prices={"prompt": 1.0, "reply": 1.0}, budget={"requests": 3})
    state = judged.pipeline.state()
    (planned,) = planned_judging(state, state.whole_plan())
    assert (planned.asset, [*planned.variants]) == ("mt_bench", ["base", "checkpoint"])
    assert planned.cost is not None and planned.cost.usage.requests == 8 and (planned.cost.money or 0) > 0
    with pytest.raises(BudgetError, match=r"^evaluation\.judge\.budget: judging needs about 8 requests"):
        check_budget(state, [planned])
    assert judged.reason("base").startswith("evaluation.judge.budget: judging needs about 4")
    with pytest.raises(BudgetError, match="about 8 requests"):
        judged.pipeline.refresh()
    assert not judged.pipeline.runs()[0].is_success and not judged.server.requests
    out = Console(file=StringIO(), width=120)
    show_judging(out, state, state.plan())
    assert isinstance(out.file, StringIO) and "about 8 requests" in " ".join(out.file.getvalue().split())
    record = judging_record(state, state.plan())
    assert record["benchmarks"]["mt_bench"]["requests"] == 8 and "the budget is 3 requests" in record["refused"]
    judged.configure(budget={})
    state = judged.pipeline.state()
    assert judging_record(state, state.plan())["refused"] == ""
    none = {"benchmarks": {}, "refused": "", "code": "", "warning": ""}
    assert judging_record(state, state.plan_until("raw_long_sft")) == none


def test_keys_that_are_not_set_are_said_before_anything_runs(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> str:
        state = judged.pipeline.state()
        return judging_record(state, state.whole_plan())["refused"]

    monkeypatch.delenv("JUDGE_KEY")
    assert refused().startswith("evaluation.judge.key: the environment variable JUDGE_KEY is not set")
    with pytest.raises(GateauError, match="JUDGE_KEY"):
        judged.pipeline.refresh()
    assert not judged.pipeline.runs() and not judged.server.requests
    engine = {"base_url": "http://127.0.0.1:9/v1", "key": "ENGINE_KEY"}
    change_config(judged.pipeline.file, evaluation={"engine": engine})
    assert refused().startswith("evaluation.engine.key: the environment variable ENGINE_KEY is not set")
    for name in ("ENGINE_KEY", "JUDGE_KEY"):
        monkeypatch.setenv(name, "x")
    assert refused() == ""


def test_answers_that_are_to_be_made_first_are_taken_to_be_long(judged: Judged) -> None:
    state = judged.pipeline.state()
    state.store.files.remove("answers")
    (planned,) = planned_judging(state, state.whole_plan())
    assert planned.cost is not None and planned.cost.usage.requests == 8
    assert planned.cost.usage.prompt_tokens > 8 * 1024


SECRET = "Jq7-Zw0Xk93vLmTb5RyH2cQ8"
SAID = f"{SECRET}, {SECRET[5:17]}, {SECRET[9:]}, {b64encode(SECRET.encode()).decode()}, {SECRET[:4]}****{SECRET[-4:]}"


def test_no_secret_is_in_any_file_event_or_terminal(
    judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Engine and judge repeat the key in whole and in parts: in answers, refusals and failures, foreseen or not."""
    monkeypatch.setenv("OUR_SERVERS", SECRET)
    store = judged.pipeline.state().store
    store.files.remove("answers")
    store.write(
        pl.DataFrame(schema=tables.schema(tables.VARIANT_CHECKPOINT)),
        "variant/checkpoint",
        "base",
        Stamp(fingerprint=""),
    )

    def act(handler: Any) -> None:
        if handler.body["model"] == "refuses":
            refuse(401, SAID)(handler)
        elif "1+1?" in str(handler.body):
            refuse(400, SAID)(handler)
        else:
            handler.say(f"{SAID} [[8]]")

    with fake_server(act, bad="") as server:
        both = {"base_url": server.address, "key": "OUR_SERVERS", "retries": 0}
        judged.configure(**both)
        change_config(judged.pipeline.file, evaluation={"engine": both})
        assert judged.run("base", "answers/mt_bench").success and judged.run("base").success
        judged.configure(model="refuses")
        line = judged.reason("base")
        assert line.startswith("base: evaluation.judge: http://127.0.0.1:") and "\n" not in line
        assert "answers 401 (***" in line and "OUR_SERVERS" in line

        def fail(*_: Any) -> None:
            raise RuntimeError(f"a defect met {SAID}") from ValueError(SAID)

        monkeypatch.setattr(Client, "_read", fail)
        judged.configure(model="fails")
        assert not judged.run("base").success
    (reject,) = store.read_rejected("answers/mt_bench", ["base"])["reason"]
    assert "400: ***" in reject and store.read(ASSET, "base")["score"].to_list() == [8.0, 8.0]
    terminal = "".join(capfd.readouterr())
    assert "RuntimeError: a defect met ***" in terminal and not parts_in(terminal.encode(), SECRET)
    assert {file.suffix for file in tmp_path.rglob("*")} > {".db", ".err", ".parquet", ".json"}
    assert leaks(tmp_path, SECRET) == []


def test_a_key_in_the_place_of_its_variable_is_nowhere_but_in_its_file(
    judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = judged.pipeline.file.read_text().replace("JUDGE_KEY", SECRET)
    file = tmp_path / "pasted.yaml"
    for text in (given, given.replace(SECRET, f"{{{SECRET}: 1}}"), given.replace(SECRET, f"{SECRET}: 1")):
        file.write_text(text)
        monkeypatch.setattr(sys, "argv", ["gateau", "run", "--config", str(file)])
        with pytest.raises(SystemExit):
            command_line()
        file.unlink()
        shown = "".join(capfd.readouterr())
        assert "pasted.yaml" in shown and not parts_in(shown.encode(), SECRET)
    assert leaks(tmp_path, SECRET) == []


def test_replies_without_a_score_are_counted_and_a_check_says_so(judged: Judged) -> None:
    def play(message: str, before: int) -> Act:
        return said("11 of 10") if "Write." in message else said()

    judged.server.play = play
    (event,) = judged.run("base").asset_materializations_for_node("judgments__mt_bench")
    assert event.metadata["without_score"].value == 2 and event.metadata["unusable_share"].value == 0.5
    state = judged.pipeline.state()
    readable = checked(state, state.asset(ASSET), "readable_replies")
    assert not readable.passed and readable.severity == dg.AssetCheckSeverity.ERROR
    assert readable.metadata["without_score"].value == 2


def test_what_got_no_reply_is_asked_again_where_the_server_changes(judged: Judged) -> None:
    judged.server.play = lambda message, before: refuse(503, "busy") if "Write." in message else said()
    judged.run("base")
    state = judged.pipeline.state()
    stamp, asked = state.stamp(ASSET, "base"), len(judged.server.requests)
    assert stamp is not None and state.asset(ASSET).is_current(stamp, stamp.complete)
    assert state.store.read_rejected(ASSET, ["base"]).height == 1
    judged.server.play = lambda message, before: said()
    judged.run("base")
    assert len(judged.server.requests) == asked, "under the same settings it is up to date"
    judged.configure(timeout=9.0)
    judged.run("base")
    assert len(judged.server.requests) == asked + 2, "both turns of the question"
    assert judged.pipeline.state().store.read_rejected(ASSET, ["base"]).is_empty()


def test_pairs_of_variants_are_set_against_each_other(judged: Judged) -> None:
    def play(message: str, before: int) -> Act:
        return said("[[A]]" if "Other." in message else "[[C]]")

    judged.server.play = play
    judged.configure(pairs=[["base", "checkpoint"]])
    state = judged.pipeline.state()
    (planned,) = planned_judging(state, state.plan_until("pairwise/mt_bench"))
    assert planned.cost is not None and planned.cost.usage.requests == 8 and not planned.variants
    for paid in (5, 0):  # equal answers look the same in both orders
        state.store.files.remove("pairwise")
        done = judged.pipeline.make("pairwise/mt_bench")
        (event,) = done.asset_materializations_for_node("pairwise__mt_bench")
        assert str(event.metadata["paid"].value).startswith(f"{paid} request")
    assert event.metadata["base_against_checkpoint"].value == (
        "0 won, 4 tied, 0 lost, 0 unreadable; the same in both orders 75.0\u00a0%, preference for the first place 0.25"
    )
    assert in_place(event.metadata["share_won_ties_half"])
    judged.configure(pairs=[["base", "nobody"]])
    with pytest.raises(GateauError, match=r"evaluation\.judge\.pairs: .*nobody; there are base, checkpoint"):
        _ = judged.pipeline.state().pipeline


def test_the_best_and_the_worst_samples_are_rated(judged: Judged) -> None:
    judged.configure(characteristics=2)
    state = judged.pipeline.state()
    names = [f"s{number}" for number in range(6)]
    raw = dict.fromkeys(("sample_id", "source", "context", "instruction", "response", "digest"), names)
    state.store.write(pl.DataFrame(raw), "raw_long_sft", state.shards[0], Stamp(fingerprint="raw"))
    scores = pl.DataFrame({"sample_id": names, "score": [0.1, 0.9, None, 0.5, 0.4, 0.8]})
    state.store.write(scores, "combined_scores", None, Stamp(fingerprint="scores"))
    done = judged.pipeline.make("characteristics")
    table = state.store.read("characteristics")
    assert dict(table.select("sample_id", "part").iter_rows()) == {
        **dict.fromkeys(["s1", "s5"], "best"),
        **dict.fromkeys(["s0", "s4"], "worst"),
    }
    assert table["rating"].to_list() == [5.0] * 20 and len(judged.server.requests) == 20
    (event,) = done.asset_materializations_for_node("characteristics")
    assert event.metadata["coherence"].value == "best 5.0, worst 5.0"
    assert in_place(event.metadata["mean_rating"])
