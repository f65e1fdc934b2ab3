"""The engine that runs here: left-padded batches of similar length, halved where they do not fit into memory."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.evaluation.generation.asked import Answer, Asked, Note, Outcome, unwatched
from gateau_dagster.evaluation.generation.prompts import Prompts, Shown, turn_endings
from gateau_dagster.models.positions import learned_positions
from gateau_dagster.readable import plural

if TYPE_CHECKING:
    from gateau_dagster.models.loading import LoadedModel


class InProcess:
    """Answers with a loaded model.

    Args:
        batch_tokens: of a batch of several prompts, padding and answers included.
    """

    def __init__(self, loaded: LoadedModel, prompts: Prompts, *, batch_tokens: int) -> None:
        self._loaded, self._prompts = loaded, prompts
        self._batch_tokens = batch_tokens
        self._fitting = batch_tokens  # shrinks where the memory does not suffice
        self._endings = turn_endings(loaded.tokenizer)

    def answers(
        self, asked: Sequence[Asked], missing: Collection[str], note: Note = unwatched
    ) -> Iterator[Sequence[Outcome]]:
        """See Engine. Batches are those of all that is asked, so that a killed run goes on with the same ones."""
        rejected: dict[str, Reject] = {}
        sizes: list[tuple[int, int]] = []
        for number, each in enumerate(asked, start=1):
            note(f"question {number:,} of {len(asked):,} into tokens")
            try:
                sizes.append((len(self._shown(each).ids), each.question.generation.max_new_tokens))
            except UnscorableSampleError as error:
                sizes.append((0, 0))
                rejected[each.question.question_id] = Reject(sample_id=each.question.question_id, reason=str(error))
        if unusable := [reject for name, reject in rejected.items() if name in missing]:
            yield unusable
        for batch in self._batches(sizes):
            wanted = [asked[place] for place in batch if asked[place].question.question_id in missing]
            if wanted := [each for each in wanted if each.question.question_id not in rejected]:
                yield from self._answered(wanted, note)

    def _shown(self, asked: Asked) -> Shown:
        """Raises UnscorableSampleError for a question that this model cannot be shown."""
        shown = self._prompts.shown(asked)
        if not shown.ids:
            raise UnscorableSampleError("the question has no tokens")
        most, needed = (
            learned_positions(self._loaded.model.config),
            len(shown.ids) + asked.question.generation.max_new_tokens,
        )
        if most is not None and needed > most:
            raise UnscorableSampleError(
                f"question and answer may take {needed} tokens, more than the {most} that the model has positions for: "
                "lower evaluation.input_length"
            )
        return shown

    def _batches(self, sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
        """Places of questions by the tokens of prompt and answer, those alike together, the longest first."""
        from gateau_dagster.evaluation.generation.decoding import pads_left

        room = self._batch_tokens if pads_left(self._loaded) else 0
        batches: list[list[int]] = []
        for place in sorted(range(len(sizes)), key=lambda each: (*(-size for size in reversed(sizes[each])), each)):
            several = [*batches[-1], place] if batches else [place]
            tokens = len(several) * (max(sizes[each][0] for each in several) + sizes[several[0]][1])
            if batches and tokens <= room:
                batches[-1].append(place)
            else:
                batches.append([place])
        return batches

    def _answered(self, batch: Sequence[Asked], note: Note) -> Iterator[Sequence[Outcome]]:
        from gateau_dagster.models.memory import out_of_memory_reason, unless_out_of_memory

        shown = [self._shown(each) for each in batch]
        longest = max(len(each.ids) for each in shown)
        tokens = len(batch) * (longest + max(each.question.generation.max_new_tokens for each in batch))
        if len(batch) == 1 or tokens <= self._fitting:
            made = unless_out_of_memory(lambda: self._generated(batch, shown, note))
            if made is not None:
                yield made
                return
            self._fitting = min(self._fitting, tokens // 2)
            if len(batch) == 1:
                reason = out_of_memory_reason(longest, "lower evaluation.input_length, or use a larger device")
                yield [Reject(sample_id=batch[0].question.question_id, reason=reason, short_of_memory=True)]
                return
        half = len(batch) // 2
        yield from self._answered(batch[:half], note)
        yield from self._answered(batch[half:], note)

    def _generated(self, batch: Sequence[Asked], shown: Sequence[Shown], note: Note) -> list[Answer]:
        from gateau_dagster.evaluation.generation.decoding import Wanted, decode

        wanted = [
            Wanted(ids=each.ids, generation=asked.question.generation, draws=asked.draws)
            for asked, each in zip(batch, shown, strict=True)
        ]
        most = max(each.generation.max_new_tokens for each in wanted)
        beside = plural(len(wanted), "question") + (" side by side" if len(wanted) > 1 else "")
        note(f"{beside}: reading {sum(len(each.ids) for each in shown):,} tokens")
        started = time.perf_counter()
        decoded = decode(
            self._loaded, wanted, self._endings, lambda said: note(f"{beside}: token {said:,} of at most {most:,}")
        )
        seconds = time.perf_counter() - started
        tokens = [len(each.ids) + said.tokens for each, said in zip(shown, decoded, strict=True)]
        return [
            Answer(
                question_id=asked.question.question_id,
                turn=asked.turn,
                digest=asked.question.digest,
                prompt=each.text,
                answer=said.text.removeprefix(each.gap),
                prompt_tokens=len(each.ids),
                cut_tokens=each.cut_tokens,
                answer_tokens=said.tokens,
                finish_reason="stop" if said.ended else "length",
                seconds=seconds * size / sum(tokens),
            )
            for asked, each, said, size in zip(batch, shown, decoded, tokens, strict=True)
        ]
