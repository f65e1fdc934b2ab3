"""Rejects in few words, and the share above which the input is refused."""

import gzip
import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.config import LongSftConfig, ShortChatConfig
from gateau_dagster.data.index import build_index
from gateau_dagster.data.rejects import Rejects, check_rejected, rejects_among, rejects_among_chats
from tests.kit.error_codes import refused

from .inputs import explicit, jsonl, parquet

LIST = json.dumps([explicit(number) for number in range(3)])


def columns(*names: str, rows: int) -> bytes:
    """A parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([pa.array(["a"] * rows)] * len(names), names=list(names)), sink)
    return sink.getvalue().to_pybytes()


def among(given: int, *reasons: str | None, named: bool = False) -> Rejects:
    rows = [(f"s{number}", reason) for number, reason in enumerate(reasons)]
    table = pl.DataFrame(rows, schema={"sample_id": pl.String, "reason": pl.String}, orient="row")
    return rejects_among(table, given, named=named)


def test_reasons_that_differ_in_numbers_and_quoted_text_are_one_kind() -> None:
    found = among(200, *(f"it takes {number} tokens, more than the 1,024 of 'm{number}'" for number in range(50)), "x")
    assert [(kind.kind, kind.count) for kind in found.kinds] == [
        ("it takes 0 to 49 tokens, more than the 1,024 of …", 50),
        ("x", 1),
    ]
    assert found.kinds[0].examples[0] == ("s0", "it takes 0 tokens, more than the 1,024 of 'm0'")
    assert found.sentence().startswith("51 of 200 samples rejected (25.5 %): 50 x it takes 0 to 49 tokens")
    assert found.notable


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=5), st.sampled_from(["{}", "{:,}", "{}.5"]))
def test_a_kind_has_the_range_of_its_amounts(numbers: list[int], form: str) -> None:
    (kind,) = among(9, *(f"take {form.format(number)} tokens, more than the 256 of it." for number in numbers)).kinds
    ends = dict.fromkeys(form.format(number) for number in (min(numbers), max(numbers)))
    assert kind.kind == f"take {' to '.join(ends)} tokens, more than the 256 of it."


@pytest.mark.parametrize("form", ["the texts of nq-{}", "see f{}", "at f.jsonl:{}: no", "version 1.{}.2", "a {}/3"])
def test_a_number_in_a_name_is_no_amount(form: str) -> None:
    (kind,) = among(2, form.format(1), form.format(3)).kinds
    assert "…" in kind.kind and " to " not in kind.kind


def test_reasons_may_hold_the_signs_of_a_range() -> None:
    odd = ["… is 3", "7 is …", "\0 is 3", "", "5", "6 to 8"]
    assert sum(kind.count for kind in among(len(odd), *odd).kinds) == len(odd)


def test_of_the_input_s_reasons_the_kind_stands_before_the_colon() -> None:
    reasons = ["unknown form: found a", "unknown form: found b", "empty response: nothing to learn", None]
    found = among(5, *reasons, named=True)
    assert found.sentence("record") == (
        "4 of 5 records rejected (80 %): 2 x unknown form; 1 x empty response; 1 x no reason given"
    )
    assert [kind.kind for kind in among(5, *reasons).kinds] == sorted(reason or "no reason given" for reason in reasons)


def test_rare_kinds_are_counted_together() -> None:
    found = among(10, *"aaabbcde")
    assert found.sentence() == "8 of 10 samples rejected (80 %): 3 x a; 2 x b; 1 x c; 2 for other reasons"


def test_a_file_that_could_not_be_read_to_its_end_is_worth_a_warning() -> None:
    found = among(1000, "truncated gzip: ended before the end", "empty response: x", named=True)
    assert found.notable and found.share < 0.1
    file = "1 of them for a file that could not be read to its end"
    assert found.amount("record") == f"2 of 1,000 records rejected (0.2 %), {file}"
    assert not among(1000, "truncated gzip: it is a sample's own reason").notable


FILES: dict[str, tuple[bytes, int]] = {
    "a comma too many.json": (LIST.replace("}, {", "},, {", 1).encode(), 1),
    "two lists.json": ((LIST + LIST).encode(), 1),
    "not closed.json": (LIST[:-1].encode(), 1),
    "cut after a comma.json": ((LIST[:-1] + ",").encode(), 1),
    "emptied.jsonl": (b"", 1),
    "blank.jsonl.gz": (gzip.compress(b" \n"), 1),
    "repeated.parquet": (columns("x", "x", rows=1), 1),
    "no parquet.parquet": (b"no", 1),
    "none.json": (b"[]", 0),
    "none.parquet": (columns("x", rows=0), 0),
    "one of three.json": (LIST.replace("yes", "", 1).encode(), 0),
}


@pytest.mark.parametrize("name", FILES)
def test_what_costs_the_rest_of_a_file_is_worth_a_warning(tmp_path: Path, name: str) -> None:
    """One reject among many stands for as many records as nobody knows, unless the file is read to its end."""
    (tmp_path / "all.jsonl").write_bytes(jsonl(*(explicit(f"whole {number}") for number in range(100))))
    content, unread = FILES[name]
    (tmp_path / name).write_bytes(content)
    found = build_index(LongSftConfig(path="*"), tmp_path).rejects
    assert (found.count, found.unread, found.notable) == (1, unread, bool(unread)), found.kinds


def test_a_packed_file_that_holds_too_much_is_worth_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateau_dagster.data.readers._ALWAYS_BYTES", 100)
    monkeypatch.setattr("gateau_dagster.data.readers._MOST_TIMES", 1)
    (tmp_path / "all.jsonl").write_bytes(jsonl(explicit("a")))
    (tmp_path / "packed.parquet.gz").write_bytes(gzip.compress(parquet([explicit("b")] * 50)))
    found = build_index(LongSftConfig(path="*"), tmp_path).rejects
    assert [(kind.kind, kind.count) for kind in found.kinds] == [("too long", 1)] and found.unread == 1


def test_of_short_conversations_a_fraction_is_taken() -> None:
    rejected = pl.DataFrame({"sample_id": ["a"], "reason": ["empty response: x"]})
    whole, tenth = (rejects_among_chats(9, rejected, ShortChatConfig(path="x", fraction=part)) for part in (1.0, 0.1))
    assert whole.sentence("conversation") == "1 of 10 conversations rejected (10 %): 1 x empty response"
    assert tenth.amount("conversation") == "1 of about 91 conversations rejected (1.1 %)"


def test_nothing_given_and_nothing_rejected() -> None:
    assert (among(0).share, among(0).notable, among(0).lines()) == (0.0, False, [])
    assert among(1).sentence() == "0 of 1 sample rejected (0 %)"
    assert not among(10, "a").notable, "a tenth is the most that is not worth a warning"


ALLOWED = [(100, 29, 0.29), (50, 5, 0.1), (3, 0, 0.0), (3, 3, 1.0), (3, 3, None)]


@pytest.mark.parametrize(("given", "bad", "most"), ALLOWED)
def test_as_many_as_allowed_are_no_failure(given: int, bad: int, most: float | None) -> None:
    check_rejected(among(given, *["a: b"] * bad), LongSftConfig(path="x", max_rejected=most))


def test_more_than_allowed_names_share_reasons_and_places() -> None:
    found = among(56, *["empty response: no text"] * 50, *["malformed JSON: here"] * 3, named=True)
    with refused("long_sft.max_rejected") as failure:
        check_rejected(found, LongSftConfig(path="x", max_rejected=0.5))
    first, *reasons, cure = str(failure.value).splitlines()
    assert first == "long_sft.max_rejected: 53 of 56 records rejected (94.6 %), more than 0.5 of them. Mostly:"
    assert reasons == [
        "  50 x empty response: no text (first at s0)",
        "  3 x malformed JSON: here (first at s50)",
    ]
    assert "raise long_sft.max_rejected" in cure
