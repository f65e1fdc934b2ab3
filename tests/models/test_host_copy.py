"""A copy holds the values as they were asked for, and says whether it is there."""

import numpy as np
import pytest
import torch

from gateau_dagster.models.host_copy import HostCopy


def test_on_the_cpu_it_is_there_at_once() -> None:
    copy = HostCopy(torch.tensor([1.0, 2.5], dtype=torch.float64))
    assert copy.ready
    assert copy.array.dtype == np.float64 and copy.array.tolist() == [1.0, 2.5]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_it_waits_only_when_it_is_read() -> None:
    values = torch.arange(2**20, dtype=torch.float64, device="cuda")
    torch.cuda._sleep(200_000_000)
    copy = HostCopy(values)
    assert not copy.ready
    assert copy.array.tolist() == list(range(2**20))
    assert copy.ready
