"""Texts to a training mix: exact shares, every token trained, the same mix whatever order the files are read in."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from transformers import PreTrainedTokenizerBase

from gateau_dagster.config.models import HomologousOptions
from gateau_dagster.data.sources import resolve_files
from gateau_dagster.data.streams import unheard
from gateau_dagster.data.text_corpus import CorpusText
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.features.text_mix.mix import Origin, TextMix, TextSource, build_text_mix, pieces_of
from gateau_dagster.training.batch_plan import mix_order
from gateau_dagster.training.encode import IGNORED
from tests.kit.error_codes import refused
from tests.training.builders import tokenizer

BOS, EOS = 0, 1


def text(words: str, name: str = "t") -> CorpusText:
    return CorpusText(name=name, domain="d", text=words, file=0, record=1)


def ids(words: str, tokens: PreTrainedTokenizerBase) -> list[int]:
    return tokens(words, add_special_tokens=False)["input_ids"]  # pyright: ignore


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("length", [16, 17, 40])
def test_pieces_put_together_are_the_text(bos: bool, eos: bool, length: int) -> None:
    tokens = tokenizer(bos=bos, eos=eos)
    for size in range(1, 60):
        body = ids("q" * size, tokens)
        if not bos and not eos and len(body) < 2:
            with pytest.raises(UnscorableSampleError, match="no tokens to learn"):
                pieces_of(text("q" * size), tokens, length=length)
            continue
        pieces = pieces_of(text("q" * size), tokens, length=length)
        assert all(2 <= len(piece.input_ids) <= length for piece in pieces)
        assert all(len(piece.input_ids) == length for piece in pieces[:-1])
        assert not bos or all(piece.input_ids[0] == BOS for piece in pieces)
        joined = list(chain.from_iterable(piece.input_ids[int(bos) :].tolist() for piece in pieces))
        # What may be missing: eos without room for it, or a last token that nothing would come before.
        wanted = body + [EOS] * eos
        assert joined == wanted[: len(joined)] and len(joined) >= len(body) - (0 if bos else 1)
        assert not eos or joined[-1:] == [EOS] or len(pieces[-1].input_ids) == length
        assert len({piece.name for piece in pieces}) == len(pieces)


def write(path: Path, texts: dict[str, str]) -> None:
    path.write_text("".join(json.dumps({"text": one, "id": name}) + "\n" for name, one in texts.items()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Long texts in a file each and in two data files, short ones in one; some records are no texts."""
    rng = np.random.default_rng(3)

    def words(least: int, most: int) -> str:
        return " ".join(str(number) for number in rng.integers(100, 999, rng.integers(least, most)))

    (tmp_path / "long").mkdir()
    for number in range(4):
        (tmp_path / "long" / f"book{number}.txt").write_text(words(40, 90))
    write(tmp_path / "long" / "a.jsonl", {f"a{number}": words(10, 60) for number in range(6)} | {"empty": " "})
    write(tmp_path / "long" / "b.jsonl", {f"b{number}": words(10, 60) for number in range(6)})
    (tmp_path / "long" / "bad.txt").write_bytes(b"\xff\xfe\0")
    write(tmp_path / "short.jsonl", {f"s{number}": words(3, 9) for number in range(30)})
    return tmp_path


def mixed(folder: Path, *, short: bool = True, **options: Any) -> TextMix:
    section = HomologousOptions.model_validate({"texts": "long", "length": 64, **options})

    def source(origin: Origin, path: str | list[str], least_tokens: int = 0) -> TextSource:
        files = resolve_files(path, folder, plain_texts=True)
        own = {"least_tokens": least_tokens, "join_by": section.join_by if origin == "long" else None}
        return TextSource(origin=origin, files=files, text_field="text", on_bytes=unheard, **own)

    long = source("long", section.texts, section.least_tokens)
    return build_text_mix(long, source("short", "short.jsonl") if short else None, tokenizer(), options=section)


def held(made: TextMix, origin: str) -> int:
    return int(made.mix.filter(pl.col("origin") == origin)["input_ids"].list.len().sum())


def test_shares_are_of_tokens_and_exact(folder: Path) -> None:
    made = mixed(folder, tokens=800)
    assert (held(made, "long"), held(made, "short")) == (480, 320)
    assert made.epochs["long"] <= 1
    assert mixed(folder, tokens=800, short=False).epochs.keys() == {"long"}
    assert held(mixed(folder, tokens=800, short=False), "long") == 800
    assert held(mixed(folder, tokens=800, long_share=1.0), "long") == 800


def test_without_a_number_the_texts_decide_and_none_occurs_twice(folder: Path) -> None:
    everything = mixed(folder, short=False)
    assert everything.epochs == {"long": 1.0}
    all_long, all_short = held(everything, "long"), held(mixed(folder, long_share=0.01), "short")
    made = mixed(folder)
    total = min(all_long / 0.6, all_short / 0.4)
    assert held(made, "long") == pytest.approx(0.6 * total, abs=2)
    assert held(made, "short") == pytest.approx(0.4 * total, abs=2)
    assert made.mix["sample_id"].is_unique().all()


def test_every_token_is_trained_but_the_first(folder: Path) -> None:
    for row in mixed(folder, tokens=3000).mix.iter_rows(named=True):
        assert row["labels"] == [IGNORED, *row["input_ids"][1:]]
        assert row["block_tokens"] == [0, len(row["input_ids"])]
        assert row["input_ids"][0] == BOS and len(row["input_ids"]) <= 64


def test_the_rows_are_the_texts_tokens(folder: Path) -> None:
    made = mixed(folder, short=False).mix
    for number in range(4):
        name = f"book{number}.txt"
        parts = made.filter(pl.col("sample_id").str.starts_with(name)).sort("sample_id")
        joined = [token for row in parts["input_ids"].to_list() for token in row[1:]]
        assert joined == [*ids((folder / "long" / name).read_text(), tokenizer()), EOS]
        assert parts["source"].unique().to_list() == [f"book{number}"]


def test_too_few_texts_are_repeated(folder: Path) -> None:
    made = mixed(folder, tokens=20_000)
    assert (held(made, "long"), held(made, "short")) == (12_000, 8_000)
    assert made.epochs["short"] > 1
    counts = made.mix.filter(pl.col("origin") == "short").group_by("sample_id").len()["len"]
    assert counts.max() - counts.min() <= 1  # pyright: ignore
    places = made.mix.with_row_index().group_by("sample_id").agg("index", gap=pl.col("index").diff().drop_nulls())
    gaps = places["gap"].explode().drop_nulls().to_numpy()
    # By lot some neighbours are the same; side by side all would be, and round after round all gaps would be alike.
    assert len(gaps) > 400 and (gaps > 1).mean() > 0.97
    assert gaps.std() > 0.5 * gaps.mean(), "a text that occurs again stands in another place of its round"


def test_what_cannot_be_used_has_its_reason(folder: Path) -> None:
    made = mixed(folder, least_tokens=100)
    reasons = dict(made.rejected.iter_rows())
    assert reasons["a.jsonl:7"] == "no text: the field 'text' is empty"
    assert reasons["bad.txt"] == "wrong file type: bad.txt is binary data"
    short = {name for name, reason in reasons.items() if reason.startswith("too short: ")}
    lengths = {}
    for name, length in mixed(folder, short=False).mix.select("sample_id", pl.col("input_ids").list.len()).iter_rows():
        lengths[name.split("#")[0]] = lengths.get(name.split("#")[0], 0) + length
    assert short == {name for name, length in lengths.items() if length < 100}
    assert not any(name.startswith("short") for name in short), "of long texts only"


@pytest.mark.parametrize("tokens", [None, 600])
def test_all_texts_count_that_the_mix_is_drawn_from(folder: Path, tokens: int | None) -> None:
    made = mixed(folder, tokens=tokens)
    assert (made.given, made.rejected.height) == (4 + 6 + 6 + 30 + 2, 2)


@pytest.mark.parametrize("left", ["", "other words\n"])
def test_a_text_that_changes_between_its_readings_is_an_error(
    folder: Path, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ordered(*arguments: Any) -> list[int]:
        (folder / "long" / "book2.txt").write_text(left)
        return mix_order(*arguments)

    monkeypatch.setattr("gateau_dagster.features.text_mix.mix.mix_order", ordered)
    with refused("data.changed", r"book2\.txt:1"):
        mixed(folder)


def test_the_draw_goes_by_the_seed_and_not_by_the_order_of_files(folder: Path, tmp_path: Path) -> None:
    made = mixed(folder, tokens=900)
    assert mixed(folder, tokens=900).mix.equals(made.mix)
    turned = mixed(folder, tokens=900, texts=["long/b.jsonl", "long/*.txt", "long/a.jsonl"])
    assert turned.mix.equals(made.mix)
    other = mixed(folder, tokens=900, seed=1)
    assert {*other.mix["sample_id"]} != {*made.mix["sample_id"]}
    drawn = {name.split("#")[0].split(".")[0] for name in made.mix["sample_id"]}
    assert len(drawn) > 3, "texts of all files are drawn"


def test_no_more_is_tokenised_than_is_drawn_but_for_a_little(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def counted(one: CorpusText, *arguments: Any, **options: Any) -> Any:
        seen.append(one.name)
        return pieces_of(one, *arguments, **options)

    monkeypatch.setattr("gateau_dagster.features.text_mix.mix.pieces_of", counted)
    mixed(folder, tokens=300, short=False)
    assert len(seen) == len({*seen}) < 10


def test_the_files_of_a_repository_are_one_text(folder: Path) -> None:
    """They are joined in the files' order, wherever they stand; a text file is a text of its own."""
    files = [("one", "a b"), ("two", "c " * 90), ("one", "d"), (None, "lost"), (7, "e f"), ("one", "g")]
    for name, part in (("x", files[:3]), ("y", files[3:])):
        lines = [json.dumps({"text": text, "meta": {"repo": repo}}) + "\n" for repo, text in part]
        (folder / "long" / f"{name}.jsonl").write_text("".join(lines))
    made = mixed(folder, texts=["long/x.jsonl", "long/y.jsonl", "long/book1.txt"], join_by="meta.repo", short=False)
    found: dict[str, list[int]] = {}
    for name, row in sorted(made.mix.select("sample_id", "input_ids").iter_rows()):
        found.setdefault(name.split("#")[0], []).extend(row[1:])
    wanted = {"one": "a b\n\nd\n\ng", "two": "c " * 90, "7": "e f"}
    wanted["book1.txt:1"] = (folder / "long" / "book1.txt").read_text()
    assert found == {name: [*ids(text, tokenizer()), EOS] for name, text in wanted.items()}
    assert dict(made.rejected.iter_rows()) == {
        "y.jsonl:1": "no value to join by: the field 'meta.repo' holds no text or whole number"
    }
    enough = mixed(folder, texts="long/x.jsonl", join_by="meta.repo", short=False, least_tokens=5)
    assert {name.split("#")[0] for name in enough.mix["sample_id"]} == {"one", "two"}, "the joined text counts"


def test_texts_without_a_text_are_an_error(folder: Path) -> None:
    write(folder / "none.jsonl", {"a": ""})
    with refused("training.no_text", "1.*'text'"):
        mixed(folder, texts="none.jsonl")
    with refused("training.no_text", "least_tokens.*9999"):
        mixed(folder, least_tokens=9999)
