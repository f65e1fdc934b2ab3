"""The engine that is a server: any with OpenAI's interface answers in place of this process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from gateau_dagster.config.evaluation import VARIANT, EngineConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import GateauError, TransientError, UnscorableSampleError
from gateau_dagster.evaluation.generation.asked import Answer, Asked, Note, Outcome, unwatched
from gateau_dagster.evaluation.generation.prompts import Prompts, Shown, messages, rendered
from gateau_dagster.evaluation.questions import Generation
from gateau_dagster.evaluation.server_keys import no_client, server_key
from gateau_dagster.readable import plural

if TYPE_CHECKING:
    from openai import OpenAI
    from transformers import PreTrainedTokenizerBase

_PLACE = "evaluation.engine"
_FEWEST_REFUSALS = 8
"""Questions that no server which works refuses before it has answered any."""


class Server:
    """Asks a server; several questions at a time, once the first one is answered.

    A question that goes through the chat template is sent as a conversation, to which the server applies its own;
    any other as the text that this product makes of it.

    Args:
        variant: whose answers these are; its tokenizer is the one of `prompts`.
    """

    def __init__(self, config: EngineConfig, variant: str, prompts: Prompts) -> None:
        self._config, self._prompts = config, prompts
        self._model = config.model.replace(VARIANT, variant)
        self._address = config.base_url.replace(VARIANT, variant)
        self._client = _client(config, self._address)
        self._asked_once = self._works = False
        self._refusals, self._last_refusal = 0, ""
        self._counting = threading.Lock()
        self._tokenizing = threading.Lock()  # a tokenizer serves one thread at a time

    def answers(
        self, asked: Sequence[Asked], missing: Collection[str], note: Note = unwatched
    ) -> Iterator[Sequence[Outcome]]:
        """See Engine. No more than `concurrency` questions are asked and not yet saved, so no more are ever paid twice.

        What was on its way when another request failed is still waited for.

        Raises:
            GateauError: it refuses whatever it is asked. Where it answered some before, the rest are rejects.
        """
        self._works |= len(missing) < len(asked) or any(each.answers for each in asked)
        waiting = deque(each for each in asked if each.question.question_id in missing)
        if waiting and not self._asked_once:
            note(f"one question is with {self._address}, before the others")
            yield [self._answer(waiting.popleft())]
            self._asked_once = True
        with ThreadPoolExecutor(self._config.concurrency) as pool:
            running: set[Future[Outcome]] = set()
            while waiting or running:
                while waiting and len(running) < self._config.concurrency:
                    running.add(pool.submit(self._answer, waiting.popleft()))
                note(f"{plural(len(running), 'question')} with {self._address}")
                done, running = wait(running, return_when=FIRST_COMPLETED)
                if any(each.exception() for each in done):
                    done, running = done | wait(running).done, set()
                yield [each.result() for each in done if each.exception() is None]
                for each in done:
                    each.result()  # raises what went wrong
        if self._last_refusal and not self._works:
            raise self._refuses_all(self._last_refusal)

    def _answer(self, asked: Asked) -> Outcome:
        question = asked.question
        try:
            shown, send = self._request(asked)
        except UnscorableSampleError as error:
            return Reject(sample_id=question.question_id, reason=str(error))
        started = time.perf_counter()
        try:
            text, reason, usage = self._explained(send)
        except _RefusedError as error:
            self._count(error)
            return Reject(sample_id=question.question_id, reason=str(error), refused=True)
        self._works = True
        return Answer(
            question_id=question.question_id,
            turn=asked.turn,
            digest=question.digest,
            prompt=shown.text,
            answer=text.removeprefix(shown.gap),
            prompt_tokens=usage.prompt_tokens if usage else 0,
            cut_tokens=shown.cut_tokens,
            answer_tokens=usage.completion_tokens if usage else 0,
            finish_reason=reason,
            seconds=time.perf_counter() - started,
        )

    def _count(self, refusal: _RefusedError) -> None:
        """Raises GateauError where so many were refused, and none answered, that others would only cost time."""
        with self._counting:
            self._refusals += 1
            self._last_refusal = str(refusal)
        if not self._works and self._refusals >= max(_FEWEST_REFUSALS, 2 * self._config.concurrency):
            raise self._refuses_all(self._last_refusal)

    def _refuses_all(self, said: str) -> GateauError:
        return GateauError(
            f"{_PLACE}: {said}. So it does with every question, the {self._refusals:,} so far: see to the server, its "
            "chat template and its window (evaluation.input_length shortens questions), and run again"
        )

    def _request(self, asked: Asked) -> tuple[Shown, Callable[[], tuple[str, str, Any]]]:
        """The prompt, and what sends it. Of a conversation, which the server tokenises, the ids are left out."""
        question = asked.question
        options = _options(question.generation) | {"model": self._model}
        with self._tokenizing:
            if self._prompts.is_chat(question) and not question.prefill:
                turns, cut = self._prompts.cut(asked)
                said = messages(question, turns, asked.answers)
                text = rendered(self._prompts.tokenizer, said)
                shown = Shown(text=text, ids=(), cut_tokens=cut)
                return shown, lambda: _chat(self._client, said, options)
            shown = self._prompts.shown(asked)
        sent = shown.text.removeprefix(_put_before(self._prompts.tokenizer))
        return shown, lambda: _text(self._client, sent, options)

    def _explained(self, send: Callable[[], tuple[str, str, Any]]) -> tuple[str, str, Any]:
        """What the server said. Its client has tried again what may pass.

        Raises:
            _RefusedError: it will not answer this question.
            GateauError: it will answer none. TransientError: not now.
        """
        import openai

        try:
            return send()
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            key = f"the key in {self._config.key}" if self._config.key else "a request without a key (set `key`)"
            raise GateauError(f"{_PLACE}: {self._address} refuses {key}: status {error.status_code}") from error
        except openai.NotFoundError as error:
            raise GateauError(
                f"{_PLACE}: {self._address} knows no model {self._model!r}, or no such interface: {_said(error)}"
            ) from error
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            raise _RefusedError(f"{self._address} refuses the question: {_said(error)}") from error
        except openai.APIConnectionError as error:
            raise TransientError(f"{_PLACE}: {self._address} does not answer: {error}") from error
        except openai.APIError as error:
            raise TransientError(f"{_PLACE}: {self._address} fails: {_said(error)}") from error
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise TransientError(f"{_PLACE}: {self._address} sends what is no answer: {_said(error)}") from error


class _RefusedError(ValueError):
    """A question that the server will not answer, such as one longer than its window."""


def _said(error: Exception) -> str:
    """The first line of what a server said, at some length; it may hold anything."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _client(config: EngineConfig, address: str) -> OpenAI:
    """Raises GateauError when the package or the key is missing."""
    try:
        from openai import OpenAI
    except ImportError as error:
        raise no_client(_PLACE) from error
    key = server_key(_PLACE, config.key, address)
    return OpenAI(base_url=address, api_key=key, max_retries=config.retries, timeout=config.timeout)


def _put_before(tokenizer: PreTrainedTokenizerBase) -> str:
    """The special token that a tokenizer, the server's too, puts before every text by itself."""
    ids: Any = tokenizer("a", verbose=False)["input_ids"]
    return str(tokenizer.bos_token) if ids[0] == tokenizer.bos_token_id else ""


def _options(generation: Generation) -> dict[str, Any]:
    """All of them, so that no server's default decides."""
    options: dict[str, Any] = {
        "max_tokens": generation.max_new_tokens,
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "seed": generation.seed,
    }
    return options | ({"stop": list(generation.stop)} if generation.stop else {})


def _chat(client: OpenAI, said: Sequence[Any], options: dict[str, Any]) -> tuple[str, str, Any]:
    reply = client.chat.completions.create(messages=list(said), **options)
    choice = reply.choices[0]
    return choice.message.content or "", choice.finish_reason or "stop", reply.usage


def _text(client: OpenAI, prompt: str, options: dict[str, Any]) -> tuple[str, str, Any]:
    reply = client.completions.create(prompt=prompt, **options)
    choice = reply.choices[0]
    return choice.text or "", choice.finish_reason or "stop", reply.usage
