"""Each fault of a generator's server has one line, and loses neither a candidate nor a reply that is paid for."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.assets.judge import JudgeResource
from gateau_dagster.features.evaluation.judging.replies import Replies
from gateau_dagster.features.synthesis.config import GeneratorConfig
from gateau_dagster.features.synthesis.passages import candidates
from gateau_dagster.features.synthesis.questions import MOST_LETTERS, Generating, call, question_prompt, questions
from gateau_dagster.features.synthesis.scripted_generator import ScriptedGenerator
from gateau_dagster.storage.files import Files
from tests.features.synthesis.test_passages import documents, options
from tests.kit.fake_server import BEHAVIOURS, Act, FakeServer, Handler, content, refuse, serving

GOOD = {"question": "Which lamp is lit?", "answer": "the brass lamp", "evidence": ["a", "b"], "reasoning": "so"}
TEXT = json.dumps(GOOD)
CHOSEN = options(kinds={"two_passages": 1.0})
GIVEN = documents(3)


def said(text: str, **more: Any) -> Act:
    return content(text, **more)


def good(**changes: Any) -> Act:
    return said(json.dumps({**GOOD, **changes}))


def tool_call(handler: Handler) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "answer", "arguments": TEXT}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    handler.send(200, json.dumps({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}))


def invalid_utf8(handler: Handler) -> None:
    handler.send(200, json.dumps(handler.completion("X")).encode().replace(b'"X"', b'"\xff\xfe"'))


def no_json_mode(status: int) -> Act:
    def act(handler: Handler) -> None:
        refuse(status, "unknown field")(handler) if "response_format" in handler.body else handler.say(TEXT)

    return act


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Describe what the server does to one prompt, and the fate of its candidate.

    Attributes:
        outcome: the fault in the table; empty for a usable question, `no reply` for a reject, `ends` for the work.
        words: in the reason of the reject, or in the message.
        answer: of a usable question.
        paid: whether a reply is kept, so that nothing is asked again.
    """

    act: Act
    outcome: str = ""
    words: str = ""
    answer: str = "the brass lamp"
    paid: bool = True


def lost(name: str, words: str, *, paid: bool = False) -> Fault:
    return Fault(act=BEHAVIOURS[name].act, outcome="no reply", words=words, paid=paid)


FAULTS: dict[str, Fault] = {
    # The server's: no reply that says anything.
    "429 storm": lost("429 always", "429: slow down"),
    "429 once": Fault(act=lambda it: refuse(429)(it) if it.before == 0 else it.say(TEXT)),
    "500": lost("500 always", "500: broken"),
    "500 once": Fault(act=lambda it: refuse(500)(it) if it.before == 0 else it.say(TEXT)),
    "400": lost("400", "400: bad request"),
    "401": Fault(act=refuse(401), outcome="ends", words="answers 401", paid=False),
    "402": Fault(act=refuse(402), outcome="ends", words="add credit", paid=False),
    "timeout": lost("hang", "no complete reply within"),
    "dropped connection": lost("reset always", "no reply"),
    "half a body": lost("half body", "no reply"),
    "chunked garbage": lost("chunked garbage", "no reply"),
    "page": lost("page", "a page, not JSON"),
    "stream": lost("stream", "a stream of events"),
    "empty body": lost("empty body", "it is empty"),
    "invalid UTF-8": Fault(act=invalid_utf8, outcome="no reply", words="no JSON object", paid=False),
    "no choices": lost("no choices", "no choices"),
    "content null": lost("content null", "no text"),
    "tool calls": Fault(act=tool_call, outcome="no reply", words="no text", paid=False),
    "wrong content type": Fault(
        act=lambda it: it.send(200, json.dumps(it.completion(TEXT)), content_type="text/plain")
    ),
    "usage null": Fault(act=said(TEXT, usage=None)),
    "no JSON mode, 400": Fault(act=no_json_mode(400)),
    "no JSON mode, 422": Fault(act=no_json_mode(422)),
    # The reply's: it is paid for, and kept.
    "empty": lost("empty", "the reply is empty", paid=True),
    "filtered": Fault(
        act=content("", "content_filter"), outcome="no reply", words="the reply is empty (finish_reason content_filter)"
    ),
    "cut": Fault(act=content(TEXT[:40], "length"), outcome="no reply", words="synthesis.generator.max_tokens"),
    "cut without a word": Fault(act=said(TEXT[:40]), outcome="unreadable"),
    "refusal": Fault(act=said("I cannot help with that."), outcome="unreadable"),
    "declined": Fault(act=said('{"question": ""}'), outcome="declined"),
    "unreadable once": Fault(act=lambda it: it.say("{") if it.before == 0 else it.say(TEXT)),
    "list of texts": Fault(act=good(answer=["brass", "copper"]), outcome="unreadable"),
    "wrong types": Fault(act=good(question=5, answer={}, evidence=3), outcome="unreadable"),
    "no field": Fault(act=said('{"answer": "x"}'), outcome="unreadable"),
    "two answers": Fault(act=said(TEXT.replace('"answer"', '"answer": "copper", "answer"')), outcome="unreadable"),
    "NaN": Fault(act=said(TEXT.replace('"the brass lamp"', "NaN")), outcome="unreadable"),
    "number": Fault(act=good(answer=3), answer="3"),
    "lone surrogate": Fault(act=good(answer="\ud800"), outcome="unreadable"),
    "control characters": Fault(act=good(answer="a\x07b\0"), outcome="unreadable"),
    "LaTeX": Fault(act=said(TEXT.replace("the brass lamp", r"\frac{1}{2} \nu")), answer=r"\frac{1}{2} \nu"),
    "braces behind": Fault(act=said(f"{TEXT}\nNote: I used {{Passage 1}}.")),
    "fence": Fault(act=said(f"Here it is:\n```json\n{TEXT}\n```")),
    "thoughts": Fault(act=said(f'<think>{{"question": "no", "answer": "no"}}</think>{TEXT}')),
    "two objects": Fault(act=said(f'{{"note": "draft"}} {TEXT} {{"note": "done"}}')),
    "another language": Fault(act=good(answer="真鍮のランプ — лампа"), answer="真鍮のランプ — лампа"),
    "parts": Fault(act=content([{"type": "reasoning", "text": "hm"}, {"type": "text", "text": TEXT}])),
    "1 MB": Fault(act=good(answer="brass " * 200_000), outcome="no reply", words="ignores max_tokens"),
    "long answer": Fault(act=good(answer="x" * (MOST_LETTERS + 1)), outcome="too_long"),
    "long evidence": Fault(act=good(evidence=["x" * (MOST_LETTERS + 1)]), outcome="too_long"),
    "long question": Fault(act=good(question="x" * (MOST_LETTERS + 1)), outcome="too_long"),
    "long reasoning": Fault(act=good(reasoning="x" * (2 * MOST_LETTERS))),
}


class OneFault(FakeServer):
    """It is honest but to one prompt."""

    def __init__(self, act: Act, bad: str) -> None:
        super().__init__(self._answer)
        self.honest = ScriptedGenerator()
        self.honest.server_close()
        self.fault, self.bad = act, bad

    def _answer(self, handler: Handler) -> None:
        handler.close_connection = True
        is_bad = handler.body["messages"][-1]["content"] == self.bad
        self.fault(handler) if is_bad else handler.say(self.honest.reply({**handler.body}))


@cache
def passages() -> Sequence[Mapping[str, Any]]:
    """Rows of PASSAGES, one about each document."""
    return candidates(iter(GIVEN), CHOSEN, len(GIVEN))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_its_reason_and_loses_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateau_dagster.features.evaluation.server_client.FIRST_PAUSE", 0.01)
    fault, rows = FAULTS[name], passages()
    bad, prompt = rows[1], question_prompt(rows[1]["kind"], [each["text"] for each in rows[1]["passages"]])
    with serving(OneFault(fault.act, prompt)) as server:
        timeout = 0.5 if "no complete reply" in fault.words else 20.0
        settings = GeneratorConfig(
            base_url=server.address, model="m", key=None, retries=1, timeout=timeout, concurrency=1, max_tokens=1024
        )

        def asked() -> tuple[dict[str, Any], dict[str, str]]:
            replies = Replies(Files(str(tmp_path)), settings.model, settings.replies_folder)
            generating = Generating(settings=settings, judge=JudgeResource().judge(settings), replies=replies)
            table, rejected = questions(rows, lambda: iter(GIVEN), generating, CHOSEN)
            found = {row["sample_id"]: row for row in table.iter_rows(named=True)}
            assert generating.unread.keys() == {key for key, row in found.items() if row["fault"] == "unreadable"}
            return found, {each.sample_id: each.reason for each in rejected}

        if fault.outcome == "ends":
            with pytest.raises(GateauError, match=fault.words) as raised:
                asked()
            assert "\n" not in str(raised.value)
            server.fault = said(TEXT)
        found, rejected = asked()
        assert {*found} | {*rejected} == {row["sample_id"] for row in rows} and len(found) + len(rejected) == len(rows)
        assert {*rejected} <= {bad["sample_id"]} and sum(bool(row["fault"]) for row in found.values()) <= 1
        if fault.outcome == "no reply":
            (reason,) = rejected.values()
            assert fault.words in reason and reason.isprintable()
        elif fault.outcome != "ends":
            row = found[bad["sample_id"]]
            assert row["fault"] == fault.outcome and (fault.outcome or row["answer"] == fault.answer)
            assert len(row["reasoning"]) <= MOST_LETTERS
        sent = len(server.requests)
        kept = Replies(Files(str(tmp_path)), settings.model, settings.replies_folder).spent.requests
        unreadable = fault.outcome == "unreadable" or name == "unreadable once"
        assert kept == len(found) + fault.paid * len(rejected) + unreadable, "an unreadable reply is paid for, too"
        assert asked() == (found, rejected)
        if fault.paid or fault.outcome == "ends":
            assert len(server.requests) == sent, "what is paid for is kept"


def test_a_server_without_json_mode_is_asked_once_with_it(tmp_path: Path) -> None:
    with serving(OneFault(no_json_mode(422), "")) as server:
        server.act = server.fault
        settings = GeneratorConfig(base_url=server.address, model="m", key=None, concurrency=1)
        replies = Replies(Files(str(tmp_path)), settings.model, settings.replies_folder)
        for _ in range(2):
            generating = Generating(settings=settings, judge=JudgeResource().judge(settings), replies=replies)
            questions(passages(), lambda: iter(GIVEN), generating, CHOSEN)
        generating.texts([call(settings, "a", "Which lamp?")])
        assert ["response_format" in each for each in server.requests] == [True, *[False] * (len(passages()) + 1)]
        own = GeneratorConfig(base_url=server.address, model="n", key=None, extra_body={"response_format": None})
        JudgeResource().judge(own)(call(own, "a", "Which lamp?", json_mode=True).asked)
        assert "response_format" not in server.requests[-1]
