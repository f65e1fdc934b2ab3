"""Read the forms of records and files that hold more than one question and its answer."""

from collections.abc import Iterator, Sequence
from typing import Any

from gateau_dagster.config.inputs import Turns
from gateau_dagster.data.conversation import SampleParts
from gateau_dagster.data.record_fields import Fields
from gateau_dagster.data.sample import Turn
from gateau_dagster.features.traces.sessions import session_of as open_file
from gateau_dagster.features.traces.traces import Trace

__all__ = ["open_file", "read_conversation"]


def read_conversation(
    turns: Sequence[Turn], tools: Sequence[Any], fields: Fields, how: Turns
) -> tuple[str, Iterator[SampleParts]]:
    """Return an id from the content of a conversation, and the texts of its samples; see `Trace`.

    Raises:
        InvalidRecordError: the conversation gives no sample.
    """
    trace = Trace(turns, tools, fields)
    return trace.content_id, trace.parts(how)
