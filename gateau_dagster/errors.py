"""The two ways in which work for a user can fail: the whole of it, or one sample of it."""


class GateauError(ValueError):
    """The run cannot go on. The message names the cause and the cure; the command line prints it without a traceback."""


class UnscorableSampleError(ValueError):
    """One sample cannot be scored; its message becomes the `reason` in the rejected table and the run goes on."""
