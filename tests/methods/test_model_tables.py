"""Tables that models compute for methods: what each says of its cost and its prompt, against what its function does."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.methods.pre_experience import instruction_embedding_table
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.models.flops import whole_text_flops
from gateau_dagster.models.loaded import ForwardWork, LoadedModel
from gateau_dagster.models.prompt import build_prompt, encode
from gateau_dagster.models.shapes import model_shape
from gateau_dagster.scoring.cherry_selection import alone_prompt, cherry_prompt
from gateau_dagster.scoring.pair_tables import CAM, pair_tables
from gateau_dagster.scoring.sample_table import Running, SampleTable, SampleTokens
from tests.kit.error_codes import refused
from tests.kit.tiny_models import encoder, loaded_model, samples, save_encoder
from tests.methods.configured import configured, method_of
from tests.scoring.builders import scoring

LIMIT = 250
SPANS = {"span_length": 8, "first_scored": 6}


def exact(loaded: LoadedModel, chosen: list[Sample], *, plain_instruction: bool = False) -> SampleTokens:
    """Counted with the tokenizer. An instruction alone may take other tokens than within a prompt."""
    blank = Sample(sample_id="", source="", context="", instruction="", response="x")
    empty = build_prompt(loaded.tokenizer, blank, max_length=10**6)
    frame = len(empty.prefix) + len(empty.suffix)
    texts = [build_prompt(loaded.tokenizer, sample, max_length=10**6) for sample in chosen]
    instructions = [len(one.prefix) + len(one.suffix) - frame for one in texts]
    if plain_instruction:
        instructions = [len(encode(loaded.tokenizer, sample.instruction)) for sample in chosen]
    contexts = [len(one.context) for one in texts]
    asked = [len(encode(loaded.tokenizer, cherry_prompt(sample))) for sample in chosen]
    return SampleTokens(
        context=np.array(contexts, dtype=np.float64),
        instruction=np.array(instructions, dtype=np.float64),
        response=np.array([float(len(one.response)) for one in texts]),
        frame=frame,
        opening=0,
        # A response that takes the heading's last space into its first word leaves a shorter heading.
        alone=np.array([len(alone_prompt(loaded.tokenizer, each, max_length=10**6).prefix) for each in chosen]),  # pyright: ignore
        bos=int(loaded.tokenizer.bos_token_id is not None),
        special=0,
        limit=LIMIT,
        # A sample without context has another one.
        task=np.array(asked) - np.array(instructions) - np.array(contexts),  # pyright: ignore
    )


def charged(table: SampleTable, loaded: LoadedModel, chosen: list[Sample]) -> ForwardWork:
    segments = table.settings.get("scoring.segments", "all")
    running = Running(max_length=LIMIT, scoring=scoring(segments=segments), work=ForwardWork(), visible_tokens=100)
    rows = list(table.score(loaded, chosen, running))
    assert len(rows) == len(chosen) and not any(isinstance(row, Reject) for row in rows)
    return running.work


def of_method(name: str, **options: Any) -> SampleTable:
    (table,) = sample_tables(configured(compare=[name], options={name: options})).values()
    return table


def of_length(preset: str, **scoring: Any) -> SampleTable:
    (table,) = sample_tables(configured(segment_lengths=[30], preset=preset, scoring=scoring)).values()
    return table


def screened_cam() -> SampleTable:
    config = configured(scoring={"segments": "screened", "segment_length": 32})
    return next(table for table in pair_tables(config, attention_read=False) if table.asset == CAM)


TABLES = {
    "ladm": of_method("ladm", **SPANS),
    "ladm program": of_method("ladm", span_length=8, earlier_stride=1, variant="program", later_stride=3),
    "longattn": of_method("longattn"),
    "delta_perplexity": of_method("delta_perplexity", segment_length=16, window=32, pairs=20),
    "ifd": of_method("ifd"),
    "cam_at, without attention": of_length("robust"),
    "cam_at": of_length("paper"),
    "cam_at, screened": of_length("robust", segments="screened"),
    "cam, screened": screened_cam(),
    "instruction_embedding": instruction_embedding_table("long"),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_planned_and_charged_are_the_same(name: str, kind: str) -> None:
    """Contexts that are cut, one shorter than a segment, one missing; gemma3 has a sliding window."""
    loaded, table = loaded_model(kind), TABLES[name]
    tokens = exact(loaded, samples(), plain_instruction=name == "instruction_embedding")
    tokens = replace(tokens, shape=model_shape(loaded.model.config))
    assert table.effort is not None
    planned, work = table.effort(tokens), charged(table, loaded, samples())
    assert int(planned.tokens.sum()) == work.tokens > 0
    flops = planned.flops(model_shape(loaded.model.config)).sum()
    assert flops == pytest.approx(work.flops, rel=1e-12)


def test_a_sample_that_does_not_fit_takes_nothing() -> None:
    loaded = loaded_model("llama")
    tokens = exact(loaded, samples())
    few = SampleTokens(**{**vars(tokens), "limit": 10})
    for name, table in TABLES.items():
        assert table.effort is not None
        planned = table.effort(few)
        assert np.isfinite(planned.flops(model_shape(loaded.model.config))).all()
        if name not in {"ifd", "instruction_embedding"}:  # which read a part of it
            assert planned.tokens.sum() == 0
    assert list(TABLES["instruction_embedding"].effort(few).tokens) == [10.0] * len(samples())  # type: ignore[misc]
    assert list(TABLES["ifd"].effort(few).tokens > 0) == list(tokens.response + tokens.alone <= 10)  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_texts_that_are_read_as_a_whole(kind: str, tmp_path: Path) -> None:
    """Exact for what fits; what an encoder adds around the texts is counted as one number."""
    folder = save_encoder(tmp_path / kind, kind, "embedding")
    loaded = encoder(folder, "embedding")
    config = configured(rule="diverse", encoder="enc", models={"enc": {"path": str(folder), "task": "embedding"}})
    table = sample_tables(config)["embedding/enc"]
    whole = [loaded.tokenizer(f"{one.instruction}\n{one.response}")["input_ids"] for one in samples()]
    parts = [[len(encode(loaded.tokenizer, text)) for text in (one.instruction, one.response)] for one in samples()]
    tokens = SampleTokens(
        **{
            **vars(exact(loaded, samples()) if kind == "llama" else _nothing(len(parts))),
            "instruction": np.array([float(len(ids) - two) for ids, (_, two) in zip(whole, parts, strict=True)]),
            "response": np.array([float(two) for _, two in parts]),
            "limit": min(loaded.window or LIMIT, LIMIT),
        }
    )
    assert table.effort is not None
    planned, work = table.effort(tokens), charged(table, loaded, samples())
    assert int(planned.tokens.sum()) == work.tokens
    text: Any = loaded.model.config.get_text_config()
    weights = sum(one.numel() for one in loaded.model.parameters()) - text.vocab_size * text.hidden_size
    (one,) = planned.passes
    flops = one.count * whole_text_flops(one.length, weights, text.num_hidden_layers, text.hidden_size)
    assert flops.sum() == pytest.approx(work.flops, rel=1e-12)
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == text.hidden_size


def _nothing(count: int) -> SampleTokens:
    none = np.zeros(count)
    return SampleTokens(
        context=none, instruction=none, response=none, frame=0, opening=0, alone=0, bos=0, special=0, limit=LIMIT
    )


OPENING = "Be helpful.\n\n"


def prompted() -> Mapping[str, SampleTable]:
    models = {name: {"path": "a/b", "task": task} for name, task in (("reward", "reward"), ("enc", "embedding"))}
    config = configured(
        models=models,
        method="ladm",
        compare=["ifd", "car", "delta_perplexity", "longattn"],
        rule="diverse",
        encoder="enc",
        segment_lengths=[16],
        options={"ladm": {"span_length": 8, "first_scored": 6}, "delta_perplexity": {"segment_length": 16}},
    )
    embedding = instruction_embedding_table("long")
    return {**sample_tables(config), embedding.asset: embedding}


PROMPTS = {
    "quality/reward": "none",
    "embedding/enc": "none",
    "response_alone/long": "none",
    "instruction_embedding/long": "none",
    "span_attention/long": "plain",
    "segment_pairs/long": "plain",
    "long_attention/long": "plain",
    "cam_at/16": "opened",
}


def test_all_tables_say_what_they_read_and_take() -> None:
    assert {asset: table.prompt for asset, table in prompted().items()} == PROMPTS
    assert all(table.effort is not None for table in prompted().values())


def rows(table: SampleTable, loaded: LoadedModel, template: str = "gateau") -> list[Any]:
    settings = scoring().model_copy(update={"template": template})
    running = Running(max_length=250, scoring=settings, work=ForwardWork(), visible_tokens=100)
    return list(table.score(loaded, samples()[:2], running))


@pytest.mark.parametrize("asset", PROMPTS)
def test_rows_hang_on_what_the_table_says(asset: str, tmp_path: Path) -> None:
    table = prompted()[asset]
    if table.model == "long":
        loaded = loaded_model("llama")
    else:
        task: Any = "reward" if table.model == "reward" else "embedding"
        loaded = encoder(save_encoder(tmp_path, "bert", task), task)
    found = rows(table, loaded)
    assert (rows(table, replace(loaded, opening=OPENING)) == found) == (table.prompt != "opened")
    assert (rows(table, loaded, "chat") == found) == (table.prompt == "none")
    assert not any(isinstance(row, Reject) for row in found)


LADM = {"span_length": 128, "first_spans": 1, "local_spans": 4, "earlier_stride": 4, "later_stride": 4}
LADM |= {"first_scored": 16, "variant": "paper"}
NO_WEIGHTS = {"deviation_weight": False, "interval_weight": False, "position_weight": False}
UNREAD = {"local_spans", "first_scored"}
PAIRS = {"segment_length": 128, "pairs": 5000}


@pytest.mark.parametrize(
    ("method", "options", "settings"),
    [
        ("ladm", {}, LADM),
        ("ladm", NO_WEIGHTS, LADM),
        ("ladm", {"variant": "program"}, {k: v for k, v in LADM.items() if k not in UNREAD} | {"variant": "program"}),
        ("delta_perplexity", {}, PAIRS),
        ("delta_perplexity", {"variant": "program", "threshold": 0.3, "alpha": 2, "window": None}, PAIRS),
        ("delta_perplexity", {"pairs": 9}, PAIRS | {"pairs": 9}),
        ("longattn", {"uniformity": 2.0, "layer": 3}, {"layer": 3}),
    ],
)
def test_only_what_the_model_computes_is_in_the_settings_of_a_table(
    method: str, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    (table,) = method_of(method, options={"model": "tiny", **options}, models={"tiny": {"path": "a/tiny"}}).tables()
    assert table.settings == settings
    assert table.asset.endswith("/tiny") and table.model == "tiny"


@pytest.mark.parametrize(
    ("method", "options", "fewest", "smaller"),
    [("ladm", {"span_length": 64}, 1088, {"first_scored": 15}), ("delta_perplexity", {}, 256, {"segment_length": 127})],
)
def test_a_model_whose_own_window_holds_no_sample_is_known_from_its_configuration(
    tmp_path: Path, method: str, options: dict[str, Any], fewest: int, smaller: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": fewest - 1}))

    def check(context: str, **more: Any) -> None:
        models = {"small": {"path": str(tmp_path), "context": context}}
        method_of(method, options={"model": "small", **options, **more}, models=models).check_known_models()

    with refused("methods.no_sample_fits", match=rf"selection\.options\.{method}.* {fewest - 1}"):
        check("window")
    check("full")
    check("window", **smaller)
