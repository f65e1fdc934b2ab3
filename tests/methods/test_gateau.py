"""GATEAU, its halves and its ablations: columns of `combined_scores`, and the presets on plain loops."""

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.selection.combine import combine
from gateau_dagster.selection.presets import PRESET_FUNCTIONS, Measures
from tests.methods.configured import configured, scores_of
from tests.selection.builders import cam_table, perplexity_table

PPL_SHORT, PPL_LONG, CAS = [9.0, 4.0, 30.0, 2.5], [3.0, 3.9, 29.0, 2.5], [0.2, None, 0.9, 0.4]


def scores(preset: str = "paper") -> pl.DataFrame:
    segments = [[2.0, 3.0], [2.0], [5.0, 4.0, 6.0], [2.0, 2.0]]
    tables = (perplexity_table(PPL_SHORT), perplexity_table(PPL_LONG), cam_table(segments, CAS))
    return combine(*tables, preset=preset, alpha=0.7)  # pyright: ignore[reportArgumentType]


def run(name: str, preset: str = "paper", **options: Any) -> dict[str, Any]:
    return scores_of(name, {"combined_scores": scores()}, options=options, alpha=0.7, preset=preset)


@pytest.mark.parametrize(("name", "kind"), [("gateau", "score"), ("hmg", "hmp"), ("cam", "cas")])
@pytest.mark.parametrize("preset", ["paper", "official", "robust"])
def test_a_column_of_the_preset(name: str, kind: str, preset: str) -> None:
    expected = dict(scores().select("sample_id", f"{kind}_{preset}").iter_rows())
    assert run(name, preset) == expected


def test_a_half_has_the_preset_of_the_selection_or_one_of_its_own() -> None:
    stored = {"combined_scores": scores()}
    own = scores_of("hmg", stored, options={"preset": "robust"}, preset="paper")
    assert own == run("hmg", "robust") != run("hmg", "paper")


def test_gateau_that_chooses_has_the_preset_of_the_selection() -> None:
    configured(options={"gateau": {"preset": "paper"}}, preset="paper")
    compared = configured(method="hmg", compare=["gateau"], options={"gateau": {"preset": "paper"}})
    assert chosen_methods(compared)["gateau"].reads() == {"combined_scores": ["sample_id", "score_paper"]}


def test_unnormalised_against_plain_loops() -> None:
    hmp = [short - long for short, long in zip(PPL_SHORT, PPL_LONG, strict=True)]
    total = math.fsum(math.exp(value) for value in hmp)
    known = [value for value in CAS if value is not None]
    cas_total = math.fsum(math.exp(value) for value in known)
    for index, cas in enumerate(CAS):
        term = -1.0 if cas is None else 0.3 * math.exp(cas) / cas_total
        expected = 0.7 * math.exp(hmp[index]) / total + term
        assert run("gateau_unnormalised")[f"s{index}"] == pytest.approx(expected, rel=1e-12)


SHOWN = {"demonstrations": [{"instruction": "1 + 1?", "response": "2."}]}
OTHER = {
    "models": {
        "other": {"path": "a/other"},
        "short_shown": {"path": "a/short", **SHOWN},
        "long_shown": {"path": "a/long", **SHOWN},
    }
}
SHORT, LONG, GAIN = [2.0, 1.5, 3.0], [1.0, 1.4, 2.9], [0.5, 0.1, None]
SHORT_P, LONG_P = [0.2, 0.3, 0.05], [0.5, 0.25, 0.1]
TOKENS, CHARACTERS = ([4, 6, 5], [3, 6, 9]), [12, 20, 31]


def models_of(name: str) -> tuple[str, str]:
    """The entries in the places of theta_A and theta_B."""
    return ("short_shown", "long_shown") if name == "gateau_in_context" else ("other", "long")


def tables(per: str, name: str) -> dict[str, pl.DataFrame]:
    ids = ["a", "b", "c"]
    models = models_of(name)
    found = {
        "combined_scores": pl.DataFrame({"sample_id": ids, "cas_paper": GAIN, "cas_robust": GAIN}),
        f"perplexity/{models[0]}": pl.DataFrame({"sample_id": ids, "mean_nll": SHORT}),
        f"perplexity/{models[1]}": pl.DataFrame({"sample_id": ids, "mean_nll": LONG}),
    }
    for model, tokens, probability in zip(models, TOKENS, (SHORT_P, LONG_P), strict=True):
        more = {"response_tokens": tokens} if per == "character" else {"mean_probability": probability}
        found[f"perplexity/{model}"] = found[f"perplexity/{model}"].with_columns(
            **{name: pl.Series(values) for name, values in more.items()}
        )
    if per == "character":
        found["raw_long_sft"] = pl.DataFrame({"sample_id": ids, "response": ["é" * size for size in CHARACTERS]})
    return found


def perplexities(nll: list[float], tokens: list[int], per: str) -> list[float]:
    if per == "token":
        return [math.exp(value) for value in nll]
    return [math.exp(value * count / size) for value, count, size in zip(nll, tokens, CHARACTERS, strict=True)]


@pytest.mark.parametrize("per", ["token", "character"])
@pytest.mark.parametrize("preset", ["paper", "official", "robust"])
@pytest.mark.parametrize("name", ["gateau_unextended", "hmg_non_homologous", "gateau_in_context"])
def test_the_presets_on_these_models(name: str, preset: Any, per: str) -> None:
    own = dict(zip(("short", "long"), models_of(name), strict=True))
    config = configured(**OTHER, method=name, alpha=0.6, options={name: {**own, "preset": preset, "per": per}})
    method = chosen_methods(config)[name]
    given = tables(per, name)
    far = [] if name == "hmg_non_homologous" else ["cas_robust" if preset == "robust" else "cas_paper"]
    given["combined_scores"] = given["combined_scores"].select("sample_id", *far)
    assert {asset: set(columns) for asset, columns in method.reads().items()} == {
        asset: set(frame.columns) for asset, frame in given.items()
    }
    shuffled = {asset: frame.reverse() for asset, frame in given.items()}
    gain = np.array([float("nan") if value is None else value for value in GAIN])
    short, long = (np.array(perplexities(*each, per)) for each in ((SHORT, TOKENS[0]), (LONG, TOKENS[1])))
    expected = PRESET_FUNCTIONS[preset](
        Measures(
            perplexity_short=short,
            perplexity_long=long,
            # A character's probability is the geometric mean; a token's is in the table.
            probability_short=1 / short if per == "character" else np.array(SHORT_P),
            probability_long=1 / long if per == "character" else np.array(LONG_P),
            cas=gain,
            far_gain=gain,
        )
    )
    wanted = expected.hmp if name == "hmg_non_homologous" else expected.score(0.6)
    found = method.scores(shuffled)
    assert found["sample_id"].to_list() == ["a", "b", "c"]
    np.testing.assert_allclose(found["score"].to_numpy(), wanted, rtol=1e-12)
