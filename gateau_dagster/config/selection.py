"""Define the section about the ranking and the selection: the method, the rule, and the amount."""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from gateau_dagster.config.base import Affects, Section
from gateau_dagster.config.values import LONGEST, MOST_SEEDS, AnyPath, as_written, part_of
from gateau_dagster.errors import GateauError

Rule = Literal["top", "token_budget", "per_source", "per_source_tokens", "diverse", "mix", "clean", "ccs", "auto"]
Share = Annotated[float, Field(gt=0)]
Tokens = Annotated[int, Field(ge=1)]
Preset = Literal["paper", "official", "robust"]
PRESETS: tuple[Preset, ...] = ("paper", "official", "robust")
Dependency = Literal["closed_book", "near", "one_far", "several_far", "unpredictable"]
DEPENDENCIES: tuple[Dependency, ...] = get_args(Dependency)
# What a sample's response depends on, without the number of far segments.
DependencyClass = Literal["far", "near", "closed_book", "unpredictable"]
CLASSES: tuple[DependencyClass, ...] = get_args(DependencyClass)
ClassShare = Annotated[float, Field(ge=0, le=1)]
# The paper's weight, and the one for two terms that are both probabilities.
ALPHA: dict[Preset, float] = {"paper": 0.8, "official": 0.8, "robust": 0.5}

DEFAULT_FRACTION = 0.1  # the paper's smallest share

_AMOUNTS = ("fraction", "count", "budget")
_OF_MIX = (*_AMOUNTS, "shares", "short_source", "encoder", "clusters", "variance", "seed", "tau")
# The fields that each rule reads, beside itself.
_READS: dict[Rule, tuple[str, ...]] = {
    "top": ("fraction", "count"),
    "token_budget": ("budget",),
    "per_source": ("fraction", "count", "shares", "short_source"),
    "per_source_tokens": ("budget", "short_source"),
    "diverse": ("fraction", "count", "encoder", "clusters", "per_cluster", "cluster_from", "variance", "seed"),
    "mix": _OF_MIX,
    "clean": ("fraction", "count", "budget", "shares", "short_source", "seed"),
    "ccs": ("fraction", "count", "budget", "seed"),
    "auto": _OF_MIX,
}
BY_CLASS: tuple[Rule, ...] = ("mix", "clean", "auto")
"""The rules that read `dependency`. They leave out samples that nothing predicts."""
DRAWING: tuple[Rule, ...] = (*BY_CLASS, "ccs")
"""The rules that draw by `seed`."""
WITH_QUOTAS: tuple[Rule, ...] = ("mix", "auto")
"""The rules that read `use`."""


class RuleConfig(Section):
    """The rule that chooses among the ranked samples."""

    affects = Affects("ranking")

    rule: Rule = Field(
        default="top",
        description="top: the best fraction or count. token_budget: the best until `budget` tokens are reached. "
        "per_source: the best of every source, in proportion. per_source_tokens: the same percentage of every source, "
        "raised until `budget` tokens are reached. diverse: the best, and the best of every cluster besides. mix: the "
        "share of `use` of samples that depend on far text, best first, and a uniform draw of the others. clean: a "
        "uniform draw. mix, clean and auto leave out samples that nothing predicts, and switch `evidence` on. ccs: "
        "without the worst, as equally many as possible of 50 equal parts of the scores' range. "
        "auto: mix if the forecast is that it pays, else clean.",
    )
    fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share to choose of the scored samples that are not reserved for the held-out evaluation. Half a "
        "sample counts as one (0.5 of 5 are 3). At least one is chosen.",
        examples=[0.1],
    )
    count: int | None = Field(
        default=None, ge=1, description="Number of samples to choose, instead of fraction.", examples=[1000]
    )
    budget: Tokens | dict[Literal["response_tokens"], Tokens] | None = Field(
        default=None,
        description="Greatest sum of the tokens of context and response of the chosen samples. "
        "`{response_tokens: N}` counts those of the responses only, which training learns from.",
        examples=[50000000, {"response_tokens": 2000000}],
    )
    shares: dict[str, Share] | None = Field(
        default=None,
        description="Parts of the amount by source, in any unit; other sources get no samples. Default: the shares of "
        "the data for per_source; no limit for mix and clean.",
        examples=[{"books": 2, "papers": 1}],
    )
    short_source: Literal["error", "share"] = Field(
        default="error",
        description="Action if a source has fewer scored samples than its share: stop the selection, or give the "
        "rest to other sources.",
    )
    encoder: str | None = Field(
        default=None,
        description="The model of task `embedding` that makes the clusters. Without one, mix covers lengths of "
        "responses.",
        examples=["encoder"],
    )
    clusters: int | None = Field(
        default=None, ge=1, description="k of k-means; default: sqrt(n/2), rounded down.", examples=[100]
    )
    per_cluster: int = Field(default=1, ge=0, description="n2: number of best samples of every cluster.")
    cluster_from: Literal["all", "rest"] = Field(
        default="all",
        description="all: a cluster's best samples may already be among the best of all. rest: they are searched "
        "below these, so that every cluster adds its own.",
    )
    variance: float = Field(
        default=0.95, gt=0, le=1, description="Share of the variance that the principal components keep."
    )
    seed: int = Field(
        default=0, ge=0, lt=MOST_SEEDS, description="Seed of k-means, and of the draws of mix, clean and ccs."
    )
    tau: float = Field(
        default=0,
        ge=0,
        description="Temperature of the choice among far samples, in standard deviations of their scores. 0: the best "
        "are chosen. A higher one draws with less regard to the score.",
        exclude_if=lambda value: value == 0,
        examples=[1.0],
    )
    use: dict[DependencyClass, ClassShare] | list[str] | None = Field(
        default=None,
        description="What the trained model is used for: the share of each class of dependency, of which `far` must be "
        "named. Or values of `source`: the share of far samples among theirs counts, and no rule chooses them. "
        "Default: the share in the data, at least 0.5.",
        exclude_if=lambda value: value is None,
        examples=[{"far": 0.5}, ["my_target"]],
    )
    per_document: int | None = Field(
        default=None,
        ge=1,
        description="Greatest number of chosen samples per document, under every rule; the best ones count. Equal "
        "and nearly equal contexts are one document, by the `similarity` of the benchmark that reserves "
        "documents. Default: no limit.",
        # Excluded by default, so that a configuration without it keeps its earlier dump.
        exclude_if=lambda value: value is None,
        examples=[1],
    )

    duplicates: Literal["one", "keep"] = Field(
        default="one",
        description="Treatment of samples with identical texts and different ids. one: only the best-ranked sample "
        "of each text can be chosen. keep: all of them can be chosen. A fraction counts all of them in "
        "both cases.",
    )
    drop: list[Dependency] = Field(
        default=[],
        description="Values of `dependency` whose samples are not selected, under every rule. A fraction counts these "
        "samples, too. Setting it switches `evidence` on.",
        exclude_if=lambda value: not value,
        examples=[["closed_book"]],
    )

    @model_validator(mode="after")
    def _consistent(self) -> "RuleConfig":
        if self.fraction is not None and self.count is not None:
            raise GateauError("selection.amount", "fraction and count are both given: remove one")
        needed = {"token_budget": "budget", "per_source_tokens": "budget", "diverse": "encoder"}.get(self.rule)
        if needed is not None and getattr(self, needed) is None:
            what = "a number of tokens" if needed == "budget" else "a model whose task is embedding"
            raise GateauError("selection.rule_settings", f"rule {self.rule} needs {needed}: {what}")
        if self.budget is not None and "fraction" in _READS[self.rule] and (self.fraction or self.count) is not None:
            raise GateauError("selection.amount", "budget is given beside fraction or count: remove one")
        if self.rule in WITH_QUOTAS and self.encoder is None and {"clusters", "variance"} & {*self._changed()}:
            raise GateauError(
                "selection.rule_settings",
                "clusters and variance need encoder, a model whose task is embedding: add it, or remove them",
            )
        if self.budget == {}:
            raise GateauError("selection.rule_settings", "budget: is empty: add response_tokens, or give a number")
        if self.use is not None:
            _check_use(self.use)
        if {*DEPENDENCIES} <= {*self.drop}:
            raise GateauError(
                "selection.rule_settings",
                "drop: names all dependencies, so no sample whose dependency is known can be chosen: name fewer",
            )
        if self.rule in WITH_QUOTAS:
            self._check_quotas()
        if self.shares is not None and not self.shares:
            raise GateauError(
                "selection.rule_settings",
                "shares: names no source: add one, or remove the key to keep the shares of the data",
            )
        unread = [name for name in self._changed() if name not in _READS[self.rule]]
        if unread:
            rules = [rule for rule, read in _READS.items() if unread[0] in read]
            raise GateauError(
                "selection.rule_settings",
                f"{unread[0]} does not apply to rule {self.rule}, only to {', '.join(rules)}: remove it, or "
                "change the rule",
            )
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the rule and the fields that it reads, as JSON: they decide the choice, for fingerprints and the
        report.
        """
        values = {name: getattr(self, name) for name in _READS[self.rule]}
        if "fraction" in values and self.fraction is None and self.count is None and self.budget is None:
            values["fraction"] = DEFAULT_FRACTION
        values["use"] = self.use if self.rule in WITH_QUOTAS or self.use_sources else None
        values["per_document"] = self.per_document
        # A choice under `keep` equals that of a store from before this setting, so its fingerprint stays valid.
        values["duplicates"] = self.duplicates if self.duplicates == "one" else None
        values["drop"] = sorted(set(self.drop)) or None
        return {"rule": self.rule, **{name: value for name, value in values.items() if value is not None}}

    @property
    def left_out(self) -> list[Dependency]:
        """Return the values of `dependency` whose samples the rule does not choose: `drop`, and noise by some rules."""
        noise: list[Dependency] = ["unpredictable"] if self.rule in BY_CLASS else []
        return [*self.drop, *(name for name in noise if name not in self.drop)]

    @property
    def use_sources(self) -> list[str]:
        """Return the sources whose samples show the use, if `use` names any: no rule chooses these."""
        return self.use if isinstance(self.use, list) else []

    @property
    def most_tokens(self) -> int | None:
        """Return the budget as a number, in the unit of `budget_unit`; None without one."""
        return next(iter(self.budget.values()), None) if isinstance(self.budget, dict) else self.budget

    @property
    def budget_unit(self) -> Literal["tokens", "response tokens"]:
        """Return the unit of a budget: all tokens of a sample, or those of its response."""
        return "response tokens" if isinstance(self.budget, dict) else "tokens"

    def chosen(self, scored: int) -> int:
        """Return how many of `scored` samples fraction or count choose: at least one; default is the paper's 0.1."""
        if self.count is not None:
            return min(self.count, scored)
        return min(scored, part_of(scored, self.fraction or DEFAULT_FRACTION))

    def taking(self, *, fraction: float | None = None, count: int | None = None, budget: int | None = None) -> Self:
        """Return the same rule with one of these amounts, or the plain rule for the amount if this one does not read
        it.
        """
        [(unit, amount)] = [
            (name, value) for name, value in (("fraction", fraction), ("count", count), ("budget", budget)) if value
        ]
        plain: Rule = "token_budget" if unit == "budget" else "top"
        return self._by(self.rule if unit in _READS[self.rule] else plain, {unit: amount})

    def under(self, rule: Rule) -> Self:
        """Return another rule with the same amount, and the other fields that it reads."""
        return self._by(rule, {name: getattr(self, name) for name in _AMOUNTS if name in _READS[rule]})

    def by_rank(self) -> Self:
        """Return the rule that takes the same amount of the best samples."""
        return self.under("top" if self.budget is None else "token_budget")

    def _by(self, rule: Rule, amounts: dict[str, Any]) -> Self:
        others = {name for read in _READS.values() for name in read}.difference(_READS[rule]).union(_AMOUNTS)
        given = {name: value for name, value in self.model_dump().items() if name not in others}
        return self.model_validate({**given, "rule": rule, **amounts})

    def _check_quotas(self) -> None:
        """Raise GateauError if `drop` leaves out every sample of a class that has a share of the use."""
        shares = self.use if isinstance(self.use, dict) else {"far": 1.0}
        for name in (name for name, share in shares.items() if share):
            of_class = ["one_far", "several_far"] if name == "far" else [name]
            if {*of_class} <= {*self.drop}:
                cure = "set use: {far: 0}" if name == "far" else f"remove {name} from use"
                raise GateauError(
                    "selection.rule_settings",
                    f"drop: leaves out {' and '.join(of_class)}, but rule {self.rule} chooses a share of {name} "
                    f"samples: drop others, or {cure}",
                )

    def _changed(self) -> list[str]:
        names = dict.fromkeys(name for read in _READS.values() for name in read)
        return [name for name in names if getattr(self, name) != RuleConfig.model_fields[name].default]


def _check_use(use: dict[DependencyClass, float] | list[str]) -> None:
    """Raise GateauError if `selection.use` names no source, or its shares are not those of a use."""
    if not use:
        raise GateauError("selection.rule_settings", "use: is empty: add `far` with its share, or remove the key")
    if isinstance(use, list):
        return
    if "far" not in use:
        raise GateauError("selection.rule_settings", "use: does not name far: add its share, such as far: 0.5")
    if use.get("unpredictable"):
        raise GateauError(
            "selection.rule_settings",
            "use: unpredictable has a share, but no rule that reads it chooses such samples: remove it",
        )
    if (total := sum(map(as_written, use.values()))) > 1:
        raise GateauError(
            "selection.rule_settings", f"use: the shares add up to {float(total):g}: at most 1 is possible"
        )


def alpha_of(preset: Preset, alpha: float | None) -> float:
    """Return the weight of the first term under a preset: `alpha`, or the preset's own if that is None."""
    return ALPHA[preset] if alpha is None else alpha


SCORES = "scores"
"""The method that reads the scores from a file."""


class OwnScores(Section):
    """The short form of the method `scores`."""

    scores: AnyPath = Field(description="File with the columns sample_id and score.", examples=["my_scores.parquet"])


class SelectionConfig(RuleConfig):
    """The method that ranks the samples, and the rule that chooses among them."""

    method: str = Field(
        default="gateau",
        description="The method that ranks the samples. `{scores: FILE}` ranks by a file with the columns sample_id "
        "and score.",
        examples=["ladm"],
    )
    compare: list[str] = Field(
        default=[],
        description="Other methods to score and to compare in the report.",
        examples=[["ladm", "perplexity", "random"]],
    )
    plugins: list[AnyPath] = Field(
        default=[],
        description="Python files with methods of your own; relative paths begin at this file's folder.",
        exclude_if=lambda value: not value,  # a configuration without it keeps its earlier dump
        examples=[["own/copying.py"]],
    )
    options: Annotated[dict[str, dict[str, Any]], Affects("rows", "ranking")] = Field(
        default={},
        description="Options of methods by their names, for example ladm: {span_length: 64}.",
        examples=[{"ladm": {"span_length": 64}}],
    )
    preset: Preset = Field(default="robust", description="Normalisation of the two terms; the report shows all three.")
    alpha: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Weight of the score's first term; the rest is the second's (Eq. 6). Default: 0.5 for robust, 0.8 "
        "for paper and official.",
        examples=[0.8],
    )
    segment_lengths: Annotated[list[Annotated[int, Field(ge=1, le=LONGEST)]], Affects("rows")] = Field(
        default=[],
        description="Other segment lengths (tokens) to compute and to compare in the report; "
        "scoring.segment_length is always included.",
        examples=[[64, 256]],
    )
    ground_truth: Annotated[list[str], Affects("report", "published")] = Field(
        default=[],
        description="Values of `source` known to need far context; with them the report shows each preset's AUROC, and "
        "the forecast counts what its test misses. No rule reads them.",
        examples=[["far_fact"]],
    )

    evidence: bool | Literal["control"] = Field(
        default=False,
        description="Whether to make the table `evidence`: the segments that each response depends on. Its columns "
        "`evidence` and `dependency` are in combined_scores and selected_subset, too. No model runs for it, so it "
        "needs a method that reads `cam` and `perplexity/long`, such as gateau. control: the table `control`, too, "
        "for which both models read 30 samples. It measures gateau's ranking without labels.",
        examples=[True, "control"],
        exclude_if=lambda value: not value,
    )

    @model_validator(mode="before")
    @classmethod
    def _scores_of_a_file(cls, given: Any) -> Any:
        """Read `method: {scores: FILE}` as the method `scores` with its option `path`."""
        if not isinstance(given, dict) or not isinstance(method := given.get("method"), dict):
            return given
        options = given.get("options") or {}
        if not isinstance(options, dict):
            return {**given, "method": SCORES}  # the type of options is reported
        if [*method] != [SCORES]:
            keys = ", ".join(map(str, method)) or "(none)"
            raise GateauError("methods.unknown", f"method: expected a name or {{{SCORES}: FILE}}, not the keys {keys}")
        if SCORES in options:
            raise GateauError(
                "methods.scores_file",
                f"options.{SCORES}: method: {{{SCORES}: FILE}} names the file already: remove one",
            )
        return {**given, "method": SCORES, "options": {**options, SCORES: {"path": method[SCORES]}}}

    @field_validator("segment_lengths")
    @classmethod
    def _each_once(cls, lengths: list[int]) -> list[int]:
        repeated = sorted({length for length in lengths if lengths.count(length) > 1})
        if repeated:
            raise GateauError(
                "config.listed_twice",
                f"{', '.join(map(str, repeated))} is listed twice: name each length once",
            )
        return lengths

    @property
    def alphas(self) -> dict[Preset, float]:
        """Return the weight of the first term under every preset."""
        return {preset: alpha_of(preset, self.alpha) for preset in PRESETS}
