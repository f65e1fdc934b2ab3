"""A pair and a data set of the labelled benchmark: what decides them, and how they are scored."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from common_harder import KINDS, harder_samples
from common_measure import say
from common_page import SIZES
from transformers import LlamaForCausalLM

from gateau_dagster.config import Config
from gateau_dagster.demo.language import build_tokenizer
from gateau_dagster.demo.long_samples import demo_samples
from gateau_dagster.demo.pair import build_pair, pair_config, pair_is_current

DATA_SEEDS = 1000  # added to a pair's seed: no sample was made with the numbers that trained the pair

STRANGER = 40  # the pair whose theta_A stands for a model of another family
DEMONSTRATIONS = [
    {"instruction": "note colour colour-1 . note metal metal-2 . recall colour", "response": "colour colour-1 ."},
    {"instruction": "tell about baker", "response": "the baker builds the garden of quiet ."},
    {"instruction": "note gem gem-5 . recall gem", "response": "gem gem-5 ."},
]

Record = dict[str, str]


class AnyCase(Protocol):
    """A data set and the models that score it; a dataclass, whose fields decide the tables."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def alpha(self) -> float | None: ...
    @property
    def segment_length(self) -> int: ...
    def records(self) -> list[Record]: ...
    def config(self, method: str = ..., options: Mapping[str, Any] | None = ...) -> Config: ...


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pair and one data set. `context`: what theta_A may see."""

    folder: Path
    pair_seed: int
    data_seed: int
    per_kind: int = 16
    base: int = 100
    size: str = "medium"
    context: str = "window"
    segment_length: int = 128
    alpha: float | None = None
    kinds: tuple[str, ...] | None = None
    untrained: bool = False  # for tests of the benchmark itself

    @property
    def name(self) -> str:
        """As progress names it."""
        return f"pair {self.pair_seed}"

    @property
    def pair(self) -> Path:
        """The pair's folder."""
        return self.pair_of(self.pair_seed)

    def pair_of(self, seed: int) -> Path:
        """The folder of any pair."""
        return self.folder / "pairs" / f"{'untrained' if self.untrained else 'seed'}{seed}"

    def records(self) -> list[Record]:
        """The demo's five kinds and the harder ones."""
        kinds = list(KINDS) if self.kinds is None else [kind for kind in self.kinds if kind in KINDS]
        more = harder_samples(self.per_kind * len(kinds), self.data_seed, size=self.size, kinds=kinds) if kinds else []
        return demo_samples(self.base, self.data_seed) + more

    def config(self, method: str = "gateau", options: Mapping[str, Any] | None = None) -> Config:
        """The configuration under which a method scores; options: those of the method.

        Beside the pair: its theta_A within its window, another pair's theta_A, and both models behind demonstrations.
        """
        short, long = ({"path": str((self.pair / name).absolute())} for name in ("short", "long"))
        sight = {"context": self.context}
        models = {
            "short": short | sight,
            "long": long,
            "unextended": short | {"context": "window"},
            "stranger": {"path": str((self.pair_of(STRANGER) / "short").absolute())} | sight,
            "shown_short": short | sight | {"demonstrations": DEMONSTRATIONS},
            "shown_long": long | {"demonstrations": DEMONSTRATIONS},
        }
        selection: dict[str, Any] = {"method": method, "alpha": self.alpha}
        if options:
            selection["options"] = {method: dict(options)}
        if options and "preset" in options:
            selection["preset"] = options["preset"]
        scoring = {"max_length": 2048, "dtype": "float32", "device": "cpu", "segment_length": self.segment_length}
        return Config.model_validate(
            {"long_sft": {"path": "none.jsonl"}, "models": models, "scoring": scoring, "selection": selection}
        )


def ready_pair(case: Case) -> None:
    """Build the case's pair, and the other one that it takes a model from, unless they are there: a CPU minute each."""
    for seed in (case.pair_seed, STRANGER):
        ready_pair_of(case, seed)


def ready_pair_of(case: Case, seed: int) -> None:
    """Build one pair unless it is there."""
    folder = case.pair_of(seed)
    if case.untrained:
        _write_untrained(folder, seed)
    elif not pair_is_current(folder, seed=seed):
        say(f"pair {seed}: building, about a minute")
        build_pair(folder, seed=seed)


def _write_untrained(folder: Path, seed: int) -> None:
    for name, window in (("short", 256), ("long", 2048)):
        torch.manual_seed(seed)
        LlamaForCausalLM(pair_config(window, 1e4)).save_pretrained(folder / name)
        build_tokenizer(window).save_pretrained(folder / name)


def add_case_options(parser: argparse.ArgumentParser) -> None:
    """What decides the pairs and the data."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[5, 6, 7], help="of the pairs, and of the data + 1000")
    parser.add_argument("--shift", type=int, default=0, help="data of seed + shift: other data for the same pairs")
    parser.add_argument("--per-kind", type=int, default=16)
    parser.add_argument("--base", type=int, default=100, help="samples of the demo's five kinds together")
    parser.add_argument("--kinds", nargs="+", help="only these of the further kinds")
    parser.add_argument("--size", choices=list(SIZES), default="medium", help="of the further kinds' contexts")
    parser.add_argument("--context", choices=["window", "full"], default="window", help="what theta_A may see")
    parser.add_argument("--segment-length", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks/selection"), help="for pairs and tables")
    parser.add_argument("--tiny", action="store_true", help="untrained pairs: tests the benchmark, measures nothing")


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """One case a seed."""
    return [
        Case(
            folder=arguments.folder,
            pair_seed=seed,
            data_seed=DATA_SEEDS + seed + arguments.shift,
            per_kind=arguments.per_kind,
            base=arguments.base,
            size=arguments.size,
            context=arguments.context,
            segment_length=arguments.segment_length,
            kinds=tuple(arguments.kinds) if arguments.kinds else None,
            untrained=arguments.tiny,
        )
        for seed in arguments.seeds
    ]
