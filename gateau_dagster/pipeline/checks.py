"""Check before any model runs whether configuration, data, models and this machine can serve a run, and warn."""

# Why so much is checked before: a mistake that is found by the first step with a model may cost hours. One that
# training finds may cost days. So everything is checked that the configuration, the index of the input and small files
# show. No weights are loaded.
#
# Who asks: a run stops at the first reason. `gateau validate` lists them all. So the checks are generators of
# functions, which serve both.

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

from gateau_dagster.config import Config
from gateau_dagster.data.index import no_usable_sample, read_samples
from gateau_dagster.data.rejects import check_contexts, check_rejected
from gateau_dagster.data.sample import Sample, read_conversation
from gateau_dagster.data.short_chat import first_conversations, short_chat_control_tokens
from gateau_dagster.data.sources import passed_over
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.methods.registry import chosen_methods, reads_attention, watched_models
from gateau_dagster.models.chat_template import Record
from gateau_dagster.pipeline.data_checks import (
    check_training,
    document_warnings,
    limit_leaves,
    warnings_of,
    without_far_text,
)
from gateau_dagster.pipeline.feature import features, hooks
from gateau_dagster.pipeline.model_checks import (
    chat_warnings,
    check_answer_end,
    check_attention,
    check_folder,
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
from gateau_dagster.pipeline.plan import Key, Plan, ancestors
from gateau_dagster.pipeline.recipes import selections
from gateau_dagster.pipeline.scoring_assets import check_clusters
from gateau_dagster.pipeline.state import State
from gateau_dagster.selection.rules import check_data, countable_samples
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.documents import changed_records
from gateau_dagster.training.encode import flagged_turns

_SAMPLES = 64  # by which tokenizers are compared


def checked_plan(state: State, until: str | None = None) -> Plan:
    """Return the plan for a run: the outdated outputs that are required, or that an asset needs.

    Args:
        state: what is compared.
        until: key of the asset; None for all that are required.

    Raises:
        GateauError: there is no such asset; or for the reasons of `checked_whole_plan`.
    """
    if until is not None:
        ancestors(until, state.pipeline.assets)  # a name that does not exist is refused before anything is read
    return state.plan_until(until, checked_whole_plan(state))


def checked_whole_plan(state: State, recorded: dict[Key, Stamp | None] | None = None) -> Plan:
    """Return the outdated outputs of all assets after the checks of data and models. `recorded`: as for `whole_plan`.

    While samples are to be made, their data cannot be checked yet.

    Raises:
        GateauError: see `check_data`, `check_models` and `limit_leaves`.
    """
    checks = checks_of(state)
    if state.config.made_inputs:
        checks.check_models()
    if state.plan_before_samples(recorded) is None:
        checks.check_data()
        checks.check_models()
    whole = state.whole_plan(recorded)
    limit_leaves(state.config, state.store, whole)
    return whole


def out_of_date(state: State, asset: str) -> str:
    """Return a sentence if an asset should be made again, or if that is not known; else an empty text."""
    try:
        plan = checked_plan(state, asset)
    except GateauError as error:
        return f"Whether {asset} is up to date is not known: {error}"
    if not plan:
        return ""
    run, work = gateau_command("run"), plan.work[0]
    why = next(iter(work.reasons.values()))
    return f"{asset} is out of date ({work.asset}: {why}). `{run}` makes it again."


def checks_of(state: State) -> "Checks":
    """Return the checks of a state; what they read is read once for each state."""
    return state.once(Checks)


@dataclass(frozen=True)
class Checks:
    """Find what would end a run, or may be unintended, without a model: from configuration, store, data and files."""

    state: State

    @property
    def config(self) -> Config:
        """Return the configuration."""
        return self.state.config

    def check_data(self) -> None:
        """Check before scoring that the data suffice for the configuration.

        Raises:
            GateauError: more of the input is rejected than allowed, the rule of selection cannot be met, a method lacks
                samples that it needs, there are fewer samples than clusters, or the machine cannot hold the training.
        """
        for check in self._data_checks():
            check()

    def _data_checks(self) -> Iterator[Callable[[], object]]:
        accepted = self.state.index.accepted
        yield self.check_accepted
        yield partial(check_rejected, self.state.index.rejects, self.config.long_sft)
        yield partial(check_contexts, self.state.index.contexts, self.config.long_sft)
        for selection in selections(self.config):
            yield partial(check_data, *countable_samples(accepted, selection))
        for method in chosen_methods(self.config).values():
            yield partial(method.check_data, accepted)
        yield partial(check_clusters, self.config, accepted.height)
        yield partial(check_training, self.config, accepted)

    def check_accepted(self) -> None:
        """Check that long_sft has a sample; a feature that makes samples may know why it has none.

        Raises:
            GateauError: long_sft has no sample.
        """
        if not self.state.index.accepted.is_empty():
            return
        for check in hooks("checks", "check_samples"):
            check(self.state)
        path = self.config.located_long_sft.path
        raise GateauError("data.no_usable_record", no_usable_sample("long_sft.path", path, self.state.index.rejected))

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
        if self.state.pipeline.compares_the_pair:
            yield lambda: check_pair(self.config, self.state.model_digests, self._first_responses)
        cam = {"long"} if self.state.pipeline.makes_cam and reads_attention(self.config) else set()
        for name in sorted(cam | watched_models(self.config)):
            yield lambda name=name: check_attention(self.config, name, self.state.model_digests[name])
        # The digests are read when the check runs: a missing model is a separate finding.
        yield lambda: check_answer_end(self.config, self.state.model_digests)
        for feature in features():
            yield from feature.model_checks(self.config)
        yield lambda: check_trained_models(self.config, self.state.model_digests)
        yield from (method.check_known_models for method in chosen_methods(self.config).values())

    def _try_template(self) -> None:
        """Try the trained model's template with the data's records, before other checks try it without them."""
        config = self.config
        if config.training.enabled and config.models and config.scoring.template == "chat":
            name = config.origin(config.training.model)
            if is_untried(config, name, self.state.digest(name)):
                _ = self._chat_warnings

    def _check_model(self, name: str) -> None:
        check_folder(self.config, name, self.state.digest(name), scores=name in self.state.pipeline.scoring_models)

    def _machine_checks(self) -> Iterator[Callable[[], object]]:
        yield self.state.store.files.check_writable
        yield self.check_device
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
        of_data = iter(()) if self.awaits_samples else self._data_checks()
        for checks in (of_data, self._model_checks(), self._machine_checks()):
            while True:
                try:
                    # Inside the block, too: a generator reads the state to find its checks, and may raise as well.
                    check = next(checks, None)
                    if check is None:
                        break
                    check()
                except GateauError as error:
                    found.setdefault(str(error), error)
        return list(found.values())

    @property
    def awaits_samples(self) -> bool:
        """Return whether long_sft reads samples that are to be made, so that its data is not known."""
        try:
            return self.state.plan_before_samples() is not None
        except GateauError:  # a missing model, which other checks report
            return bool(self.config.made_inputs)

    def _first_responses(self) -> list[str]:
        return [sample.response for sample in self._first_samples()]

    def _first_samples(self) -> list[Sample]:
        first = self.state.index.accepted.head(_SAMPLES).drop("shard")
        return list(read_samples(self.config.located_long_sft, self.state.index, first))

    def _first_long_conversations(self) -> list[Record]:
        # With `trained_turns: last`, no earlier answer is trained.
        found = [read_conversation(each.conversation) for each in self._first_samples() if each.conversation]
        return [{"messages": flagged_turns(each, self.config.trained_turns), "tools": tools} for each, tools in found]

    def _first_short_conversations(self) -> list[Record]:
        chat = self.config.located_short_chat
        first = [] if chat is None else first_conversations(chat, self.config.folder, _SAMPLES)
        return [{"messages": messages} for messages in first]

    @cached_property
    def warnings(self) -> list[str]:
        """Return a sentence for each setting that is valid but may be unintended."""
        awaited, accepted = self.awaits_samples, self.state.index.accepted
        accepted = accepted.clear() if awaited else accepted
        try:
            self.check_device()
            of_device = []
        except GateauError as error:
            of_device = [str(error)]
        of_methods = (method.warnings(accepted) for method in chosen_methods(self.config).values())
        of_models = [*lost_first_tokens(self.config), *unknown_chat_templates(self.config), *self._without_cas()]
        of_models += [*self._chat_warnings, *self._untried_models()]
        if self.state.pipeline.compares_the_pair:
            of_models += without_far_text(self.config, accepted, self._first_samples)
        of_models += [*self._passed_over(), *self._changed_records()]
        of_models += [said for warn in hooks("checks", "warnings") for said in warn(self.state)]
        of_models += [*self._control_token_warnings(), *self.state.on_hub[1]]
        if not awaited:
            of_models += self.state.index.contexts.warnings
            of_models += document_warnings(
                self.config, self.state.store, partial(checked_whole_plan, self.state), self.state.index
            )
        # Several methods may give the same warning.
        return [
            *dict.fromkeys(
                [*of_device, *of_models, *warnings_of(self.config, accepted), *chain.from_iterable(of_methods)]
            )
        ]

    def _control_token_warnings(self) -> list[str]:
        try:
            digests = self.state.model_digests
        except GateauError:  # a missing model, which other checks report
            return []
        config, chat, index = self.config, self.config.located_short_chat, self.state.index
        chats = {} if chat is None else short_chat_control_tokens(chat, config.folder, config.work_folder / "cache")
        read = partial(read_samples, config.located_long_sft, index, index.accepted.drop("shard"))
        return control_token_warnings(config, digests, index, chats, read)

    def _passed_over(self) -> list[str]:
        config, chat = self.config, self.config.located_short_chat
        found = passed_over("long_sft.path", config.located_long_sft.path, config.folder)
        return [*found, *(passed_over("short_chat.path", chat.path, config.folder) if chat is not None else [])]

    def _changed_records(self) -> Iterator[str]:
        assets = self.state.pipeline.assets
        with_models = [each.key for each in assets if any(part.folders for part in each.parts.values())]
        stamps = self.state.store.stamps(key for asset in with_models for key in self.state.partitions.keys(asset))
        folders = [each.key for each in assets if each.folder]
        folders += [self.state.model_folder(key, stamp) for key, stamp in stamps.items()]
        for folder in sorted({*folders} - {""}):
            for file in changed_records(self.state.store, folder):
                yield (
                    f"{self.state.store.files.address(folder)}/{file} is not what the training wrote. If nobody has "
                    "edited it, it is damaged: put a copy back, or remove it. The model does not depend on it."
                )

    def _untried_models(self) -> list[str]:
        try:
            return untried_models(self.config, self.state.model_digests)
        except GateauError:  # a missing model, which other checks report
            return []

    @cached_property
    def _chat_warnings(self) -> list[str]:
        # Other checks report missing files.
        try:
            return chat_warnings(
                self.config,
                self.state.model_digests,
                {"short_chat": self._first_short_conversations, "long_sft": self._first_long_conversations},
            )
        except GateauError:
            return []

    def _without_cas(self) -> list[str]:
        """Return a sentence if nothing reads CAS and it cannot be computed. `check_models` reports models that cannot
        be read.
        """
        if not self.state.pipeline.makes_cam or reads_attention(self.config):
            return []
        if self.config.scoring.segments == "screened":
            return [
                "scoring.segments is screened, so `cam` has no CAS. The report's presets paper and official use HMP "
                "alone."
            ]
        try:
            return unseen_attention(self.config, self.state.model_digests["long"])
        except GateauError:
            return []
