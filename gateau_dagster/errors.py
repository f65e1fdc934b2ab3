"""The two ways in which work for a user can fail: the whole of it, or one sample of it. What they say is no secret."""

import re

# Credentials by their place in an address, or by their own shape.
_SECRETS = (
    re.compile(r"(?<=://)[^\s/@]*:(?!\d+/)[^\s@]*(?=@)|(?<=://)[^\s/@]+(?=@)"),
    re.compile(r"(?i)(?<=[?&;])(?:x-amz-(?:signature|credential|security-token)|signature|token)=[^\s&;'\"]+"),
    re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}|sk-[\w-]{20,})"),
)


def redacted(text: str) -> str:
    """The text with *** for what looks like a secret: libraries tell an address with all that is in it."""
    for secret in _SECRETS:
        text = secret.sub("***", text)
    return text


class GateauError(ValueError):
    """The run cannot go on. The message names the cause and the cure, and is printed without a traceback."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redacted(message))


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
