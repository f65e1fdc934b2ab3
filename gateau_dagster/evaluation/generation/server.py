"""The engine on a server: any server with OpenAI's interface answers in place of this process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeAlias

from gateau_dagster.config.evaluation import VARIANT, EngineConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.evaluation.generation.answering import Answer, AskedTurn, Note, Outcome, unwatched
from gateau_dagster.evaluation.generation.prompts import PromptBuilder, Shown, messages, rendered
from gateau_dagster.evaluation.server_client import Client, Patience, UnansweredError
from gateau_dagster.readable import plural

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_PLACE = "evaluation.engine"
_SECONDS_BETWEEN_NOTES = 1.0
_Made: TypeAlias = Outcome | UnansweredError


class Server:
    """Asks a server several questions at a time, once the first one is answered.

    A question that goes through the chat template is sent as a conversation, to which the server applies its own
    template. Any other question is sent as the complete prompt text.

    Args:
        variant: whose answers these are; its tokenizer is the one of `prompts`.
    """

    def __init__(self, config: EngineConfig, variant: str, prompts: PromptBuilder) -> None:
        self._config, self._prompts = config, prompts
        self._model = config.model.replace(VARIANT, variant)
        self._address = config.base_url.replace(VARIANT, variant)
        self._client = Client(_PLACE, config, self._address)
        self._asked_once = self._works = False
        self._tokenizing = threading.Lock()  # a tokenizer is not thread-safe

    def answers(
        self, asked: Sequence[AskedTurn], missing: Collection[str], note: Note = unwatched
    ) -> Iterator[Sequence[Outcome]]:
        """Implement Engine.answers; at most `concurrency` questions are asked and not yet saved, so no more are paid
        twice.

        When a request fails, those under way still finish. A question without an answer is asked once more after all
        others, if another try may help.

        Raises:
            GateauError: the server refuses every question. Where it has answered some before, the rest are rejects.
            TransientError: it seems to be down.
        """
        works = len(missing) < len(asked) or any(each.answers for each in asked)
        patience = Patience(_PLACE, self._address, self._config, works=works or self._works)
        waiting = deque(each for each in asked if each.question.question_id in missing)
        later, second_time = deque[AskedTurn](), False
        most = self._config.concurrency if self._asked_once else 1
        with ThreadPoolExecutor(self._config.concurrency) as pool:
            running: dict[Future[_Made], AskedTurn] = {}
            while waiting or running or later:
                if not waiting and not running:
                    waiting, later, second_time = later, deque(), True
                while waiting and len(running) < most:
                    each = waiting.popleft()
                    running[pool.submit(self._answer, each, patience)] = each
                note(self._under_way(len(running), alone=not self._asked_once))
                done, _ = wait(running, timeout=_SECONDS_BETWEEN_NOTES, return_when=FIRST_COMPLETED)
                if any(each.exception() for each in done):
                    done, waiting, later = wait(running).done, deque(), deque()
                made = [(running.pop(each), each) for each in done]
                outcomes: list[Outcome] = []
                for each, future in made:
                    if future.exception() is None:
                        self._asked_once, most = True, self._config.concurrency
                        outcome = future.result()
                        if not isinstance(outcome, UnansweredError):
                            outcomes.append(outcome)
                        elif outcome.is_worth_another_try and not second_time:
                            later.append(each)
                        else:
                            name = each.question.question_id
                            reason = f"{self._address}: {outcome}"
                            outcomes.append(Reject(sample_id=name, reason=reason, refused=True))
                if outcomes:
                    yield outcomes
                for future in done:
                    future.result()  # raises the error of the request
        patience.check()

    def _under_way(self, count: int, *, alone: bool) -> str:
        said = self._client.under_way() or f"{plural(count, 'question')} under way"
        return f"{said} to {self._address}{', alone before the others' if alone else ''}"

    def _answer(self, asked: AskedTurn, patience: Patience) -> _Made:
        question = asked.question
        try:
            shown, path, body = self._request(asked)
        except UnscorableSampleError as error:
            return Reject(sample_id=question.question_id, reason=str(error))
        wants = question.generation
        sampling = self._config.sampling(temperature=wants.temperature, top_p=wants.top_p, seed=wants.seed)
        try:
            said = self._client.ask(path, body, limit=wants.max_new_tokens, asks=sampling)
            if not said.text.isascii():
                _check_text(said.text)
        except UnansweredError as error:
            patience.failed(error)
            return error
        self._works = True
        patience.answered()
        return Answer(
            question_id=question.question_id,
            turn=asked.turn,
            digest=question.digest,
            prompt=shown.text,
            answer=said.text.removeprefix(shown.gap),
            prompt_tokens=said.prompt_tokens or 0,
            cut_tokens=shown.cut_tokens,
            answer_tokens=said.reply_tokens or 0,
            finish_reason=said.finish_reason,
            seconds=said.seconds,
        )

    def _request(self, asked: AskedTurn) -> tuple[Shown, str, dict[str, Any]]:
        """Return the prompt, the path and the body; the prompt has no ids where the server tokenises a conversation."""
        question = asked.question
        body: dict[str, Any] = {"model": self._model}
        if question.generation.stop:
            body["stop"] = [*question.generation.stop]
        with self._tokenizing:
            if self._prompts.is_chat(question) and not question.prefill:
                turns, cut = self._prompts.cut(asked)
                said = messages(question, turns, asked.answers)
                text = rendered(self._prompts.tokenizer, said)
                shown = Shown(text=text, ids=(), cut_tokens=cut)
                return shown, "chat/completions", {**body, "messages": [dict(each) for each in said]}
            shown = self._prompts.shown(asked)
        sent = shown.text.removeprefix(_put_before(self._prompts.tokenizer))
        return shown, "completions", {**body, "prompt": sent}


def _check_text(text: str) -> None:
    """Raise UnansweredError for a lone surrogate, which no table can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        letter = f"U+{ord(text[error.start]):04X}"
        raise UnansweredError(f"the answer holds a lone surrogate, {letter}, which is no text", passing=True) from None


def _put_before(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the special token that a tokenizer, the server's too, puts before every text by itself."""
    ids: Any = tokenizer("a", verbose=False)["input_ids"]
    return str(tokenizer.bos_token) if ids[0] == tokenizer.bos_token_id else ""
