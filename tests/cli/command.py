"""What the fixture `command` is: `gateau ...` in this process."""

from collections.abc import Callable

Outcome = tuple[int, str, str]
"""Its status, what stands on the terminal, and what on the error stream."""
Command = Callable[..., Outcome]
