"""The most memory that a piece of scoring held: on CUDA what torch allocated, on the CPU the process's resident set."""

import resource
import sys
from pathlib import Path

import torch

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_PEAK = "5"


class PeakMemory:
    """Starts at the current use; `read` gives the peak since then.

    CUDA: `torch.cuda.max_memory_allocated`, of the fullest GPU when a model is spread over several. CPU: the peak of
    the process's resident set (VmHWM), which Linux lets a process reset; where it does not, the peak since the process
    started, and `since_start` is true.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.since_start = False
        if self._cuda:
            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)
        else:
            self.since_start = not _reset_resident_peak()

    def read(self) -> int:
        """Bytes."""
        if self._cuda:
            return max(torch.cuda.max_memory_allocated(index) for index in range(torch.cuda.device_count()))
        return _resident_peak() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


# Kibibytes on Linux, bytes on macOS.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def _reset_resident_peak() -> bool:
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def _resident_peak() -> int | None:
    """VmHWM in bytes; None where there is no such file."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None
