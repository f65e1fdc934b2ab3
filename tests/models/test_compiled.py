"""scoring.compile: the same numbers, one compilation a model, and a failure that names the setting."""

import shutil
from typing import Any

import pytest
import torch

from gateau_dagster.models.compiled import compile_layers
from gateau_dagster.scoring.response_perplexity import PerplexityRow
from tests.error_codes import refused
from tests.scoring.scored import check, outcomes, references, scoring
from tests.tiny_models import loaded_model, samples


def _replace_compiler(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    own = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: own(function, dynamic=dynamic, backend=backend))


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_compiled_perplexities_agree_with_the_reference() -> None:
    loaded, chosen = loaded_model("llama"), samples()[:3]
    wanted = references(loaded, scoring(), 4096, chosen)
    for outcome, want in zip(outcomes(loaded, chosen, cam=False, compile=True), wanted, strict=True):
        assert isinstance(outcome.perplexity, PerplexityRow)
        assert outcome.perplexity.perplexity == pytest.approx(want.perplexity, rel=1e-4)


def test_traced_for_any_length_all_figures_agree_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    _replace_compiler(monkeypatch, backend)
    loaded, chosen = loaded_model("llama"), samples()
    wanted = references(loaded, scoring(), 4096, chosen)
    made: list[int] = []
    for some, tokens in ((3, 600), (5, 900)):
        for sample, outcome, want in zip(
            chosen, outcomes(loaded, chosen[:some], compile=True, batch_tokens=tokens), wanted, strict=False
        ):
            check(sample, outcome, want)
        made.append(len(graphs))
    assert 0 < made[0] <= 12 and made[1] == made[0], "other lengths need no other graphs"


def test_a_model_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def compile_(function: Any, **options: Any) -> Any:
        calls.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    loaded = loaded_model("llama")
    want = outcomes(loaded, samples()[:1])
    for _ in range(2):
        assert outcomes(loaded, samples()[:1], compile=True) == want
    assert calls == [{"dynamic": True}]  # of its two layers, the last one computes some rows only


def test_a_compiler_that_fails_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(*_: Any) -> Any:
        raise RuntimeError("no compiler found\nmore")

    _replace_compiler(monkeypatch, backend)
    loaded = loaded_model("llama")
    compile_layers(loaded)
    with refused("scoring.compile", r"scoring\.compile"):
        outcomes(loaded, samples()[:1])
