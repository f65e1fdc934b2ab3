"""The training mix as a table: content, order, rejects; and its figures, counted by hand."""

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from gateau_dagster.config.training import MixConfig, TrainedTurns, TrainingConfig
from gateau_dagster.data.sample import Sample
from gateau_dagster.progress import silent
from gateau_dagster.tables import REJECTED, SELECTED_SUBSET, SHORT_CHAT_MIX, TRAINING_MIX, schema
from gateau_dagster.training.encode import DROPPED, encode_conversation, encode_long
from gateau_dagster.training.training_mix import (
    build_training_mix,
    by_source,
    copies_of,
    mix_columns,
    mix_sequences,
    mix_summary,
    wanted_samples,
)
from tests.kit.error_codes import refused
from tests.training.builders import tokenizer
from tests.training.test_encode import HERMES, TRACE, of_turns


def sample(number: int, context: str = "the context") -> Sample:
    return Sample(sample_id=f"long{number}", source="s", context=context, instruction="what?", response=f"{number}")


def selected(*samples: Sample) -> pl.DataFrame:
    rows = [(s.sample_id, s.source, s.context, s.instruction, s.response, s.digest, 1.0, 1) for s in samples]
    return pl.DataFrame(rows, schema(SELECTED_SUBSET), orient="row")


def talk(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": "what?"}, {"role": "assistant", "content": f"short {number}"}]


def short(*numbers: int) -> pl.DataFrame:
    rows = [(f"short{number}", "chat", talk(number), "digest", [False, True]) for number in numbers]
    return pl.DataFrame(rows, schema(SHORT_CHAT_MIX), orient="row")


def build(
    longs: pl.DataFrame, shorts: pl.DataFrame | None, *, seed: int = 1, max_length: int = 512, **settings: Any
) -> tuple[pl.DataFrame, pl.DataFrame]:
    training = TrainingConfig.model_validate({"seed": seed, "max_length": max_length, **settings})
    return build_training_mix(longs, shorts, tokenizer(), training=training, template="gateau", progress=silent)[:2]


def test_every_sample_is_encoded_once() -> None:
    mix, rejected = build(selected(*(sample(n) for n in range(5))), short(0, 1, 2))
    assert mix.schema == schema(TRAINING_MIX)
    assert rejected.schema == schema(REJECTED)
    assert rejected.is_empty()
    assert mix["position"].to_list() == list(range(8))
    for row in mix.iter_rows(named=True):
        number = int(row["sample_id"][-1])
        want = (
            encode_long(tokenizer(), sample(number), template="gateau", max_length=512)
            if row["origin"] == "long"
            else encode_conversation(tokenizer(), talk(number), template="gateau", max_length=512)
        )
        assert row["input_ids"] == want.input_ids.tolist()
        assert row["labels"] == want.labels.tolist()
        assert row["block_tokens"] == want.block_tokens.tolist()
        assert row["source"] == {"long": "s", "short": "chat"}[row["origin"]]
        assert row["truncated_tokens"] == 0
    assert sorted(mix["sample_id"]) == [f"long{n}" for n in range(5)] + [f"short{n}" for n in range(3)]


def test_order_depends_on_ids_and_seed_only() -> None:
    longs = [sample(n) for n in range(9)]
    order = build(selected(*longs), short(0, 1, 2))[0]["sample_id"].to_list()
    assert build(selected(*reversed(longs)), short(2, 0, 1))[0]["sample_id"].to_list() == order
    changed = [sample(n, "another context") for n in range(9)]
    assert build(selected(*changed), short(0, 1, 2))[0]["sample_id"].to_list() == order
    assert build(selected(*longs), short(0, 1, 2), seed=2)[0]["sample_id"].to_list() != order


def test_copies_have_places_of_their_own_and_move_no_other_sample() -> None:
    longs, shorts = selected(*(sample(n) for n in range(9))), short(*range(9))
    once = build(longs, shorts)[0]["sample_id"].to_list()
    mix, _ = build(longs, shorts, mix={"weights": {"s": 2, "chat": 0.5}})
    ids = mix["sample_id"].to_list()
    counts = Counter(ids)
    assert [counts[f"long{n}"] for n in range(9)] == [2] * 9
    shorts_left = [name for name in counts if name.startswith("short")]
    assert len(shorts_left) == 4
    assert all(counts[name] == 1 for name in shorts_left)
    assert mix["position"].to_list() == list(range(22))
    kept = set(shorts_left) | {f"long{n}" for n in range(9)}
    assert contains_in_order(ids, [name for name in once if name in kept])
    assert [name for name in ids if name in shorts_left] == [name for name in once if name in shorts_left]
    assert sum(one == other for one, other in pairwise(ids)) < 4, "copies do not stand side by side"
    assert mix.filter(sample_id="long3")["input_ids"].n_unique() == 1


def contains_in_order(everything: list[str], wanted: list[str]) -> bool:
    """Whether `wanted` is what is left of `everything` when some of it is taken out."""
    rest = iter(everything)
    return all(name in rest for name in wanted)


ANSWER = replace(sample(1), response="the long answer " * 100)
CONTEXT = sample(1, "the long context " * 30)


@pytest.mark.parametrize(
    ("other", "truncation", "reason"),
    [
        (CONTEXT, "context", None),
        (
            CONTEXT,
            "right",
            r"^its first answer begins after .*max_length = 120 of .*truncation: context\.$",
        ),
        (ANSWER, "context", r"\(training\.max_length is 120\)"),
    ],
)
def test_what_cannot_be_learned_is_rejected_and_the_rest_goes_on(
    other: Sample, truncation: str, reason: str | None
) -> None:
    seen: list[float] = []
    mix, rejected, _ = build_training_mix(
        selected(sample(0), other),
        None,
        tokenizer(),
        training=TrainingConfig.model_validate({"max_length": 120, "truncation": truncation}),
        template="gateau",
        progress=lambda done, total, unit, note="": seen.append(done),
    )
    assert seen == [1, 2]
    if reason is None:
        assert rejected.is_empty() and mix["truncated_tokens"].to_list().count(0) == 1
        return
    assert (mix["sample_id"].to_list(), rejected["sample_id"].to_list()) == (["long0"], ["long1"])
    assert re.search(reason, rejected["reason"].item())


def test_an_empty_mix_is_an_error() -> None:
    with refused("training.empty_mix"):
        build(selected(sample(0)), None, max_length=16)
    with refused("training.empty_mix"):
        build(selected(), None)


def mix(*rows: tuple[str, str, str, int, int, int]) -> pl.DataFrame:
    """Rows of (sample_id, origin, source, tokens, trained tokens, truncated tokens)."""
    found: list[dict[str, Any]] = [
        {
            **dict(zip(("sample_id", "origin", "source"), names, strict=True)),
            "position": position,
            "input_ids": [7] * tokens,
            "labels": [-100] * (tokens - trained) + [7] * trained,
            "block_tokens": [tokens - trained, trained],
            "truncated_tokens": truncated,
        }
        for position, (*names, tokens, trained, truncated) in enumerate(rows)
    ]
    return pl.DataFrame(found, schema=schema(TRAINING_MIX))


MIX = mix(
    ("a", "long", "books", 100, 3, 0),
    ("b", "long", "code", 70, 10, 5),
    ("c", "short", "chat", 20, 15, 0),
    ("b", "long", "code", 70, 10, 5),
    ("d", "short", "chat", 10, 1, 90),
)


def test_sources_add_up_to_the_mix() -> None:
    assert by_source(mix_sequences(MIX)).rows() == [
        ("long", "code", 2, 1, 140, 20, 2, 70, 70),
        ("long", "books", 1, 1, 100, 3, 0, 100, 100),
        ("short", "chat", 2, 2, 30, 16, 1, 15, 20),
    ]


def test_summary() -> None:
    assert mix_summary(mix_sequences(MIX)) == {
        "sequences": {"long": 3, "short": 2},
        "tokens": 270,
        "trained_tokens": 39,
        "trained_share": pytest.approx(39 / 270),
        "truncated_sequences": 3,
        "truncated_tokens": 100,
        "sequence_tokens": {"10 %": 10, "50 %": 70, "90 %": 100, "longest": 100},
    }


def test_trimmed_contexts_are_counted() -> None:
    longs = [sample(number, "the context of the harbour ledger") for number in range(3)]
    training, whole = TrainingConfig(max_length=512), build(selected(*longs), short(0), seed=42)[0]
    mix, _, _ = build_training_mix(
        selected(*longs),
        short(0),
        tokenizer(),
        training=training,
        template="gateau",
        progress=silent,
        kept_context={"long0": 2, "long1": 0, "short0": 0, "other": 1},
    )
    assert mix.schema == schema(mix_columns(trimmed=True)) and mix.columns[:-1] == whole.columns
    assert mix["sample_id"].to_list() == whole["sample_id"].to_list(), "in the same order"
    for row, before in zip(mix.iter_rows(named=True), whole.iter_rows(named=True), strict=True):
        kept = {"long0": 2, "long1": 0}.get(row["sample_id"])
        wanted = before["input_ids"]
        if kept is not None:
            number = int(row["sample_id"][-1])
            encoded = encode_long(tokenizer(), longs[number], template="gateau", max_length=512, context_tokens=kept)
            wanted = encoded.input_ids.tolist()
        assert row["input_ids"] == wanted
        assert row["trimmed_tokens"] == len(before["input_ids"]) - len(wanted)
        assert (row["trimmed_tokens"] > 0) == (kept is not None) and row["truncated_tokens"] == 0
    found, before = (mix_summary(mix_sequences(each)) for each in (mix, whole))
    assert found["trimmed_sequences"] == 2 and found["trimmed_tokens"] == before["tokens"] - found["tokens"] > 0
    assert "trimmed_tokens" not in before


def table(*sources: str) -> pl.DataFrame:
    """A sample of each source, ranked from the last one (1) to the first."""
    ids = [f"id{number}" for number in range(len(sources))]
    ranks = list(range(10 * len(sources), 0, -10))
    return pl.DataFrame({"sample_id": ids, "source": sources, "rank": ranks}, schema_overrides={"source": pl.String})


def taken(selected: pl.DataFrame, short: pl.DataFrame | None = None, **mix: object) -> dict[str, list[tuple[str, int]]]:
    wanted = wanted_samples(selected, short, mix=MixConfig.model_validate(mix), seed=1)
    return {origin: rows.select("sample_id", "copies").rows() for origin, rows in wanted.items()}


def test_how_often_samples_are_taken() -> None:
    assert taken(table("a", "b")) == {"long": [("id0", 1), ("id1", 1)]}
    assert taken(table("a").drop("rank"), table("c")) == {"long": [("id0", 1)], "short": [("id0", 1)]}
    assert taken(table("a", "b"), table("c"), weights={"a": 0, "c": 2}) == {"long": [("id1", 1)], "short": [("id0", 2)]}
    # A weight of a source that was not selected changes nothing.
    assert taken(table("a"), table("c"), weights={"a": 2, "x": 1}) == {"long": [("id0", 2)], "short": [("id0", 1)]}
    assert taken(table("a"), table("c"), weights={"a": 2}, without_long=True) == {"long": [], "short": [("id0", 1)]}
    with refused("training.no_conversations", "short_chat"):
        taken(table("a"), without_long=True)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        MixConfig(weights={"a": -1})


@pytest.mark.parametrize(("fraction", "kept"), [(0.3, 3), (0.25, 3), (0.01, 1), (1.0, 10)])
def test_a_fraction_of_the_long_samples_are_the_best_ranked_ones(fraction: float, kept: int) -> None:
    found = taken(table(*"a" * 10), table("c", "c"), long_fraction=fraction)
    assert found["long"] == [(f"id{number}", 1) for number in range(10 - kept, 10)]
    assert len(found["short"]) == 2


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0, 2.0, 2.3, 3.75])
def test_a_weight_is_how_often_a_source_occurs(weight: float) -> None:
    sources = table(*("ab" * 20))
    copies = copies_of(sources, "long", {"a": weight}, 7)
    of_a, of_b = copies[0::2], copies[1::2]
    assert of_b == [1] * 20
    assert sum(of_a) == round(weight * 20)
    assert set(of_a) <= {int(weight), int(weight) + 1}
    assert copies_of(sources, "long", {"a": weight}, 7) == copies


def test_who_occurs_once_more_is_drawn_by_lot_and_hardly_changes_with_other_samples() -> None:
    sources = table(*("a" * 40))
    drawn = [copies_of(sources, "long", {"a": 0.5}, seed) for seed in (1, 2)]
    drawn.append(copies_of(sources, "short", {"a": 0.5}, 1))
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    for count in range(1, 40):
        fewer = copies_of(sources.head(count), "long", {"a": 0.5}, 1)
        more = copies_of(sources.head(count + 1), "long", {"a": 0.5}, 1)
        assert sum(one != other for one, other in zip(fewer, more[:-1], strict=True)) <= 1


def test_turns_without_loss_are_counted_and_samples_of_one_exchange_are_as_before() -> None:
    talk = replace(sample(1), response=TRACE[-1]["content"], conversation=of_turns(TRACE).conversation)
    frame = selected(sample(0), talk).with_columns(pl.Series("conversation", [None, talk.conversation]))
    cases: list[tuple[TrainedTurns, int]] = [("all", 2), ("last", 0)]
    for turns, dropped in cases:
        mix, rejected, unlearned = build_training_mix(
            frame,
            None,
            tokenizer(chat=HERMES),
            training=TrainingConfig(max_length=300),
            template="chat",
            progress=silent,
            trained_turns=turns,
        )
        assert rejected.is_empty() and dict(unlearned) == ({DROPPED: dropped} if dropped else {})
        plain = encode_long(tokenizer(chat=HERMES), sample(0), template="chat", max_length=300)
        assert mix.filter(sample_id="long0")["input_ids"].to_list() == [plain.input_ids.tolist()]
        assert mix.filter(sample_id="long1")["truncated_tokens"][0] > 0
