"""The training mix: selected long samples and short conversations, tokenised and in training order."""

from collections.abc import Iterator

import polars as pl
from transformers import PreTrainedTokenizerBase

from gateau_dagster.config.models import Template
from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError, UnscorableSampleError
from gateau_dagster.progress import Progress
from gateau_dagster.tables import REJECTED, TRAINING_MIX, schema
from gateau_dagster.training.encode import Encoded, encode_conversation, encode_long
from gateau_dagster.training.order import mix_order

_SAMPLE_FIELDS = ("sample_id", "source", "context", "instruction", "response")


def build_training_mix(
    selected: pl.DataFrame,
    short: pl.DataFrame | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    training: TrainingConfig,
    template: Template,
    progress: Progress,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tokenise and shuffle. The order depends on `training.seed` and the ids only.

    Args:
        selected: `tables.SELECTED_SUBSET`.
        short: `tables.SHORT_CHAT_MIX`, or None for long samples alone.
        tokenizer: of the model that is trained.
        training: gives `max_length` (contexts are cut on the left, conversations on the right) and `seed`.
        template: as in scoring, `gateau` or `chat`.
        progress: in samples.

    Returns:
        The mix (`tables.TRAINING_MIX`) and the rejected samples (`tables.REJECTED`).

    Raises:
        GateauError: no sequence is left, or the tokenizer has no usable chat template.
    """
    total = selected.height + (0 if short is None else short.height)
    keys: list[tuple[str, str]] = []
    sequences: list[Encoded] = []
    rejected: list[Reject] = []
    for origin, sample_id, encoded in _encode_all(selected, short, tokenizer, training=training, template=template):
        if isinstance(encoded, Reject):
            rejected.append(encoded)
        else:
            keys.append((origin, sample_id))
            sequences.append(encoded)
        progress(len(keys) + len(rejected), total, "samples")
    if not sequences:
        reasons = "; ".join(sorted({reject.reason for reject in rejected})[:3]) or "there are no samples"
        raise GateauError(
            f"the training mix is empty ({reasons}). Raise training.max_length, select more samples or add short_chat."
        )
    table = pl.DataFrame([(reject.sample_id, reject.reason) for reject in rejected], schema(REJECTED), orient="row")
    return _mix_table(keys, sequences, mix_order(keys, training.seed)), table


def _encode_all(
    selected: pl.DataFrame,
    short: pl.DataFrame | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    training: TrainingConfig,
    template: Template,
) -> Iterator[tuple[str, str, Encoded | Reject]]:
    """(origin, sample_id, sequence or why there is none), the long samples first."""
    for row in selected.iter_rows(named=True):
        try:
            sample = Sample(**{name: row[name] for name in _SAMPLE_FIELDS})
            encoded = encode_long(tokenizer, sample, template=template, max_length=training.max_length)
            yield "long", row["sample_id"], encoded
        except UnscorableSampleError as error:
            yield "long", row["sample_id"], Reject(sample_id=row["sample_id"], reason=str(error))
    for row in () if short is None else short.iter_rows(named=True):
        try:
            messages = row["messages"]
            encoded = encode_conversation(tokenizer, messages, template=template, max_length=training.max_length)
            yield "short", row["sample_id"], encoded
        except UnscorableSampleError as error:
            yield "short", row["sample_id"], Reject(sample_id=row["sample_id"], reason=str(error))


def _mix_table(keys: list[tuple[str, str]], sequences: list[Encoded], order: list[int]) -> pl.DataFrame:
    columns = {
        "position": range(len(order)),
        "sample_id": [keys[index][1] for index in order],
        "origin": [keys[index][0] for index in order],
        "input_ids": [sequences[index].input_ids for index in order],
        "labels": [sequences[index].labels for index in order],
        "truncated_tokens": [sequences[index].truncated_tokens for index in order],
    }
    return pl.DataFrame(columns, schema=schema(TRAINING_MIX))
