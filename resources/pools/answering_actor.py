"""Answer a benchmark's questions in a worker on a node of a Ray cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateau_dagster.evaluation.generation.asked import Asked, Outcome
from gateau_dagster.evaluation.generation.in_process import InProcess
from gateau_dagster.evaluation.generation.prompts import Prompts
from resources.pools.node_actor import NodeActor


@dataclass(frozen=True, kw_only=True)
class AskedPiece:
    """Questions that are answered together: those of `asked` that are in `missing`; see `Engine.answers`."""

    asked: Sequence[Asked]
    missing: frozenset[str]


class AnsweringActor(NodeActor):
    """A worker that answers questions. `NodeTask.more` is the template of the prompts."""

    def _done(self, piece: AskedPiece) -> list[Outcome]:
        config, loaded = self._task.config, self._model()
        with self._lock:
            self._look = replace(self._look, in_hand=piece.missing)
        prompts = Prompts(
            tokenizer=loaded.tokenizer,
            template=self._task.more,
            max_length=config.scoring.max_length,
            input_length=config.evaluation.input_length,
        )
        engine = InProcess(loaded, prompts, batch_tokens=config.scoring.batch_tokens)
        return [outcome for group in engine.answers(piece.asked, piece.missing) for outcome in group]
