"""The method `longattn`: its table from a model, its score from the table."""

import re
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.methods.longattn import COLUMNS
from gateau_dagster.models.loaded import ForwardWork
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model, model_config, tokenizer
from tests.methods import measured
from tests.methods.configured import method_of, scores_of
from tests.methods.measured import prose
from tests.scoring.builders import eager_matrices, reference_parts
from tests.scoring.test_long_attention import slow


def outcomes(work: ForwardWork | None = None, **options: Any) -> list[Any]:
    return measured.outcomes("longattn", options, work)


def test_rows_are_those_of_the_whole_prompt() -> None:
    work = ForwardWork()
    found = outcomes(work, layer=1)
    assert found[2] == Reject(sample_id="c", reason="the response has no tokens")
    rows = [row for row in found if not isinstance(row, Reject)]
    assert pl.DataFrame(rows, schema=tables.schema(COLUMNS)).height == 3
    for row, sample in zip(rows, [prose()[place] for place in (0, 1, 3)], strict=True):
        ids = [*chain(*reference_parts(tokenizer(), sample, "gateau"))]
        proportion, variance = slow(eager_matrices(loaded_model("llama").model, ids)[1])
        assert row["tokens"] == len(ids) and row["digest"] == sample.digest
        assert row["proportion"] == pytest.approx(proportion, rel=1e-4)
        assert row["variance"] == pytest.approx(variance, rel=1e-4)
    assert work.tokens == sum(row["tokens"] for row in rows)


@pytest.mark.parametrize("uniformity", [0.5, 0.0, 1.0])
def test_the_score_is_the_authors(uniformity: float) -> None:
    rows = {"a": ([0.1, 0.3], [2.0, 4.0]), "b": ([0.5, 0.5], [1.0, 1.0]), "c": ([], []), "d": ([0.3, 0.4], [9.0, 2.0])}
    frame = pl.DataFrame(
        [{"sample_id": name, "proportion": one, "variance": other} for name, (one, other) in rows.items()]
    )
    found = scores_of("longattn", {"long_attention/long": frame}, options={"uniformity": uniformity})
    means = {name: [sum(part) / len(part) for part in parts] for name, parts in rows.items() if parts[0]}
    lows, highs = ([pick(values) for values in zip(*means.values(), strict=True)] for pick in (min, max))
    assert found.pop("c") is None
    for name, parts in means.items():
        p, v = ((part - low) / (high - low) for part, low, high in zip(parts, lows, highs, strict=True))
        assert found[name] == pytest.approx(p - uniformity * v, rel=1e-12)


def test_equal_figures_are_in_the_middle() -> None:
    frame = pl.DataFrame({"sample_id": ["a", "b"], "proportion": [[0.2], [0.2]], "variance": [[1.0], [3.0]]})
    assert scores_of("longattn", {"long_attention/long": frame}) == {"a": 0.5, "b": 0.0}


@pytest.mark.parametrize(
    ("layers", "layer", "said"),
    [
        (["sliding_attention", "full_attention"], 0, "sees 30 tokens back, .* prompts of 120 tokens .*: set layer: 1,"),
        (["sliding_attention", "full_attention"], 1, None),
        (["sliding_attention", "sliding_attention"], 1, "layer 1 of .*: take another model"),
        (["full_attention", "sliding_attention"], 0, None),
        (["full_attention", "full_attention"], 1, None),
    ],
)
def test_a_layer_that_does_not_see_what_is_far_is_told(
    tmp_path: Path, layers: list[str], layer: int, said: str | None
) -> None:
    model_config("gemma2", layer_types=layers, sliding_window=30).save_pretrained(tmp_path)
    options = {"model": "other", "layer": layer}
    method = method_of("longattn", models={"other": {"path": str(tmp_path)}}, options=options)
    found = method.warnings(pl.DataFrame())
    assert len(found) == (said is not None)
    if said is not None:
        assert re.search(said, found[0])


@pytest.mark.parametrize(("layer", "exists"), [(1, True), (2, False), (10**30, False)])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_layer_that_the_model_does_not_have_is_refused_before_it_runs(
    tmp_path: Path, kind: str, layer: int, exists: bool
) -> None:
    model_config(kind).save_pretrained(tmp_path)
    options = {"model": "other", "layer": layer}
    method = method_of("longattn", models={"other": {"path": str(tmp_path)}}, options=options)
    with nullcontext() if exists else refused("methods.layer", match=" 2 layers"):
        method.check_known_models()
