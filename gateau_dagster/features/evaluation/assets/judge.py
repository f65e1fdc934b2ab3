"""Provide judge and generator as a Dagster resource: a model behind any OpenAI-compatible server."""

from __future__ import annotations

import dagster as dg

from gateau_dagster.features.evaluation.judging.replies import BYTES_OF_A_TOKEN, PROMPT, Judge, Reply, ServerCall
from gateau_dagster.features.evaluation.server_client import Client
from gateau_dagster.features.evaluation.servers import AskedConfig


class JudgeResource(dg.ConfigurableResource):
    """Makes the judge that a configuration names; its key comes from the environment alone."""

    def judge(self, settings: AskedConfig) -> Judge:
        """Return the judge, which answers requests.

        Raises:
            GateauError: the key's environment variable is not set.
        """
        return ServerJudge(settings)


class ServerJudge:
    """A judge behind a server, reached through `Client`."""

    def __init__(self, settings: AskedConfig) -> None:
        self._client = Client(settings.place, settings, settings.base_url)

    def __call__(self, asked: ServerCall) -> Reply:
        """Implement Judge. No message or reply contains the key, whatever the server answers."""
        sampling = {name: value for name, value in asked.more.items() if name != "extra_body"}
        if asked.temperature is not None:
            sampling["temperature"] = asked.temperature
        if "seed" in sampling:  # otherwise each repeat would return the first reply
            sampling["seed"] += asked.repeat + asked.attempt
        first = asked.messages[0]
        if first["role"] == PROMPT:
            path, said = "completions", {"prompt": first["content"]}
        else:
            path, said = "chat/completions", {"messages": [dict(message) for message in asked.messages]}
        ask = self._client.ask_json if asked.json_mode else self._client.ask
        found = ask(path, {"model": asked.model, **said}, limit=asked.max_tokens, asks=sampling)
        text = found.text.encode("utf-8", errors="replace").decode()
        prompt, reply = found.prompt_tokens, found.reply_tokens
        return Reply(
            text=text,
            prompt_tokens=prompt or _about(*(each["content"] for each in asked.messages)),
            reply_tokens=reply or _about(text),
            seconds=found.seconds,
            finish_reason=found.finish_reason,
        )

    def under_way(self) -> str:
        """Implement Judge.under_way."""
        return self._client.under_way()


def _about(*texts: str) -> int:
    # From above: with 0 for texts that a server did not count, no budget would ever be used up.
    return sum(-(-len(each.encode("utf-8", errors="replace")) // BYTES_OF_A_TOKEN) for each in texts)
