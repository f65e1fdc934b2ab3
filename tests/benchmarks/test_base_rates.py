"""Base rates: every form of data is read, classes are those of the evidence, and a stopped run resumes."""

import json
from pathlib import Path
from typing import Any

import base_rates
import common_selection
import pytest
from common_selection import JoinedTables, Tables

from gateau_dagster.data.sample import text_digest
from gateau_dagster.selection.evidence import CLASS_OF, dependencies
from gateau_dagster.selection.forecast import corrected_share
from tests.kit import tiny_models
from tests.kit.project import write_model
from tests.kit.tiny_models import text

COUNT, SAMPLES = 9, 6


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("base_rates")
    write_model(folder / "tiny", seed=1, window=4096, tokenizer=tiny_models.tokenizer())
    records = [
        {"id": f"d{number}", "context": text(number, 90), "instruction": "And?", "response": text(number + 50, 6)}
        for number in range(COUNT)
    ]
    (folder / "documents.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    turns = [{"from": "human", "value": text(70, 40)}, {"from": "gpt", "value": text(71, 9)}]
    (folder / "chats.json").write_text(json.dumps([{"id": "c0", "conversations": [*turns, *turns]}]))
    sets = [f"documents={folder / 'documents.jsonl'}", f"chats={folder / 'chats.json'}"]
    sizes = ["--sizes", "200/120", "200/160", "--samples", str(SAMPLES), "--dtype", "float32"]
    return ["--sets", *sets, "--model", str(folder / "tiny"), *sizes, "--folder", str(folder / "kept")]


@pytest.fixture(scope="module")
def found(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("out") / "found.json"
    assert base_rates.main([*arguments, "--out", str(out)]) == 0
    return json.loads(out.read_text())


def test_classes_are_those_of_the_evidence(arguments: list[str], found: dict[str, Any]) -> None:
    given = base_rates.parse(arguments)
    assert {name: list(sizes) for name, sizes in found["results"].items()} == {
        "documents": ["200/120", "200/160"],
        "chats": ["200/120", "200/160"],
    }
    assert found["results"]["chats"]["200/120"]["samples"] == 1
    same = {"folder": given.folder, "model": given.model, "dtype": "float32", "device": "cpu"}
    for (label, file), (tokens, window) in ((of, size) for of in given.sets[:1] for size in given.sizes):
        cases = (
            base_rates.SetCase(label=label, file=file, tokens=tokens, window=window, part=part, **same)
            for part in (0, 1)
        )
        known = JoinedTables([Tables(case) for case in cases])
        of = dependencies(known["cam"], known["perplexity/long"])["dependency"].to_list()
        result = found["results"][label][f"{tokens}/{window}"]
        far = sum(CLASS_OF[each] == "far" for each in of)
        assert result["samples"] == len(of) == sum(result["classes"].values()) == 8  # in fours
        assert result["classes"]["far"] == far and result["seen"]["value"] == far / len(of)
        corrected = corrected_share(far, len(of))
        assert result["corrected"] == {"value": corrected.value, "low": corrected.low, "high": corrected.high}


def test_samples_are_drawn_by_the_hash_of_their_ids(arguments: list[str]) -> None:
    file = base_rates.parse(arguments).sets[0][1]
    order = sorted((f"d{number}" for number in range(COUNT)), key=lambda name: text_digest([name]))
    assert [each["id"] for each in base_rates.drawn_samples(file, 0, 3)] == order[:3]
    assert [each["id"] for each in base_rates.drawn_samples(file, 8, 12)] == order[8:]


def test_a_run_resumes(arguments: list[str], found: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(common_selection, "load_model", refuse)
    base_rates.main([*arguments, "--out", str(tmp_path / "again.json")])
    assert json.loads((tmp_path / "again.json").read_text())["results"] == found["results"]


def test_the_seen_share_is_in_its_interval() -> None:
    for far, total in ((0, 5), (5, 5), (3, 40), (20, 40)):
        share = base_rates.seen_share(far, total)
        assert 0 <= share.low <= share.value == far / total <= share.high <= 1
    assert base_rates.seen_share(20, 40).high - base_rates.seen_share(20, 40).low == pytest.approx(0.30, abs=0.01)
    with pytest.raises(SystemExit):
        base_rates.parse(["--sets", "nameless.jsonl", "--model", "m"])
