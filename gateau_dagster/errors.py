"""The two ways in which work for a user can fail: the whole of it, or one sample of it."""


class GateauError(ValueError):
    """The run cannot go on. The message names the cause and the cure, and is printed without a traceback."""


class UnscorableSampleError(ValueError):
    """One sample cannot be scored; its message becomes the `reason` in the rejected table and the run goes on."""


class ShortOfMemoryError(UnscorableSampleError):
    """One sample does not fit into memory; unlike other rejects it is tried again under other memory settings."""


class TransientError(GateauError):
    """A failure that may pass: a server that does not answer. Dagster tries the step again, with back-off."""


class UnforeseenError(GateauError):
    """A step failed in a way that nobody foresaw: nothing that the user can mend, but a defect of this product.

    kind: the name of what was raised; trace: where, as text.
    """

    def __init__(self, message: str, *, kind: str, trace: str) -> None:
        super().__init__(message)
        self.kind, self.trace = kind, trace


class MissingUpstreamError(GateauError):
    """An output cannot be computed because one that it reads is not there yet."""

    def __init__(self, asset: str, partition: str | None, missing: tuple[str, str | None]) -> None:
        name = missing[0] if missing[1] is None else f"{missing[0]}[{missing[1]}]"
        super().__init__(
            f"{asset}{'' if partition is None else f'[{partition}]'} needs {name}, which is not in the store. "
            f"Materialise {missing[0]} first, or run `gateau run`, which brings everything that is needed up to date."
        )
