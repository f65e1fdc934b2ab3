"""Switch torch's attention to FlashAttention 3, for scoring and training on a Hopper GPU."""

import importlib.util

import torch
from torch.nn.attention import (
    activate_flash_attention_impl,
    current_flash_attention_impl,
    list_flash_attention_impls,
)

from gateau_dagster.errors import GateauError

_NAME, _PACKAGE = "FA3", "flash_attn_interface"
_HOPPER = 9  # major compute capability that the kernels are written for


def use_flash_attention_3(device: torch.device, *, key: str) -> None:
    """Let every later attention in half precision on `device` run FlashAttention 3, until the process ends.

    Args:
        device: of the model.
        key: the setting that asks for it, for messages.

    Raises:
        GateauError: the device, torch or the installed packages do not have it.
    """
    if current_flash_attention_impl() == _NAME:
        return
    check_flash_attention_3(device, key=key)
    try:
        activate_flash_attention_impl(_NAME)
    except (ImportError, RuntimeError, OSError) as error:
        reason = f"its kernels cannot be loaded ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
        raise _refusal(reason, key) from error


def check_flash_attention_3(device: torch.device, *, key: str) -> None:
    """Check that FlashAttention 3 exists for `device`, without loading it; see `use_flash_attention_3`."""
    lack = _lack(device)
    if lack is not None:
        raise _refusal(lack, key)


def _refusal(reason: str, key: str) -> GateauError:
    return GateauError(
        "models.attention",
        f"{key}: fa3 cannot be used: {reason}. Install flash-attn-3 on a machine with a Hopper GPU (H100, H200), or "
        f"set {key}: auto.",
    )


def _lack(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"it runs on a GPU, but the device is {device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    if major != _HOPPER:
        return f"it needs compute capability {_HOPPER}.0, but this GPU has {major}.{minor}"
    if _NAME not in list_flash_attention_impls():
        return f"torch {torch.__version__} does not offer it"
    if importlib.util.find_spec(_PACKAGE) is None:
        return f"the module {_PACKAGE} is not installed"
    return None
