"""Check the models' files before any of them is loaded."""

# What it costs: opening a model's files imports transformers, which takes seconds, and many commands make a plan. So
# results are remembered in the work folder, by a digest of all that they depend on. A model that passed is not opened
# again.
#
# What it cannot tell: whether the weights of a hub model are intact before they are downloaded. The step that loads the
# model finds that.

from __future__ import annotations

import filecmp
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gateau_dagster.config.made_models import stage_training
from gateau_dagster.config.training import WEIGHING
from gateau_dagster.data.input_index import InputIndex
from gateau_dagster.data.sample import Sample, spelled_control_tokens, text_digest
from gateau_dagster.data.sources import FILE_DIGESTS, SourceFile, content_signature
from gateau_dagster.errors import GateauError, error_at, gateau_command
from gateau_dagster.models.chat_template import DROPPED, REFUSED, Record, RecordTrial, Trial, try_chat_template
from gateau_dagster.models.control_tokens import KnownTokenizer, any_of, backend_of, control_tokens, inseparable
from gateau_dagster.models.model_config import ATTENTION_CURE, class_of, unseen_by_class
from gateau_dagster.models.model_digest import check_downloadable
from gateau_dagster.models.model_facts import MODEL_CHECKS, ModelFacts, facts_in, facts_of, local_facts
from gateau_dagster.models.model_rules import FILE_RULES, Asked, Rule, Service
from gateau_dagster.models.prompt import answer_ends, encode
from gateau_dagster.pipeline.recipes import recipes, trims_contexts, weighs_responses
from gateau_dagster.readable import listed, percentage, plural
from gateau_dagster.storage.local import recall, remember
from gateau_dagster.training.deepspeed_config import agreed_deepspeed_config
from gateau_dagster.training.readiness import check_architecture, check_sharding

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.config import Config, TrainingConfig
    from gateau_dagster.config.variants import OtherModel

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
# Version of the checks: raise it when they check more, since a model that passed is not checked again.
_EDITION = "5"
# The settings that `check_architecture` reads.
_OF_ROWS = {"batching", "batch_size", "chunked_loss", "max_length", "sequence_parallel", "skip", "tiled_mlp"}
_TRIAL_EDITION = "1"  # of the trials of chat templates: raise it when a trial of the same template has another result
_SMALL_FILES = ["config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"]
_SMALL_FILES += ["*.jinja", "vocab*", "merges*"]
_TOKENIZER_SUFFIXES = {".json", ".jinja", ".txt", ".model", ".tiktoken", ".vocab"}
_NOT_OF_TOKENIZERS = {"config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors.index.json"}
_MOST_REASONS = 3
_LOOKED_AT = 20_000  # characters of a context
# Why a template cannot be used, by cache, place and tokenizer. Only for this process: a library may be missing.
_REFUSALS: dict[tuple[str, str, str], str] = {}


def check_folder(config: Config, name: str, digest: str, *, scores: bool = False) -> None:
    """Check that a model can be read on this machine, and that its chat template can be used if it makes the prompts.

    Args:
        config: names the model; of a model that the pipeline makes, its origin is checked instead.
        name: its key in `models`.
        digest: its `model_digest`; a model that passed under this digest is not checked again.
        scores: whether it computes rows that are required, and so must have positions for the longest prompt.

    Raises:
        GateauError: a file is missing or damaged, the model cannot serve, or its chat template fails or does not end.
    """
    facts = _facts_here(config, name, digest)
    if facts.folder is None:
        if digest.startswith("hub:"):
            check_downloadable(config.models[name], place=f"models.{name}")
        return
    model = config.models[name]
    scoring = config.scoring if scores else None
    service = Service(section=model, scoring=scoring, whole=digest.startswith("folder:"))
    _ask(config, FILE_RULES, facts, service, place=f"models.{name}.path", digest=digest)
    if config.scoring.template == "chat" and model.task == "causal":
        chat_trial(config, name, digest)


def chat_trial(config: Config, name: str, digest: str, records: Sequence[Record] = ()) -> Trial | None:
    """Try the chat template of a model, also with `records`; return None if its tokenizer is not available.

    A missing tokenizer on the hub is downloaded, so that its template is known before scoring. The result for the
    tokenizer's files is remembered, so that a pair that shares them needs one trial.

    Raises:
        GateauError: the template cannot be used.
    """
    if digest.startswith("hub:") and _is_to_be_fetched(config, name):
        fetch_tokenizer(config, name)
    facts = _facts_here(config, name, digest)
    if not facts.has_any(*_TOKENIZER_FILES):
        return None
    return _remembered_trial(config, facts, f"models.{name}.path", digest, records)


def is_untried(config: Config, name: str, digest: str) -> bool:
    """Return whether the chat template of a model whose tokenizer is here has not been tried yet by `chat_trial`."""
    facts = _facts_here(config, name, digest)
    return facts.has_any(*_TOKENIZER_FILES) and recall(_memory(config), _trial_key(config, facts, digest)) is None


def _facts_here(config: Config, name: str, digest: str) -> ModelFacts:
    """Return the facts of a model's files; without a folder if they are not here, or the pipeline makes the model."""
    if digest.startswith(("folder:", "hub:")):
        return local_facts(config, name)
    return facts_in(None, path=config.models[name].path, remote_code=False)


def _remembered_trial(config: Config, facts: ModelFacts, place: str, digest: str, records: Sequence[Record]) -> Trial:
    """Return the trial of a template, recalled if known. `digest`: the model's, used if its code makes the tokenizer.

    A template that does not end, or fails, with `records` is tried without them: the data may be the cause.
    """
    shown = text_digest([json.dumps(records)]) if records else ""
    cache, key = _memory(config), _trial_key(config, facts, digest)
    known = recall(cache, key + shown)
    if isinstance(known, dict):
        return Trial.from_json(known)
    refusal = str(cache), place, key
    if refusal in _REFUSALS:
        raise GateauError("models.architecture", _REFUSALS[refusal])
    try:
        found = try_chat_template(facts.file(""), place, trust_remote_code=facts.remote_code, records=records)
    except GateauError as error:
        if not records:
            _REFUSALS[refusal] = str(error)
            raise
        found = _remembered_trial(config, facts, place, digest, ())
    for of_records, each in {"": replace(found, records=RecordTrial()), shown: found}.items():
        remember(cache, key + of_records, each.as_json())
    return found


def _memory(config: Config) -> Path:
    return config.work_folder / "cache" / MODEL_CHECKS


def _trial_key(config: Config, facts: ModelFacts, digest: str) -> str:
    what = f"with remote code {digest}" if facts.remote_code else _tokenizer_digest(config, facts)
    return f"{_TRIAL_EDITION} chat trial {what} "


def _tokenizer_digest(config: Config, facts: ModelFacts) -> str:
    """Return a digest of everything that a tokenizer and its chat template are made from."""
    files = [
        SourceFile(address=str(file), size=status.st_size, stamp=str(status.st_mtime_ns))
        for file in sorted([*facts.files("*"), *facts.files("additional_chat_templates/*")])
        if file.suffix in _TOKENIZER_SUFFIXES and file.name not in _NOT_OF_TOKENIZERS and file.is_file()
        for status in [file.stat()]
    ]
    content = content_signature(files, config.work_folder / "cache" / FILE_DIGESTS)
    model, tokenizer = (facts.settings(name) for name in ("config.json", "tokenizer_config.json"))
    kinds = [str(model.get(key)) for key in ("model_type", "tokenizer_class")]
    # The models of a pair differ in their maximum length, which does not affect a template.
    others = [f"{key} {tokenizer[key]}" for key in sorted(tokenizer) if key != "model_max_length"]
    return text_digest([content, *kinds, *others])


def answer_frames(
    config: Config, digests: Mapping[str, str], other_digests: Mapping[str, str], template: str | None
) -> dict[str, Any]:
    """Return each model's changes of the chat template before an answer, from chat_rendering.frame_change.

    Only models whose prompts are made by their templates are tried. An unusable template changes nothing here, because
    `check_folder` rejects it.

    Args:
        config: names the models.
        digests: of the configured models.
        other_digests: of those of `variants.also`, by variant.
        template: the form in which models answer; None: the default.
    """
    names = {name for name, model in config.models.items() if model.task == "causal" and model.base is None}
    if config.scoring.template != "chat":
        trained = config.origin(config.training.model) if config.models else ""
        names &= {trained} if template == "chat" else set()
    found: dict[str, Any] = {}
    for name in sorted(names):
        with suppress(GateauError):
            if (trial := chat_trial(config, name, digests[name])) is not None:
                found[name] = trial.change
    for name, other in config.other_models.items():
        facts, digest = _facts_of_other(config, other), other_digests[name]
        if (template or "chat") == "chat" and facts.folder is not None:
            with suppress(GateauError):
                trial = _remembered_trial(config, facts, f"variants.also.{name}.path", digest, ())
                found[f"variants.also.{name}"] = trial.change
    return {name: change for name, change in found.items() if any(change)}


def fetch_tokenizer(config: Config, name: str) -> None:
    """Fetch the tokenizer of a hub model, a few megabytes; do nothing if it cannot be fetched."""
    from httpx2 import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    model = config.models[name]
    with suppress(HTTPError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError):
        snapshot_download(model.path, revision=model.revision, allow_patterns=_SMALL_FILES, etag_timeout=3.0)


def check_answer_end(config: Config, digests: Mapping[str, str]) -> None:
    """Check that the trained model can learn where an answer ends.

    Raises:
        GateauError: its chat template, or with `scoring.template: gateau` its tokenizer, gives no token for it.
    """
    if not config.training.enabled or not config.models:
        return
    name = config.origin(config.training.model)
    if config.scoring.template == "chat":
        trial = chat_trial(config, name, digests[name])
        if trial is not None:
            require_end(trial.ends, config, ending=trial.ending)
    else:
        _once(config, f"end {digests[name]}", lambda: _check_eos(config, name))


def _check_eos(config: Config, name: str) -> bool:
    tokenizer = local_facts(config, name).tokenizer
    if tokenizer is not None:
        require_end(answer_ends(tokenizer, "gateau"), config)
    return tokenizer is not None


def require_end(ends: Sequence[object], config: Config, *, ending: str = "") -> None:
    """Raise GateauError if no token `ends` an answer of the trained model, but only a text `ending`."""
    if ends:
        return
    name = config.origin(config.training.model)
    if config.scoring.template == "chat":
        prints = f"{ending.strip()!r} after an answer, which is not one token" if ending.strip() else ""
        what = f"the chat template of models.{name} prints {prints or 'nothing after an answer'}"
        wanted = "a token after it, such as {{ eos_token }}"
        cure = "add the token to the template in chat_template.jinja, and to the tokenizer if that does not know it"
    else:
        what, wanted = f"the tokenizer of models.{name} has no eos_token", "a token that ends an answer"
        cure = "name one of its tokens as eos_token in tokenizer_config.json"
    raise GateauError(
        "models.no_end",
        f"training.model: {what}, so the trained model would never learn to stop. Expected {wanted}. To keep all "
        f"scores, copy the model's folder and {cure}. Then add the copy to `models` and name it as training.model.",
    )


def chat_warnings(
    config: Config,
    digests: Mapping[str, str],
    conversations: Mapping[str, Callable[[], Sequence[Record]]],
) -> list[str]:
    """Return a sentence or two about each chat template, for users to read before any model runs.

    Args:
        config: with `scoring.template`.
        digests: of the configured models.
        conversations: by section, a function that returns its first ones; called only if they are trained on.
    """
    if config.scoring.template != "chat":
        return []
    trained = config.origin(config.training.model) if config.training.enabled else None
    names = [name for name, model in config.models.items() if model.task == "causal" and model.base is None]
    trials: dict[str, dict[str, Trial]] = {}
    # Try the model with the records first: another model with the same tokenizer then needs no separate trial.
    for name in sorted(names, key=lambda name: name != trained):
        with suppress(GateauError):  # `check_folder` gives the reason
            given = {section: first() for section, first in conversations.items()} if name == trained else {}
            for section, records in ({section: each for section, each in given.items() if each} or {"": ()}).items():
                if (trial := chat_trial(config, name, digests[name], records)) is not None:
                    trials.setdefault(name, {})[section] = trial
    return [
        f"models.{name}: {sentence}"
        for name in names
        for sentence in _sentences(trials.get(name, {}), trained=name == trained)
    ]


def _sentences(trials: Mapping[str, Trial], *, trained: bool) -> Iterator[str]:
    """Yield sentences about a template: on answers, and on the conversations of each section."""
    for trial in [*trials.values()][:1]:
        yield from _sentences_on_answers(trial, trained=trained)
    for section, trial in trials.items():
        yield from _sentences_on_records(trial, section)


def _sentences_on_answers(trial: Trial, *, trained: bool) -> Iterator[str]:
    asked, added = trial.change
    if asked.strip() or added.strip():
        kinds = "scored, trained and evaluated" if trained else "scored"
        instead = f" in place of {asked!r}, which it prints to ask for one" if asked.strip() else ""
        yield (
            f"its chat template puts {added!r} before a finished answer{instead}. Answers are {kinds} after this "
            "text, which has no loss"
        )


def _sentences_on_records(trial: Trial, section: str) -> Iterator[str]:
    records = trial.records
    for reason, count in sorted(records.refused.items(), key=lambda each: -each[1])[:_MOST_REASONS]:
        yield (
            f"{_share(count, records.tried, 'conversation')} of {section} will be rejected: {reason.rstrip('.')}. The "
            "others are trained on; the scores do not change"
        )
    if records.unlearned:
        cure = ". long_sft.turns: each trains each answer in a separate sample" if section == "long_sft" else ""
        yield (
            f"its chat template rewrites earlier turns. {_share(records.unlearned, records.answers, 'answer')} of "
            f"{section} stay in the text without loss, and each conversation's last answer is learned{cure}"
        )
    system = trial.behaviour.get("system")
    if records.systems and system in {REFUSED, DROPPED}:
        verb = "refuses" if system == REFUSED else "leaves out"
        yield (
            f"its chat template {verb} system turns. In {_share(records.systems, records.tried, 'conversation')} of "
            f"{section} the system text is put before the first user turn"
        )


def _share(count: int, tried: int, noun: str) -> str:
    return f"{count:,} of the first {plural(tried, noun)} ({percentage(count / max(1, tried))})"


def check_others(config: Config) -> None:
    """Check that the models of `variants.also` that are here are complete and causal.

    Raises:
        GateauError: a model is not.
    """
    for name, other in config.other_models.items():
        facts = _facts_of_other(config, other)
        if facts.folder is not None:
            service = Service(section=other.model, scoring=None, whole=True)
            _ask(config, FILE_RULES, facts, service, place=f"variants.also.{name}.path")


def _facts_of_other(config: Config, other: OtherModel) -> ModelFacts:
    folder = config.folder / Path(other.path).expanduser()
    here = folder if folder.is_dir() else None
    return facts_in(here, path=other.path, remote_code=other.trust_remote_code)


def check_trained_models(config: Config, digests: Mapping[str, str]) -> None:
    """Check that each model that is trained can be trained on the planned rows, before anything is scored.

    `digests`: of the models. A model that passed is not tried again.

    Raises:
        GateauError: its architecture, or the settings of DeepSpeed, do not allow it.
    """
    for name, training in _trainings(config).items():
        if training.sequence_parallel > 1:
            check_sharding(agreed_deepspeed_config(training, folder=config.folder))
        _ask(config, _TRAINING_RULES, local_facts(config, name), training, digest=digests[name])


def untried_models(config: Config, digests: Mapping[str, str]) -> list[str]:
    """Return a sentence for each trained model whose architecture `check_trained_models` could not try."""
    keys = {name: _ROWS.key(training, digests[name]) for name, training in _trainings(config).items()}
    return [
        f"models.{name}: whether it can be trained on the planned rows is known only when its training starts: {reason}"
        for name, key in keys.items()
        if (reason := recall(_memory(config), f"{_EDITION} {key}"))
    ]


def _trainings(config: Config) -> dict[str, TrainingConfig]:
    found = {name: stage_training(config.models[name], config.training) for name in config.made_models}
    return found | ({config.training.model: config.training} if config.training.enabled else {})


def _check_rows(facts: ModelFacts, training: TrainingConfig) -> str | bool:
    """Try the model's architecture; return why it cannot be tried, or False if its configuration is not here yet."""
    if facts.config is None:
        return False
    return check_architecture(facts.config, training, name=facts.path) or ""


def _check_adapters(facts: ModelFacts, training: TrainingConfig) -> bool:
    """Check the names of the layers with adapters; return False if the model's configuration is not here yet."""
    from gateau_dagster.training.model import check_adapters

    if facts.config is not None and training.lora is not None:
        check_adapters(facts.config, training.lora.modules)
    return facts.config is not None


_ROWS: Rule[TrainingConfig] = Rule(
    name="rows",
    check=_check_rows,
    applies=lambda training: training.side_by_side or isinstance(training.tiled_mlp, int),
    reads=lambda training: training.model_dump_json(include=_OF_ROWS),
)
_TRAINING_RULES = (
    _ROWS,
    Rule(
        name="adapters",
        check=_check_adapters,
        applies=lambda training: training.lora is not None and training.lora.modules != "all-linear",
        reads=lambda training: training.model_dump_json(include={"lora": {"modules"}}),
    ),
)


def lost_first_tokens(config: Config) -> list[str]:
    """Return a sentence for each folder whose tokenizer does not know the token that the model's texts begin with.

    Many models have no such token; it is lost if the file that declares it is missing.
    """
    found = ((name, config.folder / Path(model.path).expanduser()) for name, model in config.models.items())
    return [
        f"models.{name}.path: {folder} has no {_TOKENIZER_FILES[1]}. Without it, texts lack the <bos> that "
        "config.json names, and the model was not trained on such texts. Copy the file from the source of the "
        "weights, unless you intend this."
        for name, folder in found
        if folder.is_dir() and not (folder / _TOKENIZER_FILES[1]).is_file() and _lacks_bos(config, name)
    ]


def unknown_chat_templates(config: Config) -> list[str]:
    """Return a sentence for each hub model whose tokenizer is not here, if prompts are made by chat templates.

    Only the first step that loads the model finds out whether it has one, possibly hours into the run.
    """
    if config.scoring.template != "chat":
        return []
    return [
        f"models.{name}.path: the tokenizer of {model.path} is not on this machine yet. scoring.template: chat needs "
        "its chat template, and only a run will find it missing. To check it now, run `hf download "
        f"{model.path}{'' if model.revision is None else f' --revision {model.revision}'} --include '*.json' "
        f"--include 'tokenizer*' --include '*.jinja'`, then `{gateau_command('validate')}`"
        for name, model in config.models.items()
        if model.task == "causal" and model.base is None and _is_to_be_fetched(config, name)
    ]


def control_token_warnings(
    config: Config,
    digests: Mapping[str, str],
    index: InputIndex,
    chats: Mapping[tuple[str, ...], int],
    read: Callable[[], Iterable[Sample]],
) -> list[str]:
    """Return a sentence for each vocabulary and input whose texts spell its control tokens: they are read as text.

    Args:
        config: names the models; those whose tokenizer is not on this machine are left out.
        digests: of the models.
        index: of the long samples.
        chats: short conversations by the control tokens that they spell.
        read: yields all long samples, to look for control tokens that no known family of models has.
    """
    models: dict[tuple[str, ...], list[str]] = {}
    for name, digest in digests.items():
        if tokens := _control_tokens_of(config, name, digest):
            models.setdefault(tuple(tokens), []).append(name)
    samples = dict(index.accepted.select("sample_id", "control_tokens").iter_rows())
    unusual = sorted({each for tokens in models for each in tokens if spelled_control_tokens([each]) != [each]})
    for sample_id, tokens in _unusual_tokens(config, index, unusual, read).items():
        samples[sample_id] = [*samples[sample_id], *tokens]
    warnings: list[str] = []
    for tokens, names in models.items():
        of_samples = {sample_id: both for sample_id, each in samples.items() if (both := {*tokens} & {*each})}
        of_chats = sum(count for each, count in chats.items() if {*tokens} & {*each})
        of = f"control tokens of {listed([f'models.{name}' for name in names])}"
        if of_samples:
            first = min(of_samples)
            warnings.append(
                f"long_sft.path: {len(of_samples):,} of {plural(len(samples), 'sample')} "
                f"spell{'s' * (len(of_samples) == 1)} {of}, as {first} has {min(of_samples[first])!r}. "
                "They are read as text"
            )
        if of_chats:
            warnings.append(
                f"short_chat.path: {plural(of_chats, 'conversation')} spell{'s' * (of_chats == 1)} {of}. "
                "They are read as text"
            )
        spelled = {*tokens} & {each for both in (*of_samples.values(), *chats) for each in both}
        for name in names if spelled else ():
            if lost := _inseparable_of(config, name, digests[name], sorted(spelled)):
                shown = listed([repr(each) for each in lost])
                warnings.append(
                    f"models.{name}: the tokenizer has no tokens to read {shown} as text: it "
                    "reads the unknown token or the control token. Remove them from the data, or use a model with a "
                    "tokenizer.json that spells them"
                )
    return warnings


def _control_tokens_of(config: Config, name: str, digest: str) -> list[str]:
    return _of_tokenizer(config, name, digest, "control tokens", lambda used: [*control_tokens(used)])


def _inseparable_of(config: Config, name: str, digest: str, spelled: Sequence[str]) -> list[str]:
    what = f"read as text {text_digest(spelled)}"
    return _of_tokenizer(config, name, digest, what, lambda used: [*inseparable(used, spelled)])


def _of_tokenizer(
    config: Config, name: str, digest: str, what: str, find: Callable[[PreTrainedTokenizerBase], list[str]]
) -> list[str]:
    facts = _facts_here(config, name, digest)
    if not facts.has_any(*_TOKENIZER_FILES):
        return []
    key = f"{what} {_trial_key(config, facts, digest)}"
    known = recall(_memory(config), key)
    if not isinstance(known, list):
        if facts.tokenizer is None:
            return []
        known = find(facts.tokenizer)
        remember(_memory(config), key, known)
    return known


def known_tokenizer(config: Config, name: str) -> PreTrainedTokenizerBase | None:
    """Return a model's tokenizer for texts of the data, a `KnownTokenizer` from the second time on; None without it."""
    facts = local_facts(config, name)
    if facts.remote_code or not facts.has_any(*_TOKENIZER_FILES):  # code is not in the key
        return facts.tokenizer
    key = text_digest([_tokenizer_digest(config, facts), version("transformers"), version("tokenizers")])
    cache = config.work_folder / "cache" / f"tokenizer-{key[:16]}.json"
    known: Any = recall(cache, key)

    def open_itself() -> PreTrainedTokenizerBase:
        assert facts.tokenizer is not None, "it was opened before"
        return facts.tokenizer

    if isinstance(known, dict):
        return cast("Any", KnownTokenizer(known["control"], known["backend"], open_itself))
    found = facts.tokenizer
    if found is not None and (backend := backend_of(found)) is not None:
        remember(cache, key, {"control": control_tokens(found), "backend": backend})
    return found


def _unusual_tokens(
    config: Config, index: InputIndex, tokens: Sequence[str], read: Callable[[], Iterable[Sample]]
) -> dict[str, list[str]]:
    """Return the control tokens among `tokens` that each sample spells; remembered, since all texts are read."""
    if not tokens:
        return {}
    key = f"control tokens of no known family {text_digest([index.signature, *tokens])}"
    known = recall(_memory(config), key)
    if not isinstance(known, dict):
        pattern, known = any_of(tokens), dict[str, list[str]]()
        for sample in read():
            texts = (sample.context, sample.instruction, sample.response, sample.conversation)
            if spelled := sorted({each for text in texts for each in pattern.findall(text)}):
                known[sample.sample_id] = spelled
        remember(_memory(config), key, known)
    return known


def _is_to_be_fetched(config: Config, name: str) -> bool:
    """Return whether a model's tokenizer is on the hub and not in its cache."""
    if "://" in config.models[name].path:
        return False
    return not local_facts(config, name).has_any(*_TOKENIZER_FILES)


def _lacks_bos(config: Config, name: str) -> bool:
    facts = local_facts(config, name)
    first = None if facts.config is None else getattr(facts.config.get_text_config(decoder=True), "bos_token_id", None)
    return facts.tokenizer is not None and facts.tokenizer.bos_token_id is None and isinstance(first, int)


def characters_a_token(config: Config, samples: Sequence[Sample]) -> float | None:
    """Return the characters per token of these contexts for theta_A's tokenizer; None without tokenizer or text."""
    facts, texts = local_facts(config, "short"), [sample.context[:_LOOKED_AT] for sample in samples if sample.context]
    if facts.folder is None or not texts:
        return None
    key = f"characters a token {text_digest([_tokenizer_digest(config, facts), version('transformers'), *texts])}"
    found = None if facts.remote_code else recall(_memory(config), key)
    if not isinstance(found, float):
        if facts.tokenizer is None:
            return None
        tokens = sum(len(encode(facts.tokenizer, text)) for text in texts)
        found = sum(map(len, texts)) / max(1, tokens)
        if not facts.remote_code:  # whose code is not in the key
            remember(_memory(config), key, found)
    return found


def check_attention(config: Config, name: str, digest: str) -> None:
    """Check that a model returns the attention that a method or preset reads, as far as its class tells.

    `digest`: of the model.

    Raises:
        GateauError: the model does not return attention.
    """
    reason = attention_unseen(config, name, digest)
    if reason is not None:
        raise GateauError(
            "models.no_attention",
            f"models.{name}.path: {config.models[name].path} ({reason}) gives no attention weights, which the preset "
            f"or a method reads. {ATTENTION_CURE}",
        )


def unseen_attention(config: Config, digest: str) -> list[str]:
    """Return a sentence if theta_B returns no attention and nothing reads it. `digest`: of theta_B."""
    reason = attention_unseen(config, "long", digest)
    if reason is None:
        return []
    return [
        f"models.long: {config.models['long'].path} ({reason}) gives no attention weights. `cam` has no segment "
        "attention and no CAS, and the report's presets paper and official use HMP alone. Preset "
        f"{config.selection.preset} and the configured methods do not read them."
    ]


def attention_unseen(config: Config, name: str, digest: str) -> str | None:
    """Return class and reason if a model returns no attention; None if unknown or not here. `digest`: of the model."""
    return _once(config, f"attention {digest}", lambda: _unseen(facts_of(config, name))) or None


def _unseen(facts: ModelFacts) -> str | bool:
    """Return class and reason if a model returns no attention, else an empty text; False if its class is not known."""
    kind = None if facts.config is None else class_of(facts.config)
    if facts.config is None or kind is None:
        return False
    reason = unseen_by_class(kind, facts.config)
    return "" if reason is None else f"{kind.__name__}: {reason}"


def check_pair(config: Config, digests: Mapping[str, str], texts: Callable[[], Sequence[str]]) -> None:
    """Check that theta_A and theta_B tokenise responses alike, since GATEAU compares perplexities per token.

    `texts`: some responses of the data; called once for a pair whose tokenizer files differ.

    Raises:
        GateauError: the two tokenise responses differently.
    """
    origins = {config.origin(name) for name in ("short", "long")}
    if len(origins) == 2 and not _same_files(config, origins):
        _once(config, f"pair {digests['short']} {digests['long']}", lambda: _compare(config, texts))
    trained = config.origin(config.training.model)
    if not config.training.enabled or trained in origins:
        return
    for each in recipes(config):
        weighs = weighs_responses(each.config)
        if weighs or trims_contexts(each.config):
            compare = partial(_compare_trained, config, trained, texts, each.config.training.loss if weighs else None)
            _once(config, f"trained {digests[trained]} {digests['long']}", compare)


def _same_files(config: Config, models: set[str]) -> bool:
    first, second = (local_facts(config, name) for name in models)
    return all(
        first.has_any(name) and second.has_any(name) and filecmp.cmp(first.file(name), second.file(name), False)
        for name in _TOKENIZER_FILES
    )


def _compare(config: Config, texts: Callable[[], Sequence[str]]) -> bool:
    """Compare the pair's tokens; return False where a tokenizer is not on this machine yet."""
    first, second = (local_facts(config, name).tokenizer for name in ("short", "long"))
    if first is None or second is None:
        return False
    for text in texts():
        counts = [len(encode(each, text)) for each in (first, second)]
        if counts[0] != counts[1]:
            raise GateauError(
                "models.not_homologous",
                f"models.short and models.long tokenise differently: the response {text[:40]!r} has {counts[0]} and "
                f"{counts[1]} tokens. Their perplexities per token cannot be compared. Name two models of one family.",
            )
    return True


def _compare_trained(config: Config, trained: str, texts: Callable[[], Sequence[str]], loss: str | None) -> bool:
    """Check that the trained model has theta_B's tokens, which `loss` weighs, or None: training.trim cuts. Otherwise as
    `_compare`.

    The mix is compared again, token by token, when it is made.
    """
    first, second = (local_facts(config, name).tokenizer for name in (trained, "long"))
    if first is None or second is None:
        return False
    for text in texts():
        ids = [encode(each, text) for each in (first, second)]
        if ids[0] != ids[1]:
            setting, cure = (
                ("training.trim", "trim: false") if loss is None else (f"training.loss: {loss}", "loss: token")
            )
            raise GateauError(
                "training.trim" if loss is None else WEIGHING[loss],
                f"{setting} reads the tokens of models.long, but training.model ({trained}) tokenises the response "
                f"{text[:40]!r} differently. Train a model of the pair's family, or set {cure}.",
            )
    return True


def _ask(
    config: Config, rules: Sequence[Rule[Asked]], facts: ModelFacts, asked: Asked, *, digest: str = "", place: str = ""
) -> None:
    """Ask the rules that apply. A rule with a name is not asked again of a model that passed under this digest."""
    for rule in rules:
        if rule.applies(asked):
            with error_at(place) if place else nullcontext():
                check = partial(rule.check, facts, asked)
                if rule.name and digest:
                    _once(config, rule.key(asked, digest), check)
                else:
                    check()


def _once(config: Config, what: str, check: Callable[[], bool | str | None]) -> str | None:
    """Return the remark of a check that a model passed, remembered; None if the check returned False."""
    # A failure is not remembered: its reason may be a library that is missing in this process only.
    cache, key = _memory(config), f"{_EDITION} {what}"
    remark = recall(cache, key)
    if not isinstance(remark, str):
        passed = check()
        if passed is False:
            return None
        remark = passed if isinstance(passed, str) else ""
        remember(cache, key, remark)
    return remark
