"""How many tokens a batch of prompts may hold: what the user allows, or less where the device's memory ends before."""

from weakref import WeakKeyDictionary

from torch import nn

from gateau_dagster.scoring.loading import LoadedModel

# Tokens that fitted where more did not, for as long as the model is loaded: the next shard does not try again.
_fitting: "WeakKeyDictionary[nn.Module, int]" = WeakKeyDictionary()


class TokenBudget:
    """The bound for one model; it only shrinks.

    It does not grow back: a batch half as large costs a few per cent of speed, while every attempt at the larger one
    costs a whole pass and leaves the device's memory in pieces.
    """

    def __init__(self, loaded: LoadedModel, allowed: int) -> None:
        assert allowed > 0
        self._model = loaded.model
        self._allowed = allowed

    @property
    def tokens(self) -> int:
        """Tokens that a batch of several prompts may hold."""
        return min(self._allowed, _fitting.get(self._model, self._allowed))

    def halve(self, failed: int) -> None:
        """A batch of `failed` tokens did not fit."""
        _fitting[self._model] = max(1, min(failed, self.tokens) // 2)
