"""The judge as a Dagster resource: a model behind any OpenAI-compatible server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import dagster as dg

from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.evaluation.judging.request import Asked, Judge, JudgeRefusedError, Reply, UnansweredError
from gateau_dagster.evaluation.server_keys import no_client, server_key

if TYPE_CHECKING:
    import openai

_PLACE = "evaluation.judge"
_LONGEST_REASON = 300  # characters
_BYTES_OF_A_TOKEN = 3  # 4 in English
_NO_CREDIT = "insufficient_quota"
_PASSING = {408, 409, 425, 429}


class JudgeResource(dg.ConfigurableResource):
    """Makes the judge that a configuration names; its key comes from the environment alone."""

    def judge(self, settings: JudgeConfig) -> Judge:
        """What answers requests.

        Raises:
            GateauError: the key's environment variable is not set, or the package `openai` is not installed.
        """
        return ServerJudge(settings, server_key(_PLACE, settings.key, settings.base_url))


class ServerJudge:
    """A client of one server. It tries again what may pass; see `max_retries`."""

    def __init__(self, settings: JudgeConfig, key: str) -> None:
        try:
            import openai
        except ImportError as error:
            raise no_client(_PLACE) from error
        self._openai, self._settings, self._key = openai, settings, key
        self._client = openai.OpenAI(
            base_url=settings.base_url, api_key=key, max_retries=settings.max_retries, timeout=settings.timeout
        )

    def __call__(self, asked: Asked) -> Reply:
        """See Judge. No message or reply of it holds the key, whatever the server says."""
        started = time.monotonic()
        limit: dict[str, Any] = {self._settings.token_limit: asked.max_tokens}
        messages: Any = [dict(message) for message in asked.messages]
        try:
            found = self._client.chat.completions.create(
                model=asked.judge, messages=messages, temperature=asked.temperature, **limit
            )
        except self._openai.APIStatusError as error:
            raise self._failure(error) from None
        except self._openai.APITimeoutError:
            raise UnansweredError(f"no reply within {self._settings.timeout:g} s", passing=True) from None
        except self._openai.APIError as error:
            raise UnansweredError(self._said(error.__cause__ or error), passing=True) from None
        except ValueError as error:  # a body that is no JSON
            raise UnansweredError(f"the reply cannot be read: {self._said(error)}", passing=True) from None
        return self._reply(found, asked, time.monotonic() - started)

    def _reply(self, found: Any, asked: Asked, seconds: float) -> Reply:
        """Servers leave out what they like, so nothing of a reply is taken on trust."""
        try:
            message = found.choices[0].message
            text = message.content or getattr(message, "refusal", None) or ""
        except (AttributeError, TypeError, IndexError):
            raise UnansweredError("the reply holds no message", passing=True) from None
        if not isinstance(text, str):
            raise UnansweredError("the reply's message is no text", passing=True)
        usage = getattr(found, "usage", None)
        return Reply(
            text=self._clean(text),
            prompt_tokens=_count(usage, "prompt_tokens") or _about(*(each["content"] for each in asked.messages)),
            reply_tokens=_count(usage, "completion_tokens") or _about(text),
            seconds=seconds,
        )

    def _failure(self, error: openai.APIStatusError) -> JudgeRefusedError | UnansweredError:
        status, said = error.status_code, self._said(error)
        place = f"{self._settings.base_url} answers {status} ({said})"
        if status in {401, 403}:
            variable = self._settings.key
            cure = f"set {variable} to a key that it accepts" if variable else "name the key's variable in `key`"
            return JudgeRefusedError(f"evaluation.judge: {place}: {cure}, and run again; what was answered is kept.")
        if status == 404:
            return JudgeRefusedError(f"evaluation.judge: {place}: correct base_url or model ({self._settings.model}).")
        if status == 402 or error.code == _NO_CREDIT:
            return JudgeRefusedError(f"evaluation.judge: {place}: pay in, and run again; what was answered is kept.")
        return UnansweredError(f"{status}: {said}", passing=status in _PASSING or status >= 500)

    def _said(self, error: BaseException) -> str:
        """One line, without the key."""
        body = getattr(error, "body", None)
        said = body.get("message") if isinstance(body, dict) else None
        text = " ".join(str(said or error).split()) or type(error).__name__
        return self._clean(text)[:_LONGEST_REASON]

    def _clean(self, text: str) -> str:
        """Text that a table can hold, without the key."""
        text = text.encode("utf-8", errors="replace").decode()
        return text if self._settings.key is None else text.replace(self._key, "***")


def _about(*texts: str) -> int:
    """Tokens of texts that the server did not count, rather too many: for nothing, no budget would ever be used up."""
    return sum(-(-len(each.encode("utf-8", errors="replace")) // _BYTES_OF_A_TOKEN) for each in texts)


def _count(usage: Any, name: str) -> int:
    value = getattr(usage, name, 0)
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0
