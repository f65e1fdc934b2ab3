import hashlib
import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.data.sample import text_digest
from gateau_dagster.storage import content
from gateau_dagster.storage.content import file_digests, frame_digest, model_content, row_groups, rows_digest

SCHEMA = {
    "id": pl.String(),
    "x": pl.Float64(),
    "n": pl.Int32(),
    "flag": pl.Boolean(),
    "list": pl.List(pl.Float64()),
    "turns": pl.List(pl.Struct({"role": pl.String(), "content": pl.String()})),
}
TEXT = st.none() | st.sampled_from(["", "a", "ab", "a text of more than twelve bytes", "ü"])
TURN = st.fixed_dictionaries({"role": TEXT, "content": TEXT})
ROW = st.fixed_dictionaries(
    {
        "id": TEXT,
        "x": st.none() | st.sampled_from([0.0, 1.5, -2.0]),
        "n": st.none() | st.integers(-3, 3),
        "flag": st.none() | st.booleans(),
        "list": st.none() | st.lists(st.none() | st.sampled_from([0.0, 1.0]), max_size=3),
        "turns": st.none() | st.lists(TURN, max_size=2),
    }
)
ROWS = st.lists(ROW, max_size=6)


def frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@given(rows=ROWS, others=ROWS)
def test_equal_tables_have_equal_digests_however_they_came_about(rows: list[Any], others: list[Any]) -> None:
    plain = frame(rows)
    digest = frame_digest(plain)
    buffer = io.BytesIO()
    plain.write_parquet(buffer)
    buffer.seek(0)
    assert frame_digest(pl.read_parquet(buffer)) == digest
    marked = pl.concat([frame(others).with_columns(keep=pl.lit(False)), plain.with_columns(keep=pl.lit(True))])
    assert frame_digest(marked.filter("keep").drop("keep")) == digest
    assert frame_digest(pl.concat([frame(others), plain], rechunk=True).slice(len(others))) == digest
    assert frame_digest(pl.concat([plain.head(2), plain.slice(2)], rechunk=False)) == digest


@given(rows=ROWS, others=ROWS)
def test_unequal_tables_have_unequal_digests(rows: list[Any], others: list[Any]) -> None:
    one, two = frame(rows), frame(others)
    assert (frame_digest(one) == frame_digest(two)) == one.equals(two)


def test_values_below_nulls_do_not_count() -> None:
    plain = pl.DataFrame({"x": [1.0, None]})
    hidden = pl.DataFrame({"x": [1.0, 9.0]}).with_columns(x=pl.when(pl.col("x") < 5).then(pl.col("x")))
    assert plain.equals(hidden) and frame_digest(plain) == frame_digest(hidden)


def test_order_names_and_types_count() -> None:
    base = pl.DataFrame({"a": [1, 2], "b": [3, 4]})
    variants = [
        base,
        base.reverse(),
        base.select("b", "a"),
        base.rename({"a": "c"}),
        base.cast({"a": pl.Int32}),
        base.head(1),
        base.head(0),
        base.cast({"a": pl.String}),
    ]
    assert len({frame_digest(variant) for variant in variants}) == len(variants)


def slow_bytes(values: Sequence[Any], kind: pl.DataType) -> bytes:
    """Value by value: a bit for each that is not null, then those: lengths before what has a length."""
    known = [value for value in values if value is not None]
    found = np.packbits(np.array([value is not None for value in values], dtype=bool)).tobytes()
    match kind:
        case pl.List():
            found += b"".join(struct.pack("<q", len(value)) for value in known)
            return found + slow_bytes([item for value in known for item in value], kind.inner)  # type: ignore[arg-type]
        case pl.Struct():
            return found + b"".join(
                slow_bytes([value[field.name] for value in known], field.dtype)  # type: ignore[arg-type]
                for field in kind.fields
            )
        case pl.String():
            texts = [value.encode() for value in known]
            return found + b"".join(struct.pack("<q", len(text)) for text in texts) + b"".join(texts)
        case _:
            code = {pl.Float64(): "<d", pl.Int32(): "<i", pl.Boolean(): "<?"}[kind]
            return found + b"".join(struct.pack(code, value) for value in known)


def slow_digest(frame: pl.DataFrame) -> str:
    digest = hashlib.sha256()
    for name, kind in frame.schema.items():
        digest.update(f"{name}\0{kind}\0{frame.height}\n".encode() + slow_bytes(frame[name].to_list(), kind))
    return digest.hexdigest()


@given(rows=ROWS, group=st.integers(1, 4))
def test_a_digest_group_by_group_is_that_value_by_value(rows: list[Any], group: int) -> None:
    table = frame(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "GROUP_ROWS", group)
        assert frame_digest(table) == slow_digest(table)


def test_groups_are_bounded_by_their_size_and_hold_every_row() -> None:
    table = pl.DataFrame({"text": ["x" * 2**20] * 200, "n": range(200)})
    groups = list(row_groups(table))
    assert pl.concat(groups).equals(table)
    assert max(group.estimated_size() for group in groups) <= content.GROUP_BYTES
    assert len(groups) == 4
    assert [group.height for group in row_groups(table.clear())] == [0]


@given(rows=st.lists(st.tuples(st.text(max_size=200), st.text(max_size=3)), max_size=6), group=st.integers(1, 4))
def test_a_digest_of_rows_of_texts_is_that_of_their_values(rows: list[tuple[str, str]], group: int) -> None:
    texts = [(one.encode(errors="replace").decode(), other.encode(errors="replace").decode()) for one, other in rows]
    table = pl.DataFrame(texts, schema={"a": pl.String(), "b": pl.String()}, orient="row")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "GROUP_ROWS", group)
        assert rows_digest(table) == text_digest([text for row in texts for text in row])


def test_a_digest_is_the_same_in_every_version() -> None:
    """Recorded once: another value would recompute every training downstream."""
    assert frame_digest(pl.DataFrame({"a": ["x", None], "b": [[1.0], []]}))[:16] == "d1372afaea5b9fdf"


def test_a_model_is_its_files_but_not_its_log(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    before = model_content(file_digests(tmp_path))
    for ignored in ("training_log.json", "gateau.json", "README.md"):
        (tmp_path / ignored).write_text("x")
    assert model_content(file_digests(tmp_path)) == before
    (tmp_path / "config.json").write_text("{ }")
    assert model_content(file_digests(tmp_path)) != before
