"""What the tables of the training data lost; of the scored ones, see tests/assets/runs/test_checks.py."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.assets.runs.checks import checked
from gateau_dagster.config import Config, SelectionConfig
from gateau_dagster.features.evaluation.config import EvaluationConfig
from gateau_dagster.pipeline.asset import REJECTED_SHARE, TRUNCATED_SHARE
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.losses import (
    Totals,
    losses,
    rejects_of,
    totals,
    truncation_among,
    truncation_of,
    unfilled,
    unseen_shares,
)
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from tests.features.evaluation.builders import answers
from tests.features.evaluation.quiz import with_quiz
from tests.kit.project import configured, make_project, sample, write_samples
from tests.pipeline.by_method import maximal

STAMP = Stamp(fingerprint="f")


def table(columns: tuple[tables.Column, ...], rows: int, **values: Any) -> pl.DataFrame:
    """A table of which only some columns matter: a list has a value per row, another value is that of every row."""
    given = {name: value if isinstance(value, list) else [value] * rows for name, value in values.items()}
    schema = tables.schema(columns)
    return pl.DataFrame({name: pl.Series(given.get(name, [None] * rows), dtype=kind) for name, kind in schema.items()})


def rejected_of(*names: str, reason: str | list[str]) -> pl.DataFrame:
    return table(tables.REJECTED, len(names), sample_id=[*names], reason=reason)


def opened(folder: Path, **sections: Any) -> State:
    return state_of(config=configured(storage={"root": str(folder / "store")}, folder=folder, **sections))


@pytest.fixture
def state(tmp_path: Path) -> State:
    """A store with a mix of 3 sequences of 2 samples, and 4 of about 8 short conversations; each rejected 2."""
    found = opened(
        tmp_path,
        long_sft={"path": "long.jsonl", "shards": 1},
        short_chat={"path": "chat.json", "fraction": 0.5},
        training={"max_length": 4096},
    )
    blocks = [[6, 4], [6, 4], [10]]
    mix = table(tables.TRAINING_MIX, 3, sample_id=["a", "a", "b"], block_tokens=blocks, truncated_tokens=[30, 30, 0])
    chat = pl.DataFrame({"sample_id": ["1", "2", "3", "4"]})
    rejected = rejected_of("x", "y", reason=["empty response: turn 1", "empty response: turn 2"])
    found.store.write(mix, "training_mix", None, STAMP, rejected)
    found.store.write(chat, "short_chat_mix", None, STAMP, rejected)
    return found


def test_of_the_mix_all_tokens_count_and_a_sample_once(state: State) -> None:
    asset = state.asset("training_mix")
    assert truncation_of(state, asset).sentence() == (
        "2 of 3 sequences cut, 60 of 90 tokens (66.7 %) lost: training.max_length is 4,096"
    )
    assert truncation_of(state, asset).notable
    assert rejects_of(state, asset).sentence() == "2 of 4 samples rejected (50 %): 2 x empty response: turn 1 to 2"


def test_rejects_of_conversations_are_among_all_of_them(state: State) -> None:
    found = rejects_of(state, state.asset("short_chat_mix"))
    assert found.sentence("conversation") == "2 of about 10 conversations rejected (20 %): 2 x empty response"


def test_sums_do_not_overflow_and_nothing_of_nothing_is_no_share() -> None:
    most = pl.Series([2**31 - 1] * 3, dtype=pl.Int32)
    found = truncation_among(most, most, limit="x")
    assert (found.tokens, found.cut_tokens, found.share) == (6 * (2**31 - 1), 3 * (2**31 - 1), 0.5)
    assert truncation_among(most.clear(), most.clear(), limit="x").share == 0.0


def test_a_table_whose_share_is_looked_at_counts_what_it_kept_and_what_it_cut() -> None:
    scored = [asset for asset in pipeline_of(maximal()).assets if asset.table]
    checked = {asset.key for asset in scored if TRUNCATED_SHARE in asset.checks}
    assert {"perplexity/short", "perplexity/long", "quality/reward", "embedding/enc"} <= checked
    for asset in scored:
        names = {column.name for column in asset.columns}
        assert ("truncated_tokens" in names) == (asset.key in checked), asset.key
        assert asset.key not in checked or names & {"context_tokens", "tokens"}, asset.key


@pytest.mark.parametrize(
    ("cut", "sentence"),
    [([0, 0], None), ([0, 24], "1 of 2 texts cut, 24 of 60 tokens (40 %) lost: models.reward reads 20 tokens")],
)
def test_what_a_reward_model_does_not_read_is_said(state: State, cut: list[int], sentence: str | None) -> None:
    content = state.config.model_dump()
    reward = state.config.model_validate(
        content
        | {"models": content["models"] | {"reward": {"path": "c", "task": "reward"}}, "selection": {"method": "car"}}
    )
    found = state_of(config=reward)
    rated = pl.DataFrame({"sample_id": ["a", "b"], "tokens": [16, 20], "truncated_tokens": cut})
    found.store.write(rated, "quality/reward", "0", STAMP, None)
    said = [*losses(found, {"quality/reward"})]
    assert [each.sentence for each in said] == ([] if sentence is None else [sentence])
    assert all(each.notable and not each.intended for each in said)
    assert unseen_shares(found, [found.asset("quality/reward")]).is_empty(), "it is shown no context"


@pytest.mark.parametrize(("lost", "notable"), [(0, None), (1, False), (6, True)])
def test_what_a_method_leaves_without_a_score_is_said(state: State, lost: int, notable: bool | None) -> None:
    config = state.config.model_copy(update={"selection": SelectionConfig(compare=["length"])})
    state = state_of(config=config)
    ids = [str(number) for number in range(20)]
    scores = pl.DataFrame({"sample_id": ids, "score": [None] * lost + [1.0] * (20 - lost)})
    state.store.write(scores, "method_scores/length", "0", STAMP, None)
    found = [*losses(state, {"method_scores/length"})]
    assert [each.notable for each in found] == ([] if notable is None else [notable])
    assert all(f"{lost} of 20 samples without a score" in each.sentence for each in found)


def test_each_variant_s_mix_tells_its_own_losses(state: State) -> None:
    """A comparison of what was trained on the whole with what was trained on a part would be one of unlike things."""
    content = {**state.config.model_dump(), "variants": {"fractions": [0.5], "also": ["full"]}}
    state = state_of(config=Config.model_validate(content))
    asset = state.asset("variant/training_mix")
    names = [name for name in state.config.variant_set if name not in {"base"}]
    for name in names:
        lost = name == "full"
        cut, blocks = [9 * lost, 0], [[9], [9]]
        mix = table(tables.TRAINING_MIX, 2, sample_id=["a", "b"], block_tokens=blocks, truncated_tokens=cut)
        rejected = rejected_of(*("x", "y") * lost, reason="too long")
        state.store.write(mix, asset.key, name, STAMP, rejected)
    found = [*losses(state, {asset.key})]
    assert {(loss.asset, loss.notable) for loss in found} == {("variant/training_mix[full]", True)}
    assert [loss.sentence.partition(" (")[0] for loss in found] == [
        "2 of 4 samples rejected",
        "1 of 2 sequences cut, 9 of 27 tokens",
    ]
    rejected = checked(state, asset, REJECTED_SHARE)
    assert not rejected.passed and "full: 2 of 4 samples rejected" in str(rejected.metadata["summary"].value)
    truncated = checked(state, asset, TRUNCATED_SHARE)
    assert not truncated.passed and str(truncated.metadata["summary"].value).startswith("full: 1 of 2 sequences cut")


def with_made_models(state: State) -> State:
    """`long` is made from `short` by long texts, `cherry` from it by samples."""
    content = state.config.model_dump(exclude_unset=True)
    long = {"path": "homologous:short", "homologous": {"texts": "books", "length": 512, "tokens_per_step": 65_536}}
    content["models"] |= {"long": long, "cherry": {"path": "pre_experienced:short"}}
    return state_of(config=Config.model_validate({**content, "selection": {"method": "ifd"}}))


def test_texts_that_a_homologous_model_is_not_trained_on_are_said(state: State) -> None:
    found = with_made_models(state)
    mix = table(tables.TRAINING_MIX, 3, sample_id=["book.txt:1#1", "book.txt:1#2", "web.jsonl:3"])
    reasons = ["truncated gzip: nothing after record 1,018 was read", "no text: the field 'text' is empty"]
    rejected = rejected_of("web.jsonl.gz:1019", "web.jsonl:9", reason=reasons)
    key = "homologous_mix/long"
    found.store.write(mix, key, None, Stamp(fingerprint="f", given=1020), rejected)
    (said,) = losses(found, {key})
    assert said.notable and said.sentence == (
        "2 of 1,020 texts rejected (0.196 %), 1 of them for a file that could not be read to its end: "
        "1 x no text; 1 x truncated gzip"
    )
    found.store.write(mix, key, None, STAMP, rejected)
    (said,) = losses(found, {key})
    assert said.sentence.startswith("2 of about 4 texts rejected (50 %)"), "a mix of old: drawn and rejected ones"


def test_samples_that_a_pre_experienced_model_is_not_trained_on_are_said(state: State) -> None:
    found, key = with_made_models(state), "pre_experience_mix/cherry"
    found.store.write(state.read("training_mix"), key, None, STAMP, state.store.read_rejected("training_mix", [None]))
    assert [each.sentence for each in losses(found, {key})] == [
        "2 of 4 samples rejected (50 %): 2 x empty response: turn 1 to 2",
        "2 of 3 sequences cut, 60 of 90 tokens (66.7 %) lost: training.max_length is 4,096",
    ]


def asking(folder: Path, **evaluation: Any) -> State:
    state = opened(folder)
    asked = EvaluationConfig(benchmarks=("quiz",), **evaluation)
    with with_quiz():
        return state_of(config=state.config.model_copy(update={"evaluation": asked}))


@pytest.mark.parametrize(
    ("thoughts", "sentence", "notable"),
    [
        ("drop", "which are left out of grading; in 1 they never end, which counts as an empty answer", True),
        ("keep", "which are graded as a part of them: evaluation.thoughts is keep", True),
    ],
)
def test_answers_that_begin_with_thoughts_are_counted(
    tmp_path: Path, thoughts: Any, sentence: str, notable: bool
) -> None:
    state = asking(tmp_path, thoughts=thoughts)
    said = {"q0": "<think>a</think>\n\nOslo", "q1": "a\n</think>\nOslo", "q2": "<think>a", "q3": "Write `</think>`."}
    state.store.write(answers(said), "answers/quiz", "base", STAMP)
    with with_quiz():
        found = [*losses(state, {"answers/quiz"})]
    assert [(each.asset, each.sentence, each.notable) for each in found] == [
        ("answers/quiz[base]", f"3 of 4 answers begin with thoughts, {sentence}", notable)
    ]


@pytest.mark.parametrize("input_length", [None, 90])
def test_what_each_model_lost_of_a_benchmark_is_said(tmp_path: Path, input_length: int | None) -> None:
    """Test one of two: missing answers are reported with the answers, and so are prompts that lost their middle."""
    state = asking(tmp_path, input_length=input_length)
    whole = answers({f"q{n}": "yes" for n in range(8)})
    state.store.write(whole, "answers/quiz", "base", STAMP)
    part = whole.head(6).with_columns(
        answer=pl.Series(["yes"] * 5 + [" \n"]),
        prompt_tokens=pl.Series([100, 40, 40, 40, 40, 40], dtype=pl.Int32),
        cut_tokens=pl.Series([300, 0, 0, 0, 0, 0], dtype=pl.Int32),
    )
    state.store.write(part, "answers/quiz", "checkpoint", STAMP, rejected_of("q6", "q7", reason="refused: 5 tokens"))
    scores = pl.DataFrame([(f"q{n}", "all", 1.0) for n in range(5)], schema=tables.schema(tables.SCORES), orient="row")
    without = pl.concat([rejected_of("q5", reason="no rating"), rejected_of("q6", "q7", reason="it was not answered")])
    state.store.write(scores, "scores/quiz", "checkpoint", STAMP, without)
    with with_quiz():
        found = [*losses(state, {"answers/quiz", "scores/quiz"})]
    limit = "scoring.max_length is 65,536" if input_length is None else "evaluation.input_length is 90"
    cut, lost = ("cut", "lost") if input_length is None else ("shortened as configured", "not shown")
    assert [(each.asset, each.sentence, each.notable, each.intended) for each in found] == [
        ("answers/quiz[checkpoint]", "2 of 8 questions rejected (25 %): 2 x refused: 5 tokens", True, False),
        (
            "answers/quiz[checkpoint]",
            f"1 of 6 prompts {cut}, 300 of 600 tokens (50 %) {lost}: {limit}",
            input_length is None,
            input_length is not None,
        ),
        ("answers/quiz[checkpoint]", "1 of 6 answers empty (16.7 %): graded as they are", True, False),
        ("scores/quiz[checkpoint]", "1 of 8 questions rejected (12.5 %): 1 x no rating", True, False),
    ]


SCORED, RAW = "perplexity/short", "raw_long_sft"


@pytest.fixture
def scored_state(tmp_path: Path) -> State:
    """Three samples in two shards, one of which was rejected when it was scored."""
    write_samples(tmp_path / "long.jsonl", [sample(0)])
    found = opened(tmp_path, long_sft={"path": "long.jsonl", "shards": 2})
    for shard, rows, scored, effort, rejected in (
        ("0", 2, 2, {"tokens": 100, "seconds": 2.0}, None),
        ("1", 1, 0, {"tokens": 50, "seconds": 1.5}, rejected_of("x", reason="the response is empty")),
    ):
        found.store.write(table(tables.RAW_LONG_SFT, rows), RAW, shard, STAMP)
        perplexity = table(tables.PERPLEXITY, scored, context_tokens=30, truncated_tokens=10)
        found.store.write(perplexity, SCORED, shard, Stamp(fingerprint="f", effort=effort), rejected)
    return found


def made(scored_state: State, *assets: str) -> list[Totals]:
    recorded = {key: stamp for asset in assets for key, stamp in scored_state.store.stamps(
        (asset, shard) for shard in scored_state.shards
    ).items()}  # fmt: skip
    return [*totals(scored_state, assets, recorded)]


def test_shards_are_added_up(scored_state: State) -> None:
    (found,) = made(scored_state, SCORED)
    assert (found.asset, found.rows, found.tokens, found.seconds) == (SCORED, 2, 150, 3.5)
    assert found.rejected is not None and (found.rejected.count, found.rejected.given) == (1, 3)
    assert found.reasons == "1 x the response is empty"
    assert found.truncation is not None and (found.truncation.tokens, found.truncation.cut_tokens) == (80, 20)


def test_what_no_model_read_has_no_tokens_and_the_order_is_that_of_the_flow(scored_state: State) -> None:
    raw, scored = made(scored_state, SCORED, RAW, "cam")
    assert (raw.asset, scored.asset) == (RAW, SCORED), "and what was not made is left out"
    assert (raw.rows, raw.tokens, raw.seconds, raw.truncation) == (3, None, None, None)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"drop"}, "selection.drop allows no more"),
        ({"per_document"}, "selection.per_document allows no more"),
        ({"drop", "per_document"}, "selection.drop and selection.per_document allow no more"),
    ],
)
def test_the_settings_that_left_samples_out_are_named(limits: set[str], said: str, tmp_path: Path) -> None:
    """Check the sentence where two of four scored samples are wanted, and one is chosen."""
    options = {"drop": ["near"], "per_document": 1}
    rule = {"fraction": 0.5, "evidence": True, **{name: options[name] for name in limits}}
    state = state_of(config=load_project(make_project(tmp_path, samples=4, shards=1, selection=rule)))
    scores = table(tables.COMBINED_SCORES, 4, sample_id=[*"abcd"]).with_columns(score_robust=pl.lit(1.0))
    split = table(tables.DOCUMENT_SPLIT, 4, sample_id=[*"abcd"], reserved=False)
    for asset, whole in (("combined_scores", scores), ("document_split", split)):
        if asset in state.pipeline.by_key:
            state.store.write(whole, asset, None, STAMP)
    rejected = rejected_of(*limits, reason=[f"selection.{name}: x" for name in limits])
    state.store.write(table(tables.SELECTED_SUBSET, 1, sample_id="a"), CHOSEN, None, STAMP, rejected)
    assert unfilled(state) == f"1 of 2 samples are chosen: {said}"


@pytest.mark.parametrize(("count", "said"), [(3, ""), (5000, "3 of the 5,000 samples of selection.count")])
def test_a_count_above_the_samples_is_said(count: int, said: str, tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=8, shards=2, selection={"fraction": None, "count": count})
    state = state_of(config=load_project(file))
    state.store.write(table(tables.SELECTED_SUBSET, 3, sample_id=["s0", "s1", "s2"]), CHOSEN, None, STAMP)
    assert unfilled(state).startswith(said) and bool(unfilled(state)) == bool(said)
    assert [line for line in checks_of(state).warnings if "selection.count" in line] == (
        [f"selection.count asks for {count:,} samples, but only 8 can be chosen."] if said else []
    )
