"""Check the synthetic samples: whether there are any, and what their tables lost."""

from collections.abc import Iterator, Mapping

import polars as pl

from gateau_dagster.errors import GateauError, MissingUpstreamError
from gateau_dagster.features.evaluation.generation.answering import partly_read_answers
from gateau_dagster.features.synthesis import CHECKS_TABLE, PASSAGES_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.candidate_checks import none_accepted, yield_sentence
from gateau_dagster.features.synthesis.config import SECTION, SYNTHETIC_SAMPLES, section_of
from gateau_dagster.features.synthesis.declarations import document_keys, document_number
from gateau_dagster.features.synthesis.passages import DocumentIndex, document_index
from gateau_dagster.features.synthesis.questions import PROMPT_TOKENS
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.losses import DataLoss
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage import Stamp
from gateau_dagster.tables import UNREAD


def documents_of(state: State) -> DocumentIndex:
    """Return the index of the documents of `synthesis`; only files that changed since the last call are read."""
    return state.once(_document_index)


def _document_index(state: State) -> DocumentIndex:
    config = state.config
    return document_index(section_of(config), config.folder, config.work_folder / "cache", state.progress)


def partition_digests(state: State) -> Mapping[str, str]:
    """Return the digest of the documents of each shard, by its partition key."""
    return {key: documents_of(state).digest(number) for number, key in enumerate(document_keys(state.config))}


def check_samples(state: State) -> None:
    """Raise GateauError if long_sft has no sample because no synthetic candidate is accepted."""
    if refused := refused_candidates(state):
        raise GateauError("synthesis.none_accepted", refused)


def warnings(state: State) -> Iterator[str]:
    """Yield a sentence for each loss of documents, and one if long_sft has samples, but no synthetic one."""
    yield from lost_documents(state)
    if state.config.made_inputs and not checks_of(state).awaits_samples and not state.index.accepted.is_empty():
        yield from filter(None, [" ".join(refused_candidates(state).split())])


def refused_candidates(state: State) -> str:
    """Return why no synthetic candidate is accepted; empty if one is, or if their tables are not all made."""
    keys = document_keys(state.config)
    made = state.store.stamps((SYNTHETIC_SAMPLES, key) for key in keys)
    if not keys or any(stamp is None or stamp.rows for stamp in made.values()):
        return ""
    return none_accepted(*refusals(state), partly_read_passages(state))


def refusals(state: State) -> tuple[pl.DataFrame, pl.Series]:
    """Return `reason` and `accepted` of the synthetic candidates, and why the others have no reply."""
    keys = document_keys(state.config)
    checked = state.store.read_all(CHECKS_TABLE, keys, ["reason", "accepted"])
    lost = pl.concat(state.store.read_rejected(asset, keys) for asset in (QUESTIONS_TABLE, CHECKS_TABLE))
    return checked, lost["reason"]


def losses(state: State, asset: str) -> Iterator[DataLoss]:
    """Yield the losses of candidates as the table of the checks shows them.

    These are the yield, if a candidate is refused, and the prompts that were read in part. `asset`: others lose none.
    """
    if asset != CHECKS_TABLE:
        return
    checked, lost = refusals(state)
    if lost.len() or not checked["accepted"].all():
        sentence = yield_sentence(checked, lost)
        yield DataLoss(asset=CHECKS_TABLE, sentence=sentence, notable=not checked["accepted"].any())
    if sentence := partly_read_passages(state):
        yield DataLoss(asset=QUESTIONS_TABLE, sentence=sentence, notable=True)


def partly_read_passages(state: State) -> str:
    """Return a sentence about prompts that the generator read in part; empty without any."""
    keys, columns = document_keys(state.config), ["sample_id", PROMPT_TOKENS.name, UNREAD.name]
    names = {key: [name for name in columns if name in state.store.columns(QUESTIONS_TABLE, key)] for key in keys}
    parts = [state.store.read(QUESTIONS_TABLE, key, present) for key, present in names.items()]
    return partly_read_answers(pl.concat(parts, how="diagonal"), at_least=True)


def lost_documents(state: State) -> list[str]:
    """Return warnings on records of `synthesis.documents` that hold none, and on too few candidates."""
    options = SECTION.of(state.config)
    if options is None:
        return []
    stamps = state.stamps((PASSAGES_TABLE, key) for key in document_keys(state.config))
    made = {
        document_number(str(key)): stamp.rows or 0
        for (_, key), stamp in stamps.items()
        if stamp is not None and _is_current(state, PASSAGES_TABLE, key, stamp)
    }
    return documents_of(state).warnings(options, made)


def _is_current(state: State, key: str, partition: str | None, stamp: Stamp) -> bool:
    try:
        return state.asset(key).is_current(stamp, state.wanted_stamp(key, partition).fingerprint)
    except MissingUpstreamError:
        return False
