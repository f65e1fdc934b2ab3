"""Find what the tables lost: samples that were rejected or are missing, truncated tokens, empty benchmarks."""

# Why from tables and not from a log: a loss must still be known when the run that caused it is over. `gateau plan`, the
# checks and the report then give the same numbers, also on a copied store.
#
# What it costs: some columns of each table. Rejects are read only for shards that lack rows.

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.config.inputs import NOTABLE_REJECTS
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.data.rejects import Rejects, rejects_among, rejects_among_chats
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import longest_prompt
from gateau_dagster.models.model_facts import shown_window
from gateau_dagster.pipeline.asset import REJECTED_SHARE, TRUNCATED_SHARE, VARIANT, Asset
from gateau_dagster.pipeline.feature import hooks
from gateau_dagster.pipeline.plan import Key
from gateau_dagster.pipeline.selection_reads import CHOSEN, PRESETS_TABLE, ranking_asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import percentage, plural
from gateau_dagster.storage import Stamp

# A truncated token is as lost as one of a rejected sample, so the same share is worth a warning.
NOTABLE_CUT = NOTABLE_REJECTS


@dataclass(frozen=True, kw_only=True)
class DataLoss:
    """One table's lost data in a sentence. `notable`: worth a warning. `intended`: see Truncation."""

    asset: str
    sentence: str
    notable: bool
    intended: bool = False


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """The truncation of `samples` by a length limit: `cut` of them lack `cut_tokens` of their `tokens`.

    limit: the reason.
    intended: whether the configuration limits the model to its own window.
    nouns: what is counted.
    """

    samples: int
    cut: int
    tokens: int
    cut_tokens: int
    limit: str
    intended: bool = False
    nouns: tuple[str, str] = ("sample", "context tokens")

    @property
    def share(self) -> float:
        """Return the share of tokens that are cut."""
        return self.cut_tokens / self.tokens if self.tokens else 0.0

    @property
    def notable(self) -> bool:
        """Return whether it is worth a warning."""
        return not self.intended and self.share > NOTABLE_CUT

    def sentence(self, about: str = "") -> str:
        """Return `190 of 200 samples cut, 9,000 of 10,000 context tokens (90 %) lost: …`; nothing that is intended is
        called lost. `about`: precedes counts.
        """
        one, tokens = self.nouns
        cut, lost = ("shortened as configured", "not shown") if self.intended else ("cut", "lost")
        return (
            f"{about}{self.cut:,} of {plural(self.samples, one)} {cut}, {about}{self.cut_tokens:,} of {self.tokens:,} "
            f"{tokens} ({percentage(self.share)}) {lost}: {self.limit}"
        )


def truncation_among(kept: pl.Series, cut: pl.Series, *, limit: str, intended: bool = False) -> Truncation:
    """Sum up the kept and the cut tokens of all samples."""
    lost = int(cut.cast(pl.Int64).sum())
    return Truncation(
        samples=cut.len(),
        cut=int((cut > 0).sum()),
        tokens=int(kept.cast(pl.Int64).sum()) + lost,
        cut_tokens=lost,
        limit=limit,
        intended=intended,
    )


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the partitions of one table. None: the table does not record it.

    rejected: with the kinds of reasons.
    truncation: tokens that were to be shown, and those cut off.
    tokens, seconds: tokens shown to the model, and the time for them, of the rows computed last.
    """

    asset: str
    rows: int
    rejected: Rejects | None
    truncation: Truncation | None
    tokens: int | None
    seconds: float | None

    @property
    def reasons(self) -> str:
        """Return the reasons as `50 x empty response; 3 x malformed JSON`."""
        kinds = self.rejected.kinds if self.rejected else ()
        return "; ".join(f"{each.count:,} x {each.kind}" for each in kinds)


def totals(state: State, made: Container[str], recorded: Mapping[Key, Stamp | None]) -> Iterator[Totals]:
    """Yield the totals of the tables among `made`, in the order of the data's flow. `recorded`: their stamps."""
    for asset in state.pipeline.assets:
        stamps = [stamp for (key, _), stamp in recorded.items() if key == asset.key and stamp is not None]
        if asset.key in made and any(stamp.rows is not None for stamp in stamps):
            yield _totals(state, asset, stamps)


def _totals(state: State, asset: Asset, stamps: list[Stamp]) -> Totals:
    efforts = [stamp.effort for stamp in stamps if stamp.effort]
    return Totals(
        asset=asset.key,
        rows=sum(stamp.rows or 0 for stamp in stamps),
        rejected=rejects_of(state, asset) if REJECTED_SHARE in asset.checks else None,
        truncation=truncation_of(state, asset) if TRUNCATED_SHARE in asset.checks else None,
        tokens=sum(effort["tokens"] for effort in efforts) if efforts else None,
        seconds=sum(effort["seconds"] for effort in efforts) if efforts else None,
    )


def unfilled(state: State) -> str:
    """Return a sentence if `selected_subset`, which is up to date, holds fewer samples than requested; else empty."""
    rule = state.config.selection
    if rule.budget is not None:
        return ""
    found = state.read(CHOSEN, ["sample_id"]).height
    limits = _limits(state) if rule.left_out or rule.per_document is not None else []
    if limits and found < (wanted := _wanted(state)):
        verb = "allows" if len(limits) == 1 else "allow"
        return f"{found:,} of {wanted:,} samples are chosen: {' and '.join(limits)} {verb} no more"
    if rule.count is not None and found < rule.count:
        return f"{found:,} of the {rule.count:,} samples of selection.count are chosen: no more can be chosen"
    return ""


def _limits(state: State) -> list[str]:
    reasons = state.read_rejected(CHOSEN)["reason"]
    settings = ("selection.drop", "selection.rule", "selection.duplicates: one", "selection.per_document")
    return [setting for setting in settings if reasons.str.starts_with(f"{setting}:").any()]


def _wanted(state: State) -> int:
    """Return how many samples the rule chooses among those that have a score and are not reserved."""
    rule = state.config.selection
    ranking = ranking_asset(state.config)
    score = f"score_{rule.preset}" if ranking == PRESETS_TABLE else "score"
    candidates = state.read(ranking, ["sample_id", score]).filter(pl.col(score).is_not_null())
    if SPLIT in state.pipeline.by_key:
        reserved = state.read(SPLIT, ["sample_id", "reserved"]).filter("reserved")
        candidates = candidates.join(reserved, on="sample_id", how="anti")
    if rule.use_sources:
        shows_use = state.read(RAW, ["sample_id", "source"]).filter(pl.col("source").is_in(rule.use_sources))
        candidates = candidates.join(shows_use, on="sample_id", how="anti")
    return rule.chosen(candidates.height)


RAW, CHAT, TEXT_MIX = "raw_long_sft", "short_chat_mix", "homologous_mix"
# Per sample, the share of its context's tokens that no model saw.
UNSEEN = pl.Schema({"sample_id": pl.String(), "unseen": pl.Float64()})


@dataclass(frozen=True, kw_only=True)
class PromptLimit:
    """The number of tokens of a prompt that a causal model is shown, why, and whether only its window is configured."""

    tokens: int
    why: str
    intended: bool

    @classmethod
    def of(cls, config: Config, model: str) -> "PromptLimit":
        """Return the limit of a configured model, see models.loading.effective_max_length."""
        tokens, _ = longest_prompt(config, model, window=shown_window(config, model))
        if tokens < config.scoring.max_length:
            why = f"models.{model} sees its window of {tokens:,} tokens only (context: window)"
            return cls(tokens=tokens, why=why, intended=True)
        return cls(tokens=tokens, why=f"scoring.max_length is {tokens:,}", intended=False)


def losses(state: State, made: Container[str]) -> Iterator[DataLoss]:
    """Yield the losses of these tables, which are up to date, in the order of the data's flow."""
    of_features = hooks("checks", "losses")
    for asset in state.pipeline.assets:
        if asset.key not in made:
            continue
        for part in told_parts(state, asset):
            yield from _losses_of(state, asset, part)
        for find in of_features:
            yield from find(state, asset.key)
        if asset.of == "method" and (unscored := _unscored(state, asset)):
            yield unscored
        if asset.key == CHOSEN and (found := unfilled(state)):
            yield DataLoss(asset=asset.key, sentence=found, notable=True)


def told_parts(state: State, asset: Asset) -> Sequence[str | None]:
    """Return the partitions whose losses are reported one by one, since each variant is trained separately. None means
    the whole table.
    """
    return _made(state, asset) if asset.partitions == VARIANT else [None]


def _losses_of(state: State, asset: Asset, part: str | None) -> Iterator[DataLoss]:
    name = asset.key if part is None else f"{asset.key}[{part}]"
    if REJECTED_SHARE in asset.checks and (rejects := rejects_of(state, asset, part)).count:
        yield DataLoss(asset=name, sentence=rejects.sentence(noun_of(asset)), notable=rejects.notable)
    if TRUNCATED_SHARE in asset.checks and (truncation := truncation_of(state, asset, part)).cut:
        found = truncation.sentence()
        yield DataLoss(asset=name, sentence=found, notable=truncation.notable, intended=truncation.intended)


def _unscored(state: State, asset: Asset) -> DataLoss | None:
    """Return the loss of samples that a method left without a score; None if it scored all of them."""
    scores = state.read(asset.key, ["score"])["score"]
    lost, share = scores.null_count(), scores.null_count() / max(scores.len(), 1)
    if not lost:
        return None
    sentence = f"{lost:,} of {plural(scores.len(), 'sample')} without a score ({percentage(share)}): never chosen by it"
    return DataLoss(asset=asset.key, sentence=sentence, notable=share > NOTABLE_REJECTS)


def noun_of(asset: Asset) -> str:
    """Return the noun for what an asset rejects."""
    if asset.maker == TEXT_MIX:
        return "text"
    return {RAW: "record", CHAT: "conversation"}.get(asset.key, "sample")


def rejects_of(state: State, asset: Asset, part: str | None = None) -> Rejects:
    """Return the rejects of an asset or a part of it; for the long samples, those of the current input."""
    if asset.key == RAW:
        return state.index.rejects
    if asset.table is not None:
        return _rejects_by_shard(state, asset.key)
    if asset.maker == TEXT_MIX:
        return _rejected_texts(state, asset.key)
    parts = _parts(state, asset, part)
    rejected = state.store.read_rejected(asset.key, parts)
    # A table of ratings has several rows per sample.
    usable = sum(state.store.read(asset.key, each, ["sample_id"])["sample_id"].n_unique() for each in parts)
    chat = state.config.short_chat
    if asset.key == CHAT and chat is not None:
        return rejects_among_chats(usable, rejected, chat)
    return rejects_among(rejected, usable + rejected.height)


def _rejected_texts(state: State, key: str) -> Rejects:
    """Return the rejects among all texts in the files, of which the mix may hold few. Mixes of early releases do not
    record how many there were; then the count is approximate.
    """
    rejected, stamp = state.store.read_rejected(key, [None]), state.stamp(key, None)
    given = None if stamp is None else stamp.given
    drawn = state.read(key, ["sample_id"])["sample_id"].str.replace(r"#\d+$", "").n_unique()
    found = rejects_among(rejected, drawn + rejected.height if given is None else given, named=True)
    return replace(found, about=given is None)


def _rejects_by_shard(state: State, key: str) -> Rejects:
    """Return the rejects of a table with one row per sample, read only for shards with missing rows."""
    raw, own = (state.store.stamps((name, shard) for shard in state.shards) for name in (RAW, key))
    made = {shard: stamp.rows or 0 for (_, shard), stamp in own.items() if stamp is not None and shard is not None}
    whole = {shard: stamp.rows for (_, shard), stamp in raw.items() if stamp is not None}
    rejected = state.store.read_rejected(key, [shard for shard, rows in made.items() if rows != whole.get(shard)])
    return rejects_among(rejected, sum(made.values()) + rejected.height)


def check_some_scored(state: State, asset: str) -> None:
    """Raise GateauError with the reasons if a table that `asset` reads rejected every sample."""
    for upstream in map(state.asset, state.asset(asset).reads):
        if upstream.key == RAW or REJECTED_SHARE not in upstream.checks:
            continue
        found = rejects_of(state, upstream)
        if found.count == found.given > 0:
            raise GateauError(
                "data.empty_table", f"{asset} has no input: {upstream.key} has no row: {found.sentence()}"
            )


def truncation_of(state: State, asset: Asset, part: str | None = None) -> Truncation:
    """Return the truncation of a table with `truncated_tokens` or a part of it: perplexities, ratings, a mix."""
    if asset.table is None:
        columns = ["block_tokens", "truncated_tokens"]
        mix = pl.concat(state.store.read(asset.key, each, columns) for each in _parts(state, asset, part))
        kept, limit = mix["block_tokens"].list.sum(), f"training.max_length is {state.config.training.max_length:,}"
        return replace(truncation_among(kept, mix["truncated_tokens"], limit=limit), nouns=("sequence", "tokens"))
    if asset.table.prompt == "none":
        return _truncation_of_texts(state, asset, asset.table.model)
    table = state.store.read_all(asset.key, _made(state, asset), ["context_tokens", "truncated_tokens"])
    prompt = PromptLimit.of(state.config, asset.table.model)
    return truncation_among(
        table["context_tokens"], table["truncated_tokens"], limit=prompt.why, intended=prompt.intended
    )


def _truncation_of_texts(state: State, asset: Asset, model: str) -> Truncation:
    """Return the truncation of instruction and response, which a model reads as one text and cuts at the end."""
    table = state.store.read_all(asset.key, _made(state, asset), ["tokens", "truncated_tokens"])
    read = max(table.filter(pl.col("truncated_tokens") > 0)["tokens"].to_list(), default=0)
    found = truncation_among(table["tokens"], table["truncated_tokens"], limit=f"models.{model} reads {read:,} tokens")
    return replace(found, nouns=("text", "tokens"))


def prompted_models(assets: Iterable[Asset]) -> list[str]:
    """Return the models that are shown contexts for one of these assets."""
    scored = [asset.table for asset in assets if asset.table is not None]
    return list(dict.fromkeys(each.model for each in scored if each.prompt != "none"))


def unseen_shares(state: State, assets: Collection[Asset]) -> pl.DataFrame:
    """Return UNSEEN for the models that score for `assets`: only samples that are cut for each of them.

    It is empty if the tables of some model do not record what it was shown.
    """
    columns = ["sample_id", "context_tokens", "truncated_tokens"]
    counted = [
        asset
        for asset in assets
        if asset.table is not None and asset.table.prompt != "none" and TRUNCATED_SHARE in asset.checks
    ]
    if {*prompted_models(assets)} - {*prompted_models(counted)}:
        return UNSEEN.to_frame()
    share = pl.col("truncated_tokens") / pl.sum_horizontal(columns[1:])
    seen = (state.store.read_all(asset.key, _made(state, asset), columns) for asset in counted)
    shares = [table.select("sample_id", unseen=share) for table in seen]
    # A sample without context (0 of 0 tokens) loses nothing.
    found = pl.concat([UNSEEN.to_frame(), *shares]).group_by("sample_id").agg(pl.col("unseen").fill_nan(0.0).min())
    return found.filter(pl.col("unseen") > 0)


def _parts(state: State, asset: Asset, part: str | None) -> Sequence[str | None]:
    return [part] if part is not None or not asset.partitions else _made(state, asset)


def _made(state: State, asset: Asset) -> list[str]:
    stamps = state.store.stamps((asset.key, part) for part in state.pipeline.partitions(asset.key))
    return [part for (_, part), stamp in stamps.items() if part is not None and stamp is not None]
