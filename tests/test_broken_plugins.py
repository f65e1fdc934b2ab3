"""Broken plug-ins: each ends in one line with the file, what is broken and what it gave, and nothing is replaced."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.config import Config
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import (
    MeasuredBenchmark,
    QuestionBenchmark,
    check_compared,
)
from gateau_dagster.features.evaluation.registry import chosen_benchmarks
from gateau_dagster.methods.registry import chosen_methods, sample_tables
from gateau_dagster.pipeline.project import parse_project

METHOD = """
import math, sys
import polars as pl
from gateau_dagster import tables as columns
from gateau_dagster.data.sample import Reject
from gateau_dagster.methods.method import Method
from gateau_dagster.scoring.sample_table import SampleTable

class Odd(Exception):
    def __str__(self):
        raise ValueError

class Own(Method):
    name, title, source, per_sample = "own", "Own.", "here", True
    def reads(self):
        return {"raw_long_sft": ["sample_id", "context"]}
    def score(self, tables):
        raw = tables["raw_long_sft"]
        return raw.select("sample_id", score=pl.lit(1.0))
"""
SCORE = 'return raw.select("sample_id", score=pl.lit(1.0))'
READS = 'return {"raw_long_sft": ["sample_id", "context"]}'
ROWS = """
    def rows(self, loaded, samples, running):
        for sample in samples:
            yield {"sample_id": sample.sample_id, "digest": sample.digest, "words": 1.0}
    def tables(self):
        shown = (columns.SAMPLE_ID, columns.DIGEST, columns.Column(name="words", dtype=pl.Float64(), description=""))
        return [SampleTable(asset="words/long", model="long", columns=shown, description="", finite=("words",),
                            score=self.rows)]
"""
ROW = 'yield {"sample_id": sample.sample_id, "digest": sample.digest, "words": 1.0}'
CODE, RESULT, NAME, INCOMPLETE = "plugins.code", "plugins.result", "plugins.name", "plugins.incomplete"

SCORES: dict[str, tuple[str, str]] = {
    "exception": ("raise ValueError('no\\nscore')", CODE),
    "exception without text": ("raise Odd()", CODE),
    "assertion": ("assert False", CODE),
    "recursion": ("return self.score(tables)", CODE),
    "exit": ("sys.exit(0)", CODE),
    "interrupt": ("raise KeyboardInterrupt", CODE),
    "missing column": ("return raw.select('sample_id', score='words')", CODE),
    "lazy failure": ("return raw.lazy().select('sample_id', score=pl.col('words'))", CODE),
    "None": ("return None", RESULT),
    "dict": ("return {'sample_id': ['a'], 'score': [1.0]}", RESULT),
    "series": ("return raw['sample_id']", RESULT),
    "generator": ("yield 1.0", RESULT),
    "no score": ("return raw.select('sample_id')", RESULT),
    "no id": ("return raw.select(score=pl.lit(1.0))", RESULT),
    "NaN": ("return raw.select('sample_id', score=pl.lit(math.nan))", RESULT),
    "infinite": ("return raw.select('sample_id', score=pl.lit(-math.inf))", RESULT),
    "text": ("return raw.select('sample_id', score=pl.lit('1.0'))", RESULT),
    "date": ("return raw.select('sample_id', score=pl.date(2020, 1, 1))", RESULT),
    "list": ("return raw.select('sample_id', score=pl.concat_list(1.0, 2.0))", RESULT),
    "rows twice": ("return pl.concat([raw, raw]).select('sample_id', score=pl.lit(1.0))", RESULT),
    "half of the rows": ("return raw.head(2).select('sample_id', score=pl.lit(1.0))", RESULT),
    "no rows": ("return raw.clear().select('sample_id', score=pl.lit(1.0))", RESULT),
    "null ids": ("return raw.select(sample_id=pl.lit(None, pl.String), score=1.0)", RESULT),
    "unknown ids": ("return raw.select(pl.col('sample_id') + 'x', score=1.0)", RESULT),
    "numbered ids": ("return raw.select(sample_id=pl.int_range(pl.len()), score=1.0)", RESULT),
}
LOADED: dict[str, tuple[str, str, str]] = {
    "reads an unknown table": (READS, "return {'raw_short_sft': ['sample_id']}", "plugins.reads"),
    "reads itself": (READS, "return {'method_scores/own': ['sample_id']}", "plugins.reads"),
    "reads what is made of it": (READS, "return {'selected_subset': ['sample_id']}", "plugins.reads"),
    "reads an unknown column": (READS, "return {'raw_long_sft': ['sample_id', 'text']}", "plugins.reads"),
    "reads by shard what has none": (READS, "return {'combined_scores': ['sample_id', 'score']}", "plugins.reads"),
    "reads a text": (READS, "return {'raw_long_sft': 'context'}", RESULT),
    "reads nothing": (READS, "return None", RESULT),
    "reads numbers": (READS, "return {1: ['sample_id']}", RESULT),
    "reads fails": (READS, "return {}['raw_long_sft']", CODE),
    "reads is no function": (f"def reads(self):\n        {READS}", "reads = {}", INCOMPLETE),
    "score is no function": ("def score(self, tables):", "score = 1\n    def other(self, tables):", INCOMPLETE),
    "reads has parameters": ("def reads(self)", "def reads(self, more)", CODE),
    "paths is a text": ("def score", "def paths(self): return 'a.txt'\n    def score", RESULT),
    "paths fails": ("def score", "def paths(self): return [1 / 0]\n    def score", CODE),
    "tables is a table": ("def score", "def tables(self): return [1]\n    def score", RESULT),
    "tables fails": ("def score", "def tables(self): return [SampleTable()]\n    def score", CODE),
    "check fails": ("def score", "def check(self): self.nothing\n    def score", CODE),
    "check exits": ("def score", "def check(self): sys.exit()\n    def score", CODE),
    "construction fails": ("def score", "def __init__(self, *given): raise KeyError('x')\n    def score", CODE),
    "per_sample is a text": ('"here", True', '"here", "yes"', INCOMPLETE),
    "title is None": ('"Own.", "here"', 'None, "here"', INCOMPLETE),
    "name is a number": ('"own", "Own."', '5, "Own."', INCOMPLETE),
    "name leaves the store": ('"own", "Own."', '"../../../X", "Own."', NAME),
    "name is empty": ('"own", "Own."', '"", "Own."', NAME),
    "name has a null character": ('"own", "Own."', '"a\\0", "Own."', NAME),
    "name has half a character": ('"own", "Own."', '"a\\ud800", "Own."', NAME),
    "name is long": ('"own", "Own."', '"a" * 101, "Own."', NAME),
    "name differs in case": ('"own", "Own."', '"Gateau", "Own."', NAME),
    "name is taken by pydantic": ('"own", "Own."', '"model_dump", "Own."', NAME),
}
TABLES: dict[str, tuple[str, str, str]] = {
    "fails": (ROW, "raise ValueError('no row')", CODE),
    "fails at once": ("for sample in samples:", "for sample in samples.all:", CODE),
    "no generator": (f"for sample in samples:\n            {ROW}", "return None", RESULT),
    "too few": (f"{ROW}", f"{ROW}\n            break", RESULT),
    "too many": (ROW, f"{ROW}\n            {ROW}", RESULT),
    "another column": (ROW, ROW.replace('"words"', '"word"'), RESULT),
    "another sample": (ROW, ROW.replace("sample.sample_id", "'x'"), RESULT),
    "NaN": (ROW, ROW.replace("1.0", "math.nan"), RESULT),
    "text": (ROW, ROW.replace("1.0", "'one'"), RESULT),
    "None": (ROW, "yield None", RESULT),
    "reject of another": (ROW, "yield Reject(sample_id='x', reason='odd')", RESULT),
    "reject without reason": (ROW, "yield Reject(sample_id=sample.sample_id, reason=None)", RESULT),
    "name leaves the store": ('"words/long"', '"../words/long"', NAME),
    "name is absolute": ('"words/long"', '"/words/long"', NAME),
    "name is empty": ('"words/long"', '""', NAME),
    "name is no text": ('"words/long"', "5", NAME),
    "name is another table's": ('"words/long"', '"perplexity/long"', NAME),
    "name is a table of the store": ('"words/long"', '"selected_subset"', NAME),
    "columns": ("columns=shown", "columns=shown[1:]", CODE),
    "settings": ("columns=shown", "settings={'a': object()}, columns=shown", RESULT),
}
BENCHMARK = """
import math, sys
import polars as pl
from gateau_dagster.features.evaluation.benchmark import Generation, Measured, MeasuredBenchmark
from gateau_dagster.features.evaluation.benchmark import Question, QuestionBenchmark
from gateau_dagster.config.base import Section
from gateau_dagster.tables import Column

class None_(Section):
    pass

class Own(MeasuredBenchmark):
    name, title, description, unit = "own", "Own", "Own.", "NLL"
    options: None_
    columns = (Column(name="nll", dtype=pl.Float64(), description=""),)
    finite = ("nll",)
    def measure(self, materials, variant):
        return Measured.of([("a", "all", 1.0), ("b", "all", 2.0)])
    def compare(self, measured):
        return Measured(table=pl.DataFrame({"nll": [1.0]}))

class Asked(QuestionBenchmark):
    name, title, description, unit = "asked", "Asked", "Asked.", "%"
    options: None_
    def questions(self, materials):
        return [Question(question_id=name, group="g", turns=("?",), generation=Generation(max_new_tokens=1))
                for name in "ab"]
    def value(self, question, answer):
        return 100.0
"""
MEASURE, COMPARE = 'return Measured.of([("a", "all", 1.0), ("b", "all", 2.0)])', 'pl.DataFrame({"nll": [1.0]})'
BENCHMARKS: dict[str, tuple[str, str, str]] = {
    "measure fails": (MEASURE, "raise ValueError('no value')", CODE),
    "measure exits": (MEASURE, "sys.exit(1)", CODE),
    "measure returns None": (MEASURE, "return None", RESULT),
    "measure returns values": (MEASURE, "return {'a': 1.0}", RESULT),
    "NaN": (MEASURE, MEASURE.replace("2.0", "math.nan"), RESULT),
    "infinite": (MEASURE, MEASURE.replace("2.0", "math.inf"), RESULT),
    "None": (MEASURE, MEASURE.replace("2.0", "None"), RESULT),
    "text": (MEASURE, MEASURE.replace("2.0", "'two'"), CODE),
    "twice": (MEASURE, MEASURE.replace('"b"', '"a"'), RESULT),
    "another table": (MEASURE, "return Measured(table=pl.DataFrame({'x': [1]}))", RESULT),
    "compare has other columns": (COMPARE, "pl.DataFrame({'nl': [1.0]})", RESULT),
    "compare has NaN": (COMPARE, "pl.DataFrame({'nll': [math.nan]})", RESULT),
    "compare has no table": (COMPARE, "None", RESULT),
    "compare is missing": ("def compare", "def other", INCOMPLETE),
    "value is missing": ("def value", "def other", INCOMPLETE),
    "questions fail": ("return [Question", "raise ValueError\n        return [Question", CODE),
    "questions are texts": ("return [Question", "return ['a']\n        return [Question", RESULT),
    "questions have one id": ("question_id=name", "question_id='a'", RESULT),
    "value fails": ("return 100.0", "return 1 / 0", CODE),
    "value is NaN": ("return 100.0", "return math.nan", RESULT),
    "value is None": ("return 100.0", "return None", RESULT),
    "name leaves the store": ('"own", "Own"', '"../own", "Own"', NAME),
    "name is a key": ('"own", "Own"', '"judge", "Own"', NAME),
    "reads is a list": ("def measure", "def reads(self): return ['raw_long_sft']\n    def measure", RESULT),
    "check fails": ("def measure", "def check(self): return 1 / 0\n    def measure", CODE),
    "files fails": ("def measure", "def files(self): return 1 / 0\n    def measure", CODE),
}
RAW = pl.DataFrame({"sample_id": ["a", "b", "c"], "context": ["x", "y", "z"]})
SAMPLES = [Sample(sample_id=name, source="s", context="x", instruction="y", response="z") for name in "abc"]


def configuration(folder: Path, source: str, more: str = "") -> Config:
    file = folder / "own.py"
    file.write_text(source, encoding="utf-8", errors="surrogatepass")
    text = f"""
long_sft: {{path: long.jsonl}}
models: {{short: {{path: a/b}}, long: {{path: a/c}}}}
selection: {{method: own, compare: [gateau], plugins: [own.py]}}
{more}"""
    return parse_project(text, folder=folder)


def replaced(source: str, old: str, new: str) -> str:
    assert source.count(old) >= 1, old
    return source.replace(old, new, 1)


def check_refused(folder: Path, code: str, act: Callable[[], object], whose: str) -> None:
    """Fail unless `act` ends in a GateauError of this code, whose one line names the file and what is broken."""
    with pytest.raises(GateauError) as found:
        act()
    said = str(found.value)
    assert found.value.code == code, f"[{found.value.code}] {said}"
    lines = [line for line in said.splitlines() if line != "The configuration is wrong:"]
    assert len(lines) == 1 and len(said) < 900 and said.isprintable() == (len(said.splitlines()) == 1), said
    assert whose in said and (f"{folder}/own.py" in said or code in ("plugins.reads", NAME)), said


@pytest.mark.parametrize("case", SCORES)
def test_scores_that_cannot_be_used(tmp_path: Path, case: str) -> None:
    body, code = SCORES[case]
    method = chosen_methods(configuration(tmp_path, replaced(METHOD, SCORE, body)))["own"]
    check_refused(tmp_path, code, lambda: method.scores({"raw_long_sft": RAW}), "method own")


@pytest.mark.parametrize("case", LOADED)
def test_a_method_that_cannot_be_used(tmp_path: Path, case: str) -> None:
    old, new, code = LOADED[case]
    check_refused(tmp_path, code, lambda: configuration(tmp_path, replaced(METHOD, old, new)), "")


@pytest.mark.parametrize("case", TABLES)
def test_rows_that_cannot_be_used(tmp_path: Path, case: str) -> None:
    old, new, code = TABLES[case]

    def rows() -> None:
        table = sample_tables(configuration(tmp_path, METHOD + replaced(ROWS, old, new)))["words/long"]
        given: Any = (None, iter(SAMPLES), None)
        assert [*table.score(*given)]

    check_refused(tmp_path, code, rows, "" if code == NAME else "method own")


@pytest.mark.parametrize("case", BENCHMARKS)
def test_a_benchmark_that_cannot_be_used(tmp_path: Path, case: str) -> None:
    old, new, code = BENCHMARKS[case]

    def use() -> None:
        config = configuration(
            tmp_path, METHOD + replaced(BENCHMARK, old, new).replace("class Own(Me", "class Mine(Me"), more
        )
        own, asked = (chosen_benchmarks(config)[name] for name in ("own", "asked"))
        assert isinstance(own, MeasuredBenchmark) and isinstance(asked, QuestionBenchmark)
        materials: Any = None
        own.reads()
        check_compared(own, own.compare({"base": own.measure(materials, "base")}))
        questions = asked.questions(materials)
        answers = pl.DataFrame({"turn": [0, 0], "question_id": ["a", "b"], "answer": ["x", "y"]})
        asked.grade(questions, answers, None)

    more = "evaluation: {benchmarks: [own, asked]}\n"
    check_refused(tmp_path, code, use, "")


@pytest.mark.parametrize(
    "score",
    ["pl.lit(2)", "pl.lit(2).cast(pl.Decimal(10, 2))", "pl.lit(2.0, pl.Float32)", "pl.lit(True)", "pl.lit(None)"],
)
def test_other_numbers_and_lazy_frames_are_scores(tmp_path: Path, score: str) -> None:
    for lazy in ("", ".lazy()"):
        body = f"return raw{lazy}.select(pl.col('sample_id').cast(pl.Categorical), score={score})"
        found = chosen_methods(configuration(tmp_path, replaced(METHOD, SCORE, body)))["own"].scores(
            {"raw_long_sft": RAW}
        )
        assert found.schema == {"sample_id": pl.String, "score": pl.Float64} and found.height == 3


def test_warnings_and_the_check_of_the_data_are_guarded(tmp_path: Path) -> None:
    source = (
        METHOD + "    def warnings(self, accepted): return 'one'\n    def check_data(self, accepted): return 1 / 0\n"
    )
    method = chosen_methods(configuration(tmp_path, source))["own"]
    check_refused(tmp_path, RESULT, lambda: method.warnings(RAW), "method own: warnings()")
    check_refused(tmp_path, CODE, lambda: method.check_data(RAW), "method own: check_data()")


def test_an_interrupt_of_the_user_stays_one(tmp_path: Path) -> None:
    source = replaced(METHOD, SCORE, "import _thread, time; _thread.interrupt_main(); time.sleep(1)")
    method = chosen_methods(configuration(tmp_path, source))["own"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            method.scores({"raw_long_sft": RAW})
    finally:
        signal.signal(signal.SIGINT, before)
