"""A result on its way from the device to the host, while the device goes on with the next batch."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gateau_dagster.models.forward import Float64


class HostCopy:
    """A copy of a float64 tensor [n], begun now and waited for when it is read.

    From a GPU the copy goes to pinned memory behind the work already queued; Python does not wait for either.
    """

    def __init__(self, tensor: Tensor) -> None:
        queued = tensor.device.type == "cuda"
        self._host = tensor.to("cpu", non_blocking=queued)  # non_blocking makes the target pinned
        self._event = torch.cuda.Event() if queued else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(tensor.device))

    @property
    def ready(self) -> bool:
        """Whether reading it takes no waiting."""
        return self._event is None or self._event.query()

    @cached_property
    def array(self) -> Float64:
        """The values [n], once the copy is there."""
        if self._event is not None:
            self._event.synchronize()
        return np.asarray(self._host.numpy(), dtype=np.float64)
