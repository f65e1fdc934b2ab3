"""Gather what the planner compares: the input's index, the models' digests and the stamps in the store."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.config.synthesis import SYNTHETIC_SAMPLES
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.data.index import InputIndex, cached_index, no_usable_sample, read_samples
from gateau_dagster.data.rejects import check_contexts, check_rejected
from gateau_dagster.data.sample import Sample, read_conversation, shard_keys, text_digest
from gateau_dagster.data.short_chat import first_conversations, short_chat_control_tokens, short_chat_signature
from gateau_dagster.data.sources import FILE_DIGESTS, content_signature, passed_over
from gateau_dagster.errors import GateauError, MissingUpstreamError, gateau_command
from gateau_dagster.evaluation.generation.answering import partly_read_answers
from gateau_dagster.evaluation.server_client import server_key
from gateau_dagster.methods.judge import SAMPLE_RATINGS
from gateau_dagster.methods.registry import chosen_methods, reads_attention, watched_models
from gateau_dagster.models.chat_template import Record
from gateau_dagster.models.model_digest import address_digest, model_digest
from gateau_dagster.pipeline.asset import Asset, Observed
from gateau_dagster.pipeline.data_checks import (
    check_training,
    document_warnings,
    limit_leaves,
    warnings_of,
    without_far_text,
)
from gateau_dagster.pipeline.evaluation_assets import ANSWERS, CHARACTERISTICS, JUDGMENTS, PAIRS
from gateau_dagster.pipeline.feature import features, prepare_inputs
from gateau_dagster.pipeline.model_checks import (
    answer_frames,
    chat_warnings,
    check_answer_end,
    check_attention,
    check_folder,
    check_known_models,
    check_others,
    check_pair,
    check_trained_models,
    control_token_warnings,
    is_untried,
    lost_first_tokens,
    unknown_chat_templates,
    unseen_attention,
    untried_models,
)
from gateau_dagster.pipeline.pipeline import Pipeline, partition_sets, pipeline_of
from gateau_dagster.pipeline.plan import INPUT, Key, Partitions, Plan, ancestors, make_plan, recorded_versions
from gateau_dagster.pipeline.recipes import selections
from gateau_dagster.pipeline.scoring_assets import check_clusters
from gateau_dagster.pipeline.synthesis_assets import document_keys, document_number
from gateau_dagster.progress import Progress, silent
from gateau_dagster.selection.rules import check_data, countable_samples
from gateau_dagster.storage import Stamp, Store
from gateau_dagster.storage.documents import changed_records, document_stamp, folder_stamp
from gateau_dagster.synthesis import CHECKS_TABLE, PASSAGES_TABLE, QUESTIONS_TABLE
from gateau_dagster.synthesis.checks import none_accepted
from gateau_dagster.synthesis.passages import DocumentIndex, document_index
from gateau_dagster.synthesis.questions import PROMPT_TOKENS
from gateau_dagster.tables import UNREAD
from gateau_dagster.training.encode import flagged_turns
from gateau_dagster.training.text_mix import check_homologous, text_signatures

_SAMPLES = 64  # by which tokenizers are compared
_STAMP_READERS = 16
_PAGE_FILES = "page-files.json"  # in the cache: versions of the files that pages load


def asks_hub(config: Config, until: str | None) -> bool:
    """Return whether what is planned up to an asset, None for all, includes data sets on the hub."""
    known = None if until is None else pipeline_of(config).by_key.get(until)
    return until is None or (known is not None and known.elsewhere is not None)


@dataclass(frozen=True, kw_only=True)
class State:
    """A configuration and its store at one moment; everything is read at most once.

    asks_hub: whether data sets on the hub are compared with their records, by one request each. Others count as they
    are on record.
    """

    config: Config
    progress: Progress = silent
    asks_hub: bool = False

    @cached_property
    def store(self) -> Store:
        """Return the store at `storage.root`."""
        return Store(self.config.located_root)

    @cached_property
    def shards(self) -> list[str]:
        """Return the partition keys."""
        return shard_keys(self.config.long_sft.shards)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Return the assets that the configuration describes."""
        return pipeline_of(self.config)

    def asset(self, key: str) -> Asset:
        """Return an asset's declaration."""
        return self.pipeline.by_key[key]

    @cached_property
    def index(self) -> InputIndex:
        """Return the input's index; only files that changed since the last call are read."""
        return self._read_index()

    def _read_index(self) -> InputIndex:
        config = self.config
        prepare_inputs(config)
        return cached_index(config.located_long_sft, config.folder, config.work_folder / "cache", self.progress)

    @cached_property
    def documents(self) -> DocumentIndex:
        """Return the index of the documents of `synthesis`; only files that changed since the last call are read."""
        options = self.config.synthesis
        assert options is not None
        return document_index(options, self.config.folder, self.config.work_folder / "cache", self.progress)

    @cached_property
    def model_digests(self) -> dict[str, str]:
        """Return the digest of each configured model."""
        models = self.config.models
        known = {name: self._digest(name) for name, model in models.items() if model.base is None}
        return {
            name: known[name] if model.base is None else f"made:{known[model.base]}" for name, model in models.items()
        }

    def _digest(self, name: str) -> str:
        if name not in self._digests:
            self._digests[name] = model_digest(self.config, name)
        return self._digests[name]

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {}

    @cached_property
    def other_digests(self) -> dict[str, str]:
        """Return the digest of each model of `variants.also`, by its variant."""
        config = self.config
        return {
            name: address_digest(config, each.model, place=f"variants.also.{name}")
            for name, each in config.other_models.items()
        }

    @cached_property
    def observed(self) -> Observed:
        """Return the present state of everything outside configuration and store."""
        config = self.config
        prepare_inputs(config)
        chat, cache = config.located_short_chat, config.work_folder / "cache"
        return Observed(
            model_digests=self.model_digests,
            short_chat=short_chat_signature(chat, config.folder, cache) if chat else None,
            texts=text_signatures(config, cache / FILE_DIGESTS),
            files={
                name: content_signature(method.files(), cache / FILE_DIGESTS)
                for name, method in chosen_methods(config).items()
                if method.paths()
            },
            others=self.other_digests,
            documents={key: self.documents.digest(number) for number, key in enumerate(document_keys(config))},
            instructions=self._instructions() if SPLIT in self.pipeline.by_key else "",
            frames=answer_frames(config, self.model_digests, self.other_digests),
        )

    def _instructions(self) -> str:
        try:
            # An index without the synthetic samples that are still to be made must not stay.
            index = self._read_index() if self.config.reads_synthetic else self.index
            left_out = index.instructions
        except GateauError:
            return ""  # the samples are still to be made, or `check_data` gives the reason
        return text_digest([f"{size} {sample_id}" for sample_id, size in left_out.items()]) if left_out else ""

    def variant_frame(self, variant: str) -> tuple[str, str]:
        """Return the changes by the chat template of a variant's model before an answer, see Observed.frames."""
        other = self.config.variant_set[variant].other
        own = self.config.origin(self.config.training.model)
        return self.observed.frame(own if other is None else f"variants.also.{variant}")

    @cached_property
    def _resolved(self) -> dict[str, Asset]:
        """Return the assets with all settings known, by key, in topological order."""
        return {asset.key: asset for asset in self.pipeline.resolved(self.observed)}

    def resolved(self, key: str) -> Asset:
        """Return an asset with all settings known, as the planner compares it with the store."""
        return self._resolved[key]

    @cached_property
    def _partitions(self) -> Partitions:
        return Partitions.between(self.pipeline.assets, partition_sets(self.config))

    def shard_input(self, partition: str) -> str:
        """Return the content digest of the input samples in a shard."""
        return self.index.shard_digest(int(partition))

    def stamp(self, key: str, partition: str | None) -> Stamp | None:
        """Return the stamp of an output in the store."""
        return self.stamps([(key, partition)])[key, partition]

    def stamps(self, keys: Iterable[Key]) -> dict[Key, Stamp | None]:
        """Return the stamps of outputs in the store."""
        wanted = list(keys)
        tables = [key for key in wanted if not (self.asset(key[0]).file or self.asset(key[0]).folder)]
        found = self.table_stamps(tables)
        return {key: found[key] if key in found else self._file_stamp(self.asset(key[0])) for key in wanted}

    def _file_stamp(self, asset: Asset) -> Stamp | None:
        """Return the stamp of the report's page or the checkpoint's folder; None where another page is missing."""
        if asset.folder:
            return folder_stamp(self.store, asset.key)
        cache = self.config.work_folder / "cache" / _PAGE_FILES
        found, *others = (document_stamp(self.store, name, cache) for name in (asset.file, *asset.further_files))
        together = {None if each is None else each.fingerprint for each in others}
        return found if found is not None and together <= {found.fingerprint} else None

    def table_stamps(self, keys: Iterable[Key]) -> dict[Key, Stamp | None]:
        """Return the stamps of tables; None where the table, or the model that it describes, is missing."""
        stamps = self.store.stamps(keys)
        with_models = {key: folder for key, stamp in stamps.items() if (folder := self._model_folder(key, stamp))}
        if not with_models:
            return stamps
        with ThreadPoolExecutor(_STAMP_READERS) as pool:
            models = pool.map(partial(folder_stamp, self.store), with_models.values())
        lost = {key for key, stamp in zip(with_models, models, strict=True) if stamp is None}
        return {key: None if key in lost else stamp for key, stamp in stamps.items()}

    def _model_folder(self, key: Key, stamp: Stamp | None) -> str:
        part = self.asset(key[0]).parts.get(key[1] or "")
        return f"{part.folders}/{stamp.fingerprint}" if part is not None and part.folders and stamp is not None else ""

    def recorded(self) -> dict[Key, Stamp | None]:
        """Return the stamps of all outputs."""
        return self.stamps(key for asset in self.pipeline.assets for key in self._partitions.keys(asset.key))

    def read(self, asset: str, columns: list[str] | None = None, partition: str | None = None) -> pl.DataFrame:
        """Return a table, or one partition of it; rows of all its partitions together.

        Raises:
            GateauError: the table is missing or cannot be read.
        """
        partitions = self.pipeline.partitions(asset)
        if partitions == [None]:
            return self.store.read(asset, None, columns)
        chosen = partitions if partition is None else [partition]
        return self.store.read_all(asset, [each for each in chosen if each is not None], columns)

    def read_rejected(self, asset: str, partition: str | None = None) -> pl.DataFrame:
        """Return the samples that a table rejected in one partition or in all, with the reasons."""
        partitions = self.pipeline.partitions(asset)
        chosen: Sequence[str | None] = partitions if partition is None or partitions == [None] else [partition]
        return self.store.read_rejected(asset, chosen)

    def plan(self, recorded: dict[Key, Stamp | None] | None = None) -> Plan:
        """Return the required outputs that are out of date now.

        Raises:
            GateauError: see `check_data` and `check_models`.
        """
        whole = self.whole_plan(recorded)
        return Plan(work=[work for work in whole.work if work.asset in self.pipeline.required])

    def plan_until(self, asset: str | None) -> Plan:
        """Return `plan`, or what `asset` needs, whether the configuration requires it or not.

        Raises:
            GateauError: there is no such asset; or see `check_data`.
        """
        if asset is None:
            return self.plan()
        ancestors(asset, self.pipeline.assets)  # a name that does not exist is refused before anything is read
        assets, whole = [*self._resolved.values()], self.whole_plan()
        before = set() if not self.config.reads_synthetic else ancestors(SYNTHETIC_SAMPLES, assets)
        if before and asset not in before and whole.of(SYNTHETIC_SAMPLES) is not None:
            return whole  # `asset` reads samples that are still to be made
        return whole.until(asset, assets)

    def out_of_date(self, asset: str) -> str:
        """Return a sentence if an asset should be made again, or if that is not known; else an empty text."""
        try:
            plan = self.plan_until(asset)
        except GateauError as error:
            return f"Whether {asset} is up to date is not known: {error}"
        if not plan:
            return ""
        run, work = gateau_command("run"), plan.work[0]
        why = next(iter(work.reasons.values()))
        return f"{asset} is out of date ({work.asset}: {why}). `{run}` makes it again."

    def plan_before_samples(self, recorded: dict[Key, Stamp | None] | None = None) -> Plan | None:
        """Return the plan of the synthetic samples if `long_sft` reads them and they are out of date, else None.

        All other work waits for them, because it may be different then.
        """
        if not self.config.reads_synthetic:
            return None
        assets = [*self._resolved.values()]
        wanted = ancestors(SYNTHETIC_SAMPLES, assets)
        assets = [asset for asset in assets if asset.key in wanted]
        partitions = Partitions.between(assets, partition_sets(self.config))
        found = recorded or self.stamps(key for asset in assets for key in partitions.keys(asset.key))
        return make_plan(assets, partition_sets(self.config), {}, found) or None

    def whole_plan(self, recorded: dict[Key, Stamp | None] | None = None) -> Plan:
        """Return the outdated outputs of all assets, whether the configuration requires them or not.

        Raises:
            GateauError: see `check_data`, `check_models` and `limit_leaves`.
        """
        if self.config.reads_synthetic:
            prepare_inputs(self.config)
            self.check_models()
            if (first := self.plan_before_samples(recorded)) is not None:
                return first
        self.check_data()
        self.check_models()
        inputs = {shard: self.shard_input(shard) for shard in self.shards}
        found = self.recorded() if recorded is None else recorded
        assets = list(self._resolved.values())
        plan = make_plan(assets, partition_sets(self.config), inputs, found, self.on_hub[0])
        limit_leaves(self.config, self.store, plan)
        return plan

    @cached_property
    def on_hub(self) -> tuple[dict[Key, str], list[str]]:
        """Return how each published data set differs from its record, if it does; and why others are not compared."""
        changes: dict[Key, str] = {}
        unknown = list[str]()
        for asset in self.pipeline.assets if self.asks_hub else ():
            stamp = None if asset.elsewhere is None else self.stamp(asset.key, None)
            if asset.elsewhere is None or stamp is None:
                continue
            try:
                change = asset.elsewhere(stamp)
            except GateauError as error:
                unknown.append(f"{asset.key}: not compared with the hub. {error}")
                continue
            if change:
                changes[asset.key, None] = change
        return changes, unknown

    def check_data(self) -> None:
        """Check before scoring that the data suffice for the configuration.

        Raises:
            GateauError: more of the input is rejected than allowed, the rule of selection cannot be met, a method lacks
                samples that it needs, there are fewer samples than clusters, or the machine cannot hold the training.
        """
        for check in self._data_checks():
            check()

    def _data_checks(self) -> Iterator[Callable[[], object]]:
        accepted = self.index.accepted
        yield self.check_accepted
        yield partial(check_rejected, self.index.rejects, self.config.long_sft)
        yield partial(check_contexts, self.index.contexts, self.config.long_sft)
        for selection in selections(self.config):
            yield partial(check_data, *countable_samples(accepted, selection))
        for method in chosen_methods(self.config).values():
            yield partial(method.check_data, accepted)
        yield partial(check_clusters, self.config, accepted.height)
        yield partial(check_training, self.config, accepted)

    def check_accepted(self) -> None:
        """Check that long_sft has a sample: the checks may have refused every synthetic candidate.

        Raises:
            GateauError: long_sft has no sample.
        """
        if not self.index.accepted.is_empty():
            return
        if refused := self._refused_candidates:
            raise GateauError("synthesis.none_accepted", refused)
        path = self.config.located_long_sft.path
        raise GateauError("data.no_usable_record", no_usable_sample("long_sft.path", path, self.index.rejected))

    @cached_property
    def _refused_candidates(self) -> str:
        """Return why no synthetic candidate is accepted; empty if one is, or if their tables are not all made."""
        keys = document_keys(self.config)
        made = self.store.stamps((SYNTHETIC_SAMPLES, key) for key in keys)
        if not keys or any(stamp is None or stamp.rows for stamp in made.values()):
            return ""
        return none_accepted(*self.refusals(), self.partly_read_passages())

    def refusals(self) -> tuple[pl.DataFrame, pl.Series]:
        """Return `reason` and `accepted` of the synthetic candidates, and why the others have no reply."""
        keys = document_keys(self.config)
        checked = self.store.read_all(CHECKS_TABLE, keys, ["reason", "accepted"])
        lost = pl.concat(self.store.read_rejected(asset, keys) for asset in (QUESTIONS_TABLE, CHECKS_TABLE))
        return checked, lost["reason"]

    def partly_read_passages(self) -> str:
        """Return a sentence about prompts that the generator read in part; empty without any."""
        keys, columns = document_keys(self.config), ["sample_id", PROMPT_TOKENS.name, UNREAD.name]
        names = {key: [name for name in columns if name in self.store.columns(QUESTIONS_TABLE, key)] for key in keys}
        parts = [self.store.read(QUESTIONS_TABLE, key, found) for key, found in names.items()]
        return partly_read_answers(pl.concat(parts, how="diagonal"), at_least=True)

    def _without_synthetic(self) -> list[str]:
        refused = self._refused_candidates if self.config.reads_synthetic and not self.index.accepted.is_empty() else ""
        return [" ".join(refused.split())] if refused else []

    @property
    def _awaits_samples(self) -> bool:
        """Return whether long_sft reads synthetic samples that are to be made, so that its data is not known."""
        try:
            return self.plan_before_samples() is not None
        except GateauError:  # a missing model, which other checks report
            return self.config.reads_synthetic

    def check_models(self) -> None:
        """Check that the models can serve their purposes; read no weights.

        Raises:
            GateauError: a model is missing, its files are damaged, it cannot be extended or cannot serve a method, or
                the pair's tokenizers differ.
        """
        for check in self._model_checks():
            check()

    def _model_checks(self) -> Iterator[Callable[[], object]]:
        yield self._try_template
        # One check per model: if two models are missing, both are findings.
        yield from (partial(self._check_model, name) for name in self.config.models)
        yield partial(check_others, self.config)
        if self.pipeline.compares_the_pair:
            yield lambda: check_pair(self.config, self.model_digests, self._first_responses)
        cam = {"long"} if self.pipeline.makes_cam and reads_attention(self.config) else set()
        for name in sorted(cam | watched_models(self.config)):
            yield lambda name=name: check_attention(self.config, name, self.model_digests[name])
        # The digests are read when the check runs: a missing model is a separate finding.
        yield lambda: check_answer_end(self.config, self.model_digests)
        yield partial(check_homologous, self.config)
        yield lambda: check_trained_models(self.config, self.model_digests)
        yield partial(check_known_models, self.config)

    def _try_template(self) -> None:
        """Try the trained model's template with the data's records, before other checks try it without them."""
        config = self.config
        if config.training.enabled and config.models and config.scoring.template == "chat":
            name = config.origin(config.training.model)
            if is_untried(config, name, self._digest(name)):
                _ = self._chat_warnings

    def _check_model(self, name: str) -> None:
        check_folder(self.config, name, self._digest(name), scores=name in self.pipeline.scoring_models)

    def _machine_checks(self) -> Iterator[Callable[[], object]]:
        yield self.store.files.check_writable
        yield self.check_device
        families = {asset.partition("/")[0] for asset in self.pipeline.required}
        for place, server, asking in (
            ("evaluation.engine", self.config.evaluation.engine, {ANSWERS}),
            ("evaluation.judge", self.config.evaluation.judge, {JUDGMENTS, PAIRS, CHARACTERISTICS, SAMPLE_RATINGS}),
        ):
            if server is not None and families & asking:
                yield partial(server_key, place, server.key, server.base_url)
        if (synthesis := self.config.synthesis) is not None:
            if synthesis.compares_by_judge and (judge := self.config.evaluation.judge) is not None:
                yield partial(server_key, judge.place, judge.key, judge.base_url)
            yield partial(server_key, synthesis.generator.place, synthesis.generator.key, synthesis.generator.base_url)
        for feature in features():
            yield from feature.machine_checks(self.config)

    def check_device(self) -> None:
        """Check that the scoring device is in this machine; skip workers of a cluster, which checks its own.

        Raises:
            GateauError: the machine lacks the device.
        """
        config = self.config
        scoring = config.scoring
        asks = scoring.device not in {"auto", "cpu"} or scoring.attention != "auto"
        if config.execution.pool_name == "processes" and config.models and asks:
            from gateau_dagster.models.devices import check_scoring_device

            check_scoring_device(config.scoring)

    def findings(self) -> list[GateauError]:
        """Return each reason for which a run here would end, once: from data, models, device, store and servers."""
        found: dict[str, GateauError] = {}
        of_data = iter(()) if self._awaits_samples else self._data_checks()
        for checks in (of_data, self._model_checks(), self._machine_checks()):
            while True:
                try:
                    check = next(checks, None)
                    if check is None:
                        break
                    check()
                except GateauError as error:
                    found.setdefault(str(error), error)
        return list(found.values())

    def _first_responses(self) -> list[str]:
        return [sample.response for sample in self._first_samples()]

    def _first_samples(self) -> list[Sample]:
        """Return some samples of the data."""
        first = self.index.accepted.head(_SAMPLES).drop("shard")
        return list(read_samples(self.config.located_long_sft, self.index, first))

    def _first_long_conversations(self) -> list[Record]:
        """Return the first samples of several exchanges; with `trained_turns: last`, no earlier answer is trained."""
        found = [read_conversation(each.conversation) for each in self._first_samples() if each.conversation]
        return [{"messages": flagged_turns(each, self.config.trained_turns), "tools": tools} for each, tools in found]

    def _first_short_conversations(self) -> list[Record]:
        chat = self.config.located_short_chat
        first = [] if chat is None else first_conversations(chat, self.config.folder, _SAMPLES)
        return [{"messages": messages} for messages in first]

    @cached_property
    def warnings(self) -> list[str]:
        """Return a sentence for each setting that is valid but may be unintended."""
        awaited, accepted = self._awaits_samples, self.index.accepted
        accepted = accepted.clear() if awaited else accepted
        try:
            self.check_device()
            of_device = []
        except GateauError as error:
            of_device = [str(error)]
        of_methods = (method.warnings(accepted) for method in chosen_methods(self.config).values())
        of_models = [*lost_first_tokens(self.config), *unknown_chat_templates(self.config), *self._without_cas()]
        of_models += [*self._chat_warnings, *self._untried_models()]
        if self.pipeline.compares_the_pair:
            of_models += without_far_text(self.config, accepted, self._first_samples)
        of_models += [*self._passed_over(), *self._changed_records(), *self.lost_documents()]
        of_models += [
            *self._control_token_warnings(),
            *(self.on_hub[1] or (said for feature in features() for said in feature.warnings(self.config))),
        ]
        if not awaited:
            of_models += [*self.index.contexts.warnings, *self._without_synthetic()]
            of_models += document_warnings(self.config, self.store, self.whole_plan, self.index)
        # Several methods may give the same warning.
        return [
            *dict.fromkeys(
                [*of_device, *of_models, *warnings_of(self.config, accepted), *chain.from_iterable(of_methods)]
            )
        ]

    def _control_token_warnings(self) -> list[str]:
        try:
            digests = self.model_digests
        except GateauError:  # a missing model, which other checks report
            return []
        config, chat, index = self.config, self.config.located_short_chat, self.index
        chats = {} if chat is None else short_chat_control_tokens(chat, config.folder, config.work_folder / "cache")
        read = partial(read_samples, config.located_long_sft, index, index.accepted.drop("shard"))
        return control_token_warnings(config, digests, index, chats, read)

    def lost_documents(self) -> list[str]:
        """Return warnings on records of `synthesis.documents` that hold none, and on too few candidates."""
        options = self.config.synthesis
        if options is None:
            return []
        found = self.stamps((PASSAGES_TABLE, key) for key in document_keys(self.config))
        made = {
            document_number(str(key)): stamp.rows or 0
            for (_, key), stamp in found.items()
            if stamp is not None and self._is_current(PASSAGES_TABLE, key, stamp)
        }
        return self.documents.warnings(options, made)

    def _is_current(self, key: str, partition: str | None, stamp: Stamp) -> bool:
        try:
            return self.asset(key).is_current(stamp, self.wanted_stamp(key, partition).fingerprint)
        except MissingUpstreamError:
            return False

    def _passed_over(self) -> list[str]:
        config, chat = self.config, self.config.located_short_chat
        found = passed_over("long_sft.path", config.located_long_sft.path, config.folder)
        return [*found, *(passed_over("short_chat.path", chat.path, config.folder) if chat is not None else [])]

    def _changed_records(self) -> Iterator[str]:
        assets = self.pipeline.assets
        with_models = [each.key for each in assets if any(part.folders for part in each.parts.values())]
        stamps = self.store.stamps(key for asset in with_models for key in self._partitions.keys(asset))
        folders = [each.key for each in assets if each.folder]
        folders += [self._model_folder(key, stamp) for key, stamp in stamps.items()]
        for folder in sorted({*folders} - {""}):
            for file in changed_records(self.store, folder):
                yield (
                    f"{self.store.files.address(folder)}/{file} is not what the training wrote. If nobody has edited "
                    "it, it is damaged: put a copy back, or remove it. The model does not depend on it."
                )

    def _untried_models(self) -> list[str]:
        try:
            return untried_models(self.config, self.model_digests)
        except GateauError:  # a missing model, which other checks report
            return []

    @cached_property
    def _chat_warnings(self) -> list[str]:
        """Return warnings on how chat templates render the data's first conversations.

        Other checks report missing files.
        """
        try:
            return chat_warnings(
                self.config,
                self.model_digests,
                {"short_chat": self._first_short_conversations, "long_sft": self._first_long_conversations},
            )
        except GateauError:
            return []

    def _without_cas(self) -> list[str]:
        """Return a sentence if nothing reads CAS and it cannot be computed. `check_models` reports models that cannot
        be read.
        """
        if not self.pipeline.makes_cam or reads_attention(self.config):
            return []
        if self.config.scoring.segments == "screened":
            return [
                "scoring.segments is screened, so `cam` has no CAS. The report's presets paper and official use HMP "
                "alone."
            ]
        try:
            return unseen_attention(self.config, self.model_digests["long"])
        except GateauError:
            return []

    def row_scorer(self, asset: str) -> str | None:
        """Return the digest of what computes a row of a table now; None while its model is still to be made."""
        table = self.resolved(asset)
        made = self.stamp(table.model, None) if table.model else None
        if not table.model:
            return table.scorer
        if made is None or self.whole_plan().of(table.model) is not None:
            return None
        return table.row_scorer({table.model: made.content})

    def versions_now(self, asset: str, partition: str | None) -> dict[str, str]:
        """Return the upstream versions that an output computed now would be made from.

        Raises:
            MissingUpstreamError: an upstream output is not in the store yet.
        """
        part = self.asset(asset).of_partition(partition)
        if part.reads_input:
            assert partition is not None
            return {INPUT: self.shard_input(partition)}
        keys = [key for name in part.reads for key in self._partitions.read(name, asset, partition)]
        found = self.stamps(keys)
        for key, stamp in found.items():
            if stamp is None:
                raise MissingUpstreamError(asset, partition, key)
        stamps = {key: stamp for key, stamp in found.items() if stamp is not None}
        return recorded_versions(part, partition, self._partitions, stamps)

    def outputs_read(self, upstream: str, asset: str, partition: str | None) -> list[Key]:
        """Return the outputs of an upstream that an output of `asset` reads."""
        return self._partitions.read(upstream, asset, partition)

    def wanted_stamp(self, asset: str, partition: str | None) -> Stamp:
        """Return the stamp of an output computed now, still without rows and content."""
        part, versions = self.resolved(asset).of_partition(partition), self.versions_now(asset, partition)
        scorer = part.row_scorer(versions)
        return Stamp(fingerprint=part.fingerprint(versions), inputs=part.made_from(versions), scorer=scorer)
