"""The real example end to end: a generated data set in real forms, few steps, in folders with spaces in their names."""

import gzip
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from gateau_dagster.config import Config
from gateau_dagster.features.demo.language import ADJECTIVES, NOUNS, VERBS
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.methods.registry import all_methods, chosen_methods
from tests.kit.project import ROOT, command_environment

SOURCES = ("report", "meeting")


def document(number: int, sentences: int) -> str:
    """English-like prose of `sentences` sentences with punctuation, capitals and paragraphs."""
    rng = np.random.default_rng(number)
    text = []
    for place in range(sentences):
        noun, target = rng.choice(NOUNS, size=2)
        verb, adjective = rng.choice(VERBS), rng.choice(ADJECTIVES)
        text.append(f"In {1900 + int(rng.integers(100))} the {adjective} {noun} {verb} the {target} — once more.")
        if place % 7 == 6:
            text.append("\n")
    return " ".join(text)


def record(number: int) -> dict[str, object]:
    """A LongAlign record: document, blank line and instruction in the user's turn."""
    text = document(number, sentences=20 + 4 * number)
    question = f"Which year stands in sentence {number + 1}?"
    answer = f"It is {text.split()[1]}, says the document."
    messages = [{"role": "user", "content": f"{text}\n\n{question}"}, {"role": "assistant", "content": answer}]
    return {"id": f"doc-{number:03d}", "source": SOURCES[number % 2], "messages": messages, "length": len(text)}


def write_long(path: Path, count: int) -> None:
    """`count` records as gzipped JSON lines."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record(number)) + "\n" for number in range(count))


def write_short_chat(path: Path, count: int) -> None:
    """`count` ShareGPT conversations in one JSON array."""
    turns = [
        [{"from": "human", "value": f"Who is number {number}?"}, {"from": "gpt", "value": document(500 + number, 1)}]
        for number in range(count)
    ]
    path.write_text(json.dumps([{"id": f"chat-{i}", "conversations": pair} for i, pair in enumerate(turns)]))


EXAMPLE = ROOT / "examples" / "real"
SAMPLES = 10


def small_settings(folder: Path) -> Path:
    """The example's own settings, with less of everything."""
    content = yaml.safe_load((EXAMPLE / "gateau.yaml").read_text())
    content["long_sft"]["shards"] = 2
    content["scoring"]["max_length"] = content["training"]["max_length"] = 1024
    content["training"] |= {"max_steps": 2, "gradient_accumulation": 2}
    content["evaluation"]["heldout"] = {"samples": 3, "buckets": [512, 1024]}
    content["evaluation"]["needle"] = {"lengths": [256], "depths": [0.0, 1.0], "repeats": 1}
    file = folder / "small settings.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def run_example(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`run.py` in a process, on relative paths from `folder`."""
    command = [sys.executable, str(EXAMPLE / "run.py"), "--out", "my output", *options]
    return subprocess.run(
        command, cwd=folder, env=command_environment(), capture_output=True, text=True, check=False, timeout=300
    )


def stored_times(folder: Path) -> dict[str, int]:
    """When each file of pair and store was written, but that by which a run holds the store."""
    files = [*(folder / "pair").rglob("*"), *(folder / "store").rglob("*"), folder / "gateau.yaml"]
    return {str(file): file.stat().st_mtime_ns for file in files if file.is_file() and file.parent.name != "_lease"}


class Finished:
    """Two runs of the example, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "my output"
        write_long(folder / "long data.jsonl.gz", SAMPLES)
        write_short_chat(folder / "chat.json", 6)
        self.options = [
            *("--long", "long data.jsonl.gz", "--short-chat", "chat.json"),
            *("--settings", str(small_settings(folder)), "--steps-short", "2", "--steps-long", "1"),
        ]
        self.first = run_example(folder, *self.options)
        assert self.first.returncode == 0, self.first.stdout + self.first.stderr
        self.times = stored_times(self.out)
        self.second = run_example(folder, *self.options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(tmp_path_factory.mktemp("real example"))


@pytest.mark.long
def test_the_example_ends_with_a_report_on_every_sample(finished: Finished):
    scores = pl.read_parquet(finished.out / "store" / "combined_scores.parquet")
    assert sorted(scores["sample_id"]) == [f"doc-{number:03d}" for number in range(SAMPLES)]
    assert scores["score"].is_finite().all()
    assert pl.read_parquet(finished.out / "store" / "selected_subset.parquet").height == 2
    page = (finished.out / "store" / "report.html").read_text()
    assert all(word in page for word in ("robust", "official", "paper", "needle", "doc-00"))
    assert "Report:" in finished.first.stdout and "minutes" in finished.first.stdout
    assert "Traceback" not in finished.first.stdout + finished.first.stderr


@pytest.mark.long
def test_the_second_run_computes_nothing_and_says_so(finished: Finished):
    assert finished.second.returncode == 0, finished.second.stderr
    assert "nothing to train" in finished.second.stdout and "Everything is up to date" in finished.second.stdout
    assert stored_times(finished.out) == finished.times


@pytest.mark.long
def test_the_pair_is_homologous_and_loads_on_its_own(finished: Finished):
    short, long = (AutoModelForCausalLM.from_pretrained(finished.out / "pair" / name) for name in ("short", "long"))
    assert (short.config.max_position_embeddings, long.config.max_position_embeddings) == (1024, 4096)
    assert short.config.rope_parameters["rope_theta"] < long.config.rope_parameters["rope_theta"]
    pairs = list(zip(short.state_dict().items(), long.state_dict().values(), strict=True))
    # theta_B began as theta_A: one step later they are near, but not the same.
    distances = [float((a - b).norm() / a.norm()) for (_, a), b in pairs]
    assert 0 < max(distances) < 0.2
    texts = ["Words, 1984 — naïve 文字 🎉\n\n### Input: ", document(3, 4)]
    for name in ("short", "long"):
        tokenizer = AutoTokenizer.from_pretrained(finished.out / "pair" / name)
        for text in texts:
            assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
        assert tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id


@pytest.mark.long
def test_the_configuration_names_the_data_where_it_is(finished: Finished):
    content = yaml.safe_load((finished.out / "gateau.yaml").read_text())
    assert content["long_sft"]["path"] == str(finished.folder / "long data.jsonl.gz")
    assert content["short_chat"] == {"path": str(finished.folder / "chat.json"), "fraction": 1.0}
    assert content["models"]["short"]["path"] == "pair/short"


@pytest.mark.long
def test_a_wrong_path_is_one_readable_message(tmp_path: Path):
    done = run_example(tmp_path, "--long", "nowhere.jsonl")
    assert done.returncode == 1
    assert "Error:" in done.stdout and "nowhere.jsonl" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "my output" / "pair").exists()


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the example, as its scripts do: its folder is on the path."""
    monkeypatch.syspath_prepend(str(EXAMPLE))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({}, {"judge", "target", "scores"}),
        ({"evaluation": {"judge": {"base_url": "http://judge/v1", "model": "m"}}}, {"target", "scores"}),
        ({"selection": {"options": {"target": {"sources": ["wanted"]}}}}, {"judge", "scores"}),
    ],
)
def test_all_methods_are_those_that_can_be(
    example: Any, tmp_path: Path, given: dict[str, Any], left_out: set[str]
) -> None:
    content = example("run").configuration(EXAMPLE / "gateau.yaml", long="a.jsonl", short_chat=None)
    for section, values in given.items():
        content[section] |= values
    config = Config.model_validate({**example("run").with_all_methods(content), "folder": tmp_path})
    assert {*chosen_methods(config)} == {*all_methods()} - left_out


def test_the_settings_are_valid_and_fit_the_pair(example: Any, tmp_path: Path):
    content = example("run").configuration(EXAMPLE / "gateau.yaml", long="a.jsonl", short_chat=None)
    config = Config.model_validate({**content, "folder": tmp_path})
    assert config.short_chat is None
    assert config.models["short"].context == "window"
    windows, needle = example("build_pair").LONG_WINDOW, evaluation_of(config).sections["needle"]
    assert config.scoring.max_length == config.training.max_length == max(needle["lengths"]) == windows


def test_addresses_hold_from_another_folder(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    address = example("run").address
    for local in ("a b.jsonl", "data/**/*.jsonl", "owner/[ab].jsonl", "./missing/x.jsonl"):
        assert address(local) == str(tmp_path / local)
    for elsewhere in ("THUDM/LongAlign-10k", "s3://bucket/a.jsonl", "hf://datasets/owner/name/*.parquet"):
        assert address(elsewhere) == elsewhere
    (tmp_path / "THUDM").mkdir()
    assert address("THUDM/LongAlign-10k") == str(tmp_path / "THUDM" / "LongAlign-10k")


def test_only_what_the_settings_change_is_trained_again(example: Any, tmp_path: Path):
    build_pair, console = example("build_pair"), example("rich.console").Console(quiet=True)
    data, out = tmp_path / "long.jsonl.gz", tmp_path / "pair"
    write_long(data, 3)

    def weights(name: str) -> bytes:
        return (out / name / "model.safetensors").read_bytes()

    def build(**changes: int) -> tuple[bool, bytes, bytes]:
        settings = {"steps_short": 2, "steps_long": 0, "vocabulary": 300, "hidden": 32, "layers": 1, **changes}
        built = build_pair.build_pair(str(data), out, build_pair.Recipe(**settings), console)
        return built, weights("short"), weights("long")

    first, short, long = build()
    assert first and build() == (False, short, long)
    longer, same_short, other_long = build(steps_long=1)
    assert longer and same_short == short and other_long != long
    reseeded, other_short, _ = build(seed=1)
    assert reseeded and other_short != short
    again, short_again, long_again = build()
    assert again and (short_again, long_again) == (short, long)
    write_long(data, 4)
    changed, *_ = build()
    assert changed
    assert sorted(file.name for file in out.iterdir()) == ["long", "short"]


def test_a_folder_is_complete_or_absent(example: Any, tmp_path: Path):
    class Full:
        def save_pretrained(self, folder: Path) -> None:
            folder.mkdir()
            (folder / "half").write_text("")
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        example("build_pair").save(tmp_path / "short", Full(), None, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", [16, 250, 4096])
def test_passages_come_back_in_a_row(example: Any, length: int):
    rows = example("text_rows")
    ids = np.arange(10_000)  # each token once, so that what stands twice is a copy
    found = [rows.text_row(ids, length, np.random.default_rng(seed)) for seed in range(5)]
    for row in found:
        assert row.shape == (length,) and row.dtype == np.int64
        places = {int(token): np.flatnonzero(row == token) for token in np.unique(row)}
        copied = sum(len(at) - 1 for at in places.values())
        assert 0.15 * length < copied < 0.6 * length
    if length > 1024:
        farthest = max(int(np.ptp(np.flatnonzero(row == token))) for row in found for token in np.unique(row))
        assert farthest > 1024  # farther apart than theta_A sees


def test_a_text_shorter_than_a_row_is_repeated(example: Any):
    row = example("text_rows").text_row(np.arange(5), 64, np.random.default_rng(0))
    assert row.shape == (64,) and set(row.tolist()) <= set(range(5))


def test_a_stage_counts_the_tokens_it_trains_on(example: Any):
    stage = example("text_rows").Stage(name="x", steps=3, shapes=((2, 32), (1, 64)))
    batches = [stage.batch(step, np.arange(500), np.random.default_rng(step)) for step in range(3)]
    assert [batch.shape for batch in batches] == [(2, 32), (1, 64), (2, 32)]
    assert stage.tokens == sum(batch.size for batch in batches)


def test_the_rate_rises_and_falls(example: Any):
    build_pair = example("build_pair")
    factors = [build_pair.rate_factor(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1) and max(factors) == 1.0 == factors[60] and factors[99] < 0.15
    assert factors[:10] == sorted(factors[:10]) and factors[60:] == sorted(factors[60:], reverse=True)
    assert all(factor > 0 for factor in (build_pair.rate_factor(step, 1) for step in range(2)))


def test_the_recipe_of_theta_a_ignores_theta_b(example: Any):
    build_pair = example("build_pair")
    few, many = (build_pair.wanted_recipes(build_pair.Recipe(steps_long=n), ["text"]) for n in (1, 2))
    assert few["short"] == many["short"] and few["long"] != many["long"]
    assert json.loads(json.dumps(few["short"])) == few["short"]
