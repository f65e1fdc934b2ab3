"""The engine on a server: any server with OpenAI's interface answers in place of this process."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.features.evaluation.config import VARIANT, EngineConfig
from gateau_dagster.features.evaluation.generation.answering import Answer, AskedTurn, Note, Outcome, unwatched
from gateau_dagster.features.evaluation.generation.prompts import PromptBuilder, Shown, messages, rendered
from gateau_dagster.features.evaluation.server_client import (
    Client,
    Patience,
    UnansweredError,
    ask_each,
    overlong,
    unread_tokens,
)
from gateau_dagster.models.chat_rendering import unmarked
from gateau_dagster.models.control_tokens import spelled
from gateau_dagster.models.prompt import encode
from gateau_dagster.readable import plural

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_PLACE = "evaluation.engine"


class Server:
    """Asks a server several questions at a time, once the first one is answered.

    A question that goes through the chat template is sent as a conversation, to which the server applies its own
    template. Any other question is sent as the complete prompt text. The server tokenises either, so it may read the
    control tokens that a question spells as control tokens.

    Args:
        variant: whose answers these are; its tokenizer is the one of `prompts`.
        warn: receives a sentence if questions spell control tokens.
    """

    def __init__(self, config: EngineConfig, variant: str, prompts: PromptBuilder, *, warn: Note = unwatched) -> None:
        self._config, self._prompts, self._warn = config, prompts, warn
        self._spelled: dict[str, str] = {}  # the first control token of each such question
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
            TransientError: the server seems to be down.
        """
        works = len(missing) < len(asked) or any(each.answers for each in asked)
        patience = Patience(_PLACE, self._address, self._config, works=works or self._works)
        wanted = [each for each in asked if each.question.question_id in missing]
        most, alone = self._config.concurrency, not self._asked_once
        note(f"questions to {self._address}{', the first one alone' if alone and wanted else ''}")
        for ended in ask_each(wanted, lambda each: self._answer(each, patience), most=most, alone=alone):
            if ended:
                self._asked_once = True
                yield [self._outcome(each, made) for each, made in ended]
            note(f"{self._client.under_way() or 'questions'} to {self._address}")
        self._warn_of_control_tokens(len(wanted))
        patience.check()

    def _warn_of_control_tokens(self, asked: int) -> None:
        if not self._spelled:
            return
        name, token = min(self._spelled.items())
        self._warn(
            f"{_PLACE}: {len(self._spelled):,} of {plural(asked, 'question')} spell{'s' * (len(self._spelled) == 1)} "
            f"control tokens of the model, as {name} has {token!r}. {self._address} tokenises the text, so it may read "
            "them as control tokens. Remove evaluation.engine to have them read as text"
        )
        self._spelled.clear()

    def _outcome(self, asked: AskedTurn, made: Outcome | UnansweredError) -> Outcome:
        if not isinstance(made, UnansweredError):
            return made
        return Reject(sample_id=asked.question.question_id, reason=f"{self._address}: {made}", refused=True)

    def _answer(self, asked: AskedTurn, patience: Patience) -> Outcome | UnansweredError:
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
            if (error := overlong(_PLACE, self._config, said.text, wants.max_new_tokens)) is not None:
                raise error
        except UnansweredError as error:
            patience.failed(error)
            return error
        self._works = True
        patience.answered()
        unread = unread_tokens(self._sent_tokens(asked, shown), said.read_tokens) if said.read_tokens else 0
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
            unread_tokens=unread or None,
        )

    def _sent_tokens(self, asked: AskedTurn, shown: Shown) -> int:
        """Return the tokens of a prompt by the model's tokenizer.

        Of a conversation only the system message and the user's turns count, since the server's template may differ,
        and may leave out the thoughts of earlier answers.
        """
        if shown.ids:
            return len(shown.ids)
        with self._tokenizing:
            turns, _ = self._prompts.cut(asked)
            said = messages(asked.question, turns, asked.answers)
            texts = (each["content"] for each in said if each["role"] != "assistant")
            return sum(len(encode(self._prompts.tokenizer, text)) for text in texts)

    def _request(self, asked: AskedTurn) -> tuple[Shown, str, dict[str, Any]]:
        """Return the prompt, the path and the body; the prompt has no ids if the server tokenises a conversation."""
        question = asked.question
        body: dict[str, Any] = {"model": self._model}
        if question.generation.stop:
            body["stop"] = [*question.generation.stop]
        with self._tokenizing:
            self._note_control_tokens(asked)
            if self._prompts.is_chat(question) and not question.prefill:
                turns, cut = self._prompts.cut(asked)
                said = messages(question, turns, asked.answers)
                text = unmarked(rendered(self._prompts.tokenizer, said))
                shown = Shown(text=text, ids=(), cut_tokens=cut)
                return shown, "chat/completions", {**body, "messages": [dict(each) for each in said]}
            shown = self._prompts.shown(asked)
        sent = shown.text.removeprefix(_put_before(self._prompts.tokenizer))
        return shown, "completions", {**body, "prompt": sent}

    def _note_control_tokens(self, asked: AskedTurn) -> None:
        question = asked.question
        texts = (question.system, question.prefill, *(text for _, text in question.earlier), *asked.answers)
        for text in (*texts, *question.turns[: asked.turn + 1]):
            for token in spelled(self._prompts.tokenizer, text):
                self._spelled.setdefault(question.question_id, token)


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
