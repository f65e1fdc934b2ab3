"""`python -m gateau_dagster.methods.ladm_text` on small files with a tiny model."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from click.testing import CliRunner, Result

from gateau_dagster.methods import ladm_text
from gateau_dagster.methods.ladm_text import _Reporter, main
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.scoring.focus_scores import FocusPlan, FocusWeights
from gateau_dagster.scoring.span_attention import text_ids
from tests.kit.project import ROOT, command_environment
from tests.kit.tiny_models import loaded_model
from tests.scoring.builders import text_score

LICENCE = (ROOT / "LICENSE").read_text()
PLAN = FocusPlan(span_length=16, local_spans=2, first_scored=5)
SMALL = ["--span-length=16", "--local-spans=2", "--first-scored=5", "--dtype=float32", "--device=cpu"]
TEXTS = {f"t{n}": LICENCE[n * 700 : n * 700 + 260 + 40 * n] for n in range(6)}


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return loaded_model("llama")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, loaded: LoadedModel) -> Path:
    """model/, and texts in two files with four unusable records and one short text."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "out").mkdir()
    loaded.model.save_pretrained(folder / "model")
    loaded.tokenizer.save_pretrained(folder / "model")
    rows = [{"id": name, "text": text, "meta": {"set": "law"}} for name, text in TEXTS.items()]
    lines = [json.dumps(row) for row in rows[:4]]
    lines += ["{broken", '{"id": "x", "meta": {"set": "law"}}', lines[0]]
    lines.append(json.dumps({"id": "y", "text": "half a \ud800 character", "meta": {"set": "law"}}))
    (folder / "some.jsonl").write_text("\n".join(lines))
    others = [row | {"meta": {"set": "other"}} for row in [*rows[4:], {"id": "short", "text": "a few words"}]]
    pl.DataFrame(others).write_parquet(folder / "others.parquet")
    return folder


def run(corpus: Path, *arguments: str, out: str = "scores.parquet", small: list[str] = SMALL) -> Result:
    fields = ["--domain-field=meta.set", "--id-field=id"]
    fixed = [f"--model={corpus / 'model'}", f"--input={corpus / '*.jsonl'}", f"--input={corpus / '*.parquet'}"]
    return CliRunner().invoke(main, [*fixed, *fields, *small, f"--out={corpus / 'out' / out}", *arguments])


def wanted(loaded: LoadedModel, weights: FocusWeights | None = None, most: int = 32_768) -> dict[str, float | None]:
    plan = PLAN
    return {
        n: text_score(loaded, text_ids(loaded.tokenizer, t, max_tokens=most), plan, weights) for n, t in TEXTS.items()
    }


def test_scores_rejects_and_choice(corpus: Path, loaded: LoadedModel) -> None:
    (corpus / "out" / "scores.parquet").write_text("an older file")
    done = run(corpus, "--token-budget=1100", f"--chosen={corpus / 'out' / 'best.jsonl'}")
    assert done.exit_code == 0, done.output
    found = pl.read_parquet(corpus / "out" / "scores.parquet")
    assert found.columns == ["id", "domain", "tokens", "spans", "score", "chosen"]
    assert found["id"].to_list() == [*TEXTS, "short"]
    got = dict(found.select("id", "score").iter_rows())
    assert got.pop("short") is None
    assert got == pytest.approx(wanted(loaded), rel=1e-5) and len(set(got.values())) == 6
    tokens = dict(found.select("id", "tokens").iter_rows())
    assert tokens["t5"] == len(text_ids(loaded.tokenizer, TEXTS["t5"]))
    # Four scored texts of `law`, two of `other`: the best of each domain, then the second of `law` if it fits.
    chosen = found.filter("chosen")
    best = found.filter(pl.col("id") != "short").sort("score", descending=True).group_by("domain").first()
    assert set(best["id"]) <= set(chosen["id"]) and chosen["tokens"].sum() <= 1100 < found["tokens"].sum()
    lines = [json.loads(line) for line in (corpus / "out" / "best.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == chosen["id"].to_list()
    assert all(line["text"] == TEXTS[line["id"]] and line["ladm_score"] == got[line["id"]] for line in lines)
    rejects = [json.loads(line) for line in (corpus / "out" / "scores.rejected.jsonl").read_text().splitlines()]
    assert [reject["id"] for reject in rejects] == ["some.jsonl:5", "some.jsonl:6", "some.jsonl:7", "y"]
    assert [reject["reason"].split(":")[0] for reject in rejects] == [
        "malformed JSON",
        "no text",
        "the name 't0' came before",
        "the text cannot be tokenised",
    ]
    assert "6 texts scored, 1 too short for a score, 4 rejected" in done.output
    assert f"{len(chosen)} chosen from 2 domains: {chosen['tokens'].sum()} of 1100 tokens" in done.output


def test_options_reach_the_score_and_jsonl_can_be_written(corpus: Path, loaded: LoadedModel) -> None:
    done = run(corpus, "--without-deviation", "--without-length", "--max-tokens=200", out="scores.jsonl")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (corpus / "out" / "scores.jsonl").read_text().splitlines()]
    weights = FocusWeights(deviation=False, interval=False, position=False)
    got = {row["id"]: row["score"] for row in rows if row["id"] != "short"}
    assert got == pytest.approx(wanted(loaded, weights, 200), rel=1e-5)
    assert {row["chosen"] for row in rows} == {None}
    assert max(row["spans"] for row in rows) == 200 // 16 and max(row["tokens"] for row in rows) > 200


def slow_gain(loaded: LoadedModel, ids: tuple[int, ...], short: int, step: int) -> float | None:
    """LongFilter's score by a pass per token and context."""

    def probability(before: tuple[int, ...], token: int) -> float:
        return float(loaded.model(torch.tensor([before])).logits[0, -1].double().softmax(dim=0)[token])

    gains = []
    for place in range(short, len(ids)):
        long = probability(ids[:place], ids[place])
        first = (place - short) // step * step
        gains.append(long * math.log(long / probability(ids[first:place], ids[place])))
    return sum(gains) / (len(ids) - 1) if gains else None


@torch.no_grad()
def test_information_gain_is_the_mean_of_what_the_text_before_the_last_tokens_adds(
    corpus: Path, loaded: LoadedModel
) -> None:
    small = ["--score=information_gain", "--short-tokens=30", "--step=8", "--max-tokens=44", *SMALL[-2:]]
    best = corpus / "out" / "gain.jsonl"
    done = run(corpus, "--token-budget=900", f"--chosen={best}", out="gain.parquet", small=small)
    assert done.exit_code == 0, done.output
    found = pl.read_parquet(corpus / "out" / "gain.parquet")
    got = dict(found.select("id", "score").iter_rows())
    expected = {n: slow_gain(loaded, text_ids(loaded.tokenizer, t, max_tokens=44), 30, 8) for n, t in TEXTS.items()}
    # Some gains are nearly zero: differences of log-likelihoods whose float32 rounding is about 1e-7.
    assert got.pop("short") is None and got == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert found["spans"].null_count() == 7 and "6 texts scored, 1 too short for a score, 4 rejected" in done.output
    lines = [json.loads(line) for line in best.read_text().splitlines()]
    assert lines and all(line["information_gain_score"] == got[line["id"]] for line in lines)


def test_a_text_whose_information_gain_is_not_finite_is_rejected(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladm_text, "information_gain", lambda long, short: long * math.nan)
    small = ["--score=information_gain", "--short-tokens=30", "--max-tokens=50", *SMALL[-2:]]
    assert "0 texts scored, 1 too short for a score, 10 rejected" in run(corpus, out="nan.parquet", small=small).output
    lines = (corpus / "out" / "nan.rejected.jsonl").read_text().splitlines()
    assert sum("the information gain is nan: try dtype" in line for line in lines) == 6


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--short-tokens=9"], "--short-tokens is an option of --score information_gain: remove it"),
        (["--score=information_gain"], "--span-length is an option of --score ladm: remove it"),
        (["--out={}/scores.csv"], "end the name in .parquet or .jsonl"),
        (["--out={}/none/scores.parquet"], "none does not exist"),
        (["--chosen={}/best.jsonl"], "--chosen needs --token-budget"),
        (["--chosen={}/best.csv", "--token-budget=5"], "end the name in .jsonl"),
        (["--chosen={}/bad.jsonl", "--token-budget=5", "--out={}/out/../bad.jsonl"], "bad.jsonl writes this file"),
        (["--chosen={}/out/bad.rejected.jsonl", "--token-budget=5"], "bad.parquet writes this file: give another name"),
        (["--input={}/out/bad.rejected.jsonl"], "bad.rejected.jsonl, an input (--input)"),
        (["--first-scored=3"], "--first-scored must be above"),
        (["--max-tokens=95"], "--max-tokens 95: no text can be scored below 96 tokens: raise it, or lower"),
        (["--variant=program"], "--local-spans: the authors' program does not have this option: remove it"),
        (["--rope-theta=-1"], "--rope-theta -1: the base of a rotary embedding is a number above 0"),
        (["--rope-theta=0"], "--rope-theta 0: the base"),
        (["--rope-theta=nan"], "--rope-theta nan: the base"),
        (["--input={}/nothing.jsonl"], "matches no data file"),
        (["--out={}/others.parquet"], "others.parquet, an input (--input)"),
        (["--out={}/link.jsonl"], "[storage.file_in_use]"),
        (["--out={}/model/new.jsonl"], "[storage.file_in_use]"),
        (["--chosen={}/hard.jsonl", "--token-budget=5"], "[storage.file_in_use]"),
        (["--model={}/none"], "the model folder"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(corpus: Path, arguments: list[str], reason: str) -> None:
    (corpus / "out" / "bad.rejected.jsonl").write_text('{"text": "an input that must not be overwritten"}')
    before = {file: file.stat().st_mtime_ns for file in corpus.rglob("*")}
    done = run(corpus, *[one.format(corpus) for one in arguments], out="bad.parquet")
    assert done.exit_code == 1 and done.output.startswith("Error: ") and reason in done.output
    assert {file: file.stat().st_mtime_ns for file in corpus.rglob("*")} == before


def test_a_length_that_no_information_gain_fits_is_named(corpus: Path) -> None:
    done = run(corpus, "--max-tokens=4096", small=["--score=information_gain"])
    assert done.exit_code == 1 and "no text can be scored below 4097 tokens: raise it, or lower --short" in done.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--token-budget=10"], "not even the first text, the best of its domain, fits: raise it."),
        (["--token-budget=9999", "--input={}/others.parquet", "--first-scored=60"], "no text has a score."),
    ],
)
def test_a_budget_that_chooses_nothing_is_an_error_that_keeps_the_scores(
    corpus: Path, arguments: list[str], reason: str
) -> None:
    best = corpus / "out" / "none.jsonl"
    done = run(corpus, *[one.format(corpus) for one in arguments], f"--chosen={best}", out="kept.parquet")
    assert done.exit_code == 1
    assert f"{reason} The scores are in {corpus / 'out' / 'kept.parquet'}" in done.output
    assert not best.exists()
    found = pl.read_parquet(corpus / "out" / "kept.parquet")
    assert found.height >= 3 and not found["chosen"].any()


@pytest.mark.parametrize("arguments", [[], ["--token-budget=9", "--chosen={}/out/some.jsonl"]])
def test_a_folder_is_no_file_to_write(corpus: Path, arguments: list[str]) -> None:
    name = "some.jsonl" if arguments else "folder.parquet"
    (corpus / "out" / name).mkdir()
    try:
        found = run(corpus, *(each.format(corpus) for each in arguments), out="x.jsonl" if arguments else name)
    finally:
        (corpus / "out" / name).rmdir()
    assert found.exit_code == 1 and f"{name} is a folder: name a file in it" in found.output


def test_scores_are_kept_where_the_chosen_records_cannot_be_read(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise OSError("the server is gone")

    monkeypatch.setattr("gateau_dagster.methods.ladm_text.records_of", gone)
    chosen = corpus / "out" / "lost.jsonl"
    found = run(corpus, "--token-budget=400", f"--chosen={chosen}", out="kept.parquet")
    assert found.exit_code == 1 and "the server is gone" in found.output and not chosen.exists()
    assert pl.read_parquet(corpus / "out" / "kept.parquet")["score"].count() == len(TEXTS)
    assert (corpus / "out" / "kept.rejected.jsonl").exists()


def test_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock: Any = iter([0.0, 0.0, 1.0, 1.0, 20.0, 20.0, 20.0])
    monkeypatch.setattr("gateau_dagster.methods.ladm_text.time.monotonic", lambda: next(clock))
    reporter = _Reporter(200)
    reporter(10, 1)
    reporter(50, 7)
    reporter.end()
    assert capsys.readouterr().err == "7 texts scored, 25 % of the input read, 20 s\n"


def test_help_is_there_in_a_moment_without_torch() -> None:
    code = "import sys, gateau_dagster.methods.ladm_text as m; assert 'torch' not in sys.modules; m.main(['--help'])"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=command_environment()
    )
    assert done.returncode == 0, done.stderr
    for word in ("--token-budget", "--without-deviation", "rejected.jsonl", "n_0"):
        assert word in done.stdout
