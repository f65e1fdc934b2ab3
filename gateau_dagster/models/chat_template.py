"""Try a chat template on conversations before any model runs.

A template is a program that comes with a model, and may loop, or fill the memory. The trial is a separate process,
`python -m gateau_dagster.models.chat_template FOLDER CODE SECONDS`. Nothing else can stop a template at any point and
in any thread. The process reads the data's first records from its input as JSON, and writes a `Trial` as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from gateau_dagster.errors import GateauError, UnscorableSampleError

Record = Mapping[str, Any]
"""A conversation of the data: its `messages`, and its `tools` if there are any, see Sample.conversation."""

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SECONDS = 10.0  # of CPU time; a template takes milliseconds
_SECONDS_FOR_RECORDS = 4.0  # after which no other record is tried
_MOST_TURNS, _MOST_CHARACTERS, _MOST_OF_A_TURN = 50, 100_000, 2_000  # of a tried conversation
_BYTES = 2 << 30  # beyond the memory that the tokenizer uses
_PATIENCE = 600.0  # seconds, because the process may start slowly on a busy machine
_CURE = "Correct the model's chat template, or set scoring.template: gateau."
_SYSTEM, _ASKED, _SAID, _AGAIN, _LAST, _THOUGHT = (
    *("GATEAUSYSTEM", "GATEAUASKED", "GATEAUSAID", "GATEAUAGAIN", "GATEAULAST", "GATEAUTHOUGHT"),
)
_EXCHANGE = [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}]
_TWO = [*_EXCHANGE, {"role": "user", "content": _AGAIN}, {"role": "assistant", "content": _LAST}]
REFUSED, DROPPED, KEPT = "refused", "dropped", "kept"


@dataclass(frozen=True, kw_only=True)
class RecordTrial:
    """The result of a template on the first conversations of the data.

    tried: number of conversations. refused: number of rejected conversations by reason. systems: number with a system
    turn. answers: number of answers to be learned in the other conversations. unlearned: number of them that the
    template rewrites.
    """

    tried: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    systems: int = 0
    answers: int = 0
    unlearned: int = 0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of trying a chat template.

    reason: why it cannot be used at all; empty if it can. change: see chat_rendering.frame_change. ending: the text
    after an answer. ends: its dedicated tokens, as text. behaviour: the result on the conversations of `_behaviour`.
    records: the result on conversations of the data.
    """

    reason: str = ""
    change: tuple[str, str] = ("", "")
    ending: str = ""
    ends: tuple[str, ...] = ()
    behaviour: dict[str, str] = field(default_factory=dict)
    records: RecordTrial = field(default_factory=RecordTrial)

    @property
    def trainable(self) -> bool:
        """Return whether an exchange can be trained: its answer is found, and ends with a dedicated token."""
        return not self.reason and bool(self.ends) and self.behaviour.get("one exchange") == KEPT

    def as_json(self) -> dict[str, Any]:
        """Return the trial as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Trial:
        """Return the trial that `as_json` wrote."""
        return TypeAdapter(cls).validate_python(content)


def try_chat_template(
    folder: Path, place: str, *, trust_remote_code: bool = False, records: Sequence[Record] = ()
) -> Trial:
    """Return the result of trying the chat template of the tokenizer in `folder`.

    Args:
        folder: model folder; its tokenizer is read.
        place: of the model in the configuration, for messages.
        trust_remote_code: whether the tokenizer may be remote code.
        records: some conversations of the data; the beginning of each is tried.

    Raises:
        GateauError: the template cannot be used, or does not end.
    """
    command = [sys.executable, "-m", __name__, str(folder), str(int(trust_remote_code)), str(_SECONDS)]
    try:
        given = json.dumps([_shortened(each) for each in records])
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise GateauError(
            "models.chat_template", f"{place}: the chat template of {folder} could not be tried. {_CURE}"
        ) from error
    if done.returncode == -signal.SIGVTALRM:
        raise GateauError(
            "models.chat_template",
            f"{place}: the chat template of {folder} does not end: it was stopped after {_SECONDS:g} s. {_CURE}",
        )
    if done.returncode != 0 or not done.stdout:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise GateauError(
            "models.chat_template", f"{place}: the chat template of {folder} cannot be tried: {last}. {_CURE}"
        )
    trial = Trial.from_json(json.loads(done.stdout))
    if trial.reason:
        raise GateauError("models.chat_template", f"{place}: {trial.reason}")
    return trial


def _shortened(record: Record) -> dict[str, Any]:
    """Return the beginning of a conversation. The time of a trial grows with the square of the number of turns."""
    kept: list[dict[str, Any]] = []
    for message in record["messages"][:_MOST_TURNS]:
        text = message["content"] if message["role"] == "assistant" else message["content"][:_MOST_OF_A_TURN]
        kept.append({**message, "content": text})
        if len(json.dumps(kept)) > _MOST_CHARACTERS:
            break
    answers = [place for place, message in enumerate(kept, start=1) if message["role"] == "assistant"]
    return {**record, "messages": kept[: answers[-1]] if answers else kept}


def trial_of(tokenizer: PreTrainedTokenizerBase, records: Sequence[Record] = ()) -> Trial:
    """Return the result of trying a tokenizer's chat template in this process; see `try_chat_template`."""
    from gateau_dagster.models.chat_rendering import answer_ending, frame_change
    from gateau_dagster.models.prompt import answer_ends, chat_frame

    try:
        chat_frame(tokenizer, "")
    except GateauError as error:
        return Trial(reason=str(error))
    ends = answer_ends(tokenizer, "chat")
    return Trial(
        change=frame_change(tokenizer),
        ending=answer_ending(tokenizer),
        ends=tuple(str(token) for token in tokenizer.convert_ids_to_tokens(list(ends))),
        behaviour=_behaviour(tokenizer),
        records=_tried_records(tokenizer, records),
    )


def _behaviour(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Describe the template's treatment of each kind of conversation in a word or two."""
    thinking = f"<think>\n{_THOUGHT}\n</think>\n\n{_SAID}"
    told = [_EXCHANGE[0], {"role": "assistant", "content": thinking}]
    plain = _printed(tokenizer, _EXCHANGE)
    empty = _printed(tokenizer, [{"role": "system", "content": ""}, *_EXCHANGE])
    users = [{"role": "user", "content": _AGAIN}, *_EXCHANGE]
    answers = [*_EXCHANGE, {"role": "assistant", "content": _LAST}]
    return {
        "one exchange": _all_kept(tokenizer, _EXCHANGE),
        "system": _of_system(tokenizer, plain),
        "empty system": REFUSED if empty is None else "as none" if empty == plain else "printed",
        "own system": _own_system(tokenizer),
        "two exchanges": _all_kept(tokenizer, _TWO),
        "consecutive user turns": _of_parts(_printed(tokenizer, users), _AGAIN, _ASKED),
        "consecutive answers": _of_parts(_printed(tokenizer, answers), _SAID, _LAST),
        "thoughts of the last answer": _of_parts(_printed(tokenizer, told), _THOUGHT, _SAID),
        "thoughts of earlier answers": _of_parts(_printed(tokenizer, [*told, *_TWO[2:]]), _THOUGHT, _LAST),
    }


def _printed(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, str]]) -> str | None:
    """Return the text that the template prints; None if it refuses."""
    from gateau_dagster.models.chat_rendering import render_chat

    try:
        return str(render_chat(tokenizer, messages, add_generation_prompt=False))
    except Exception:  # it is a program that comes with the model, and may raise anything
        return None


def _of_parts(text: str | None, *parts: str) -> str:
    if text is None:
        return REFUSED
    return KEPT if all(part in text for part in parts) else DROPPED


def _all_kept(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, str]]) -> str:
    from gateau_dagster.models.chat_rendering import rendered_answers

    try:
        _, answers = rendered_answers(tokenizer, messages)
    except UnscorableSampleError:
        return REFUSED
    return KEPT if all(answer.kept for answer in answers) else "earlier answers rewritten"


def _of_system(tokenizer: PreTrainedTokenizerBase, plain: str | None) -> str:
    text = _printed(tokenizer, [{"role": "system", "content": _SYSTEM}, *_EXCHANGE])
    if text is None or _SYSTEM not in text:
        return REFUSED if text is None else DROPPED
    if plain is None or _ASKED not in plain:
        return KEPT
    before = plain.partition(_ASKED)[0]
    return "in the user's turn" if before and text.startswith(before.rstrip()) else KEPT


def _own_system(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return `added` if the template prints its own text before the first turn, but not before the second."""
    text = _printed(tokenizer, _TWO)
    if text is None or not all(part in text for part in (_ASKED, _SAID, _AGAIN)):
        return ""
    first, again = text.partition(_ASKED)[0], text.partition(_SAID)[2].partition(_AGAIN)[0]
    for token in tokenizer.all_special_tokens:
        first, again = first.replace(str(token), ""), again.replace(str(token), "")
    shared = next((size for size in range(min(len(first), len(again)), 0, -1) if first[-size:] == again[-size:]), 0)
    own = first[: len(first) - shared].strip()
    return "added" if len(own.split()) > 1 else ""


def _tried_records(tokenizer: PreTrainedTokenizerBase, records: Sequence[Record]) -> RecordTrial:
    from gateau_dagster.models.chat_rendering import rendered_answers
    from gateau_dagster.models.control_tokens import marked

    refused: Counter[str] = Counter()
    tried = systems = answers = unlearned = 0
    started = time.process_time()
    for record in records:
        if time.process_time() - started > _SECONDS_FOR_RECORDS:
            break
        tried += 1
        flags = [message.get("trained", True) for message in record["messages"]]
        messages = [{key: each for key, each in message.items() if key != "trained"} for message in record["messages"]]
        systems += messages[0]["role"] == "system"
        try:
            turns, tools = marked(tokenizer, messages), marked(tokenizer, record.get("tools", ()))
            _, found = rendered_answers(tokenizer, turns, tools=tools, trained=flags)
        except UnscorableSampleError as error:
            refused[str(error)] += 1
            continue
        answers += sum(flags[answer.turn] for answer in found)
        unlearned += sum(not answer.kept for answer in found)
    return RecordTrial(tried=tried, refused=dict(refused), systems=systems, answers=answers, unlearned=unlearned)


def _tried_in_folder(folder: str, *, trust_remote_code: bool, seconds: float) -> Trial:
    import psutil

    from gateau_dagster.models.prompt import open_tokenizer  # before the time limit starts

    tokenizer: Any = open_tokenizer(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    records = json.loads(sys.stdin.read() or "[]")
    # Render once before the limit, so that the library's own imports and compilation do not count.
    tokenizer.apply_chat_template([{"role": "user", "content": ""}], chat_template="{{ messages }}", tokenize=False)
    # The process may still allocate _BYTES, and compute for `seconds` of CPU time.
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = psutil.Process().memory_info().vms + _BYTES
    resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    return trial_of(tokenizer, records)


if __name__ == "__main__":
    answer = os.dup(1)
    os.dup2(2, 1)  # keep the output of libraries apart from the JSON
    name, code, limit = sys.argv[1:]
    found = _tried_in_folder(name, trust_remote_code=code == "1", seconds=float(limit))
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        json.dump(found.as_json(), stream)
