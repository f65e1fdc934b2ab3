"""Check what a training needs besides its data, before anything is loaded or launched."""

import importlib.util
from collections.abc import Callable

from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.errors import GateauError

_PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "mlflow": ("mlflow",)}
_WITHOUT_LIGER = "Install liger-kernel on a machine with a GPU, or set training.liger to false."


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def check_packages(training: TrainingConfig, *, installed: Callable[[str], bool] = _installed) -> None:
    """Check that the packages that the settings name are installed.

    Raises:
        GateauError: a package of `training.report_to`, liger-kernel or peft is missing.
    """
    for name in training.report_to:
        if not any(installed(package) for package in _PACKAGES[name]):
            raise GateauError(
                "training.package",
                f"training.report_to: {name} is not installed. Run `pip install {name}` in this environment, or "
                "remove it from the list.",
            )
    if training.liger and not installed("liger_kernel"):
        raise GateauError(
            "training.package", f"training.liger: the package liger-kernel is not installed. {_WITHOUT_LIGER}"
        )
    if training.lora is not None and not installed("peft"):
        raise GateauError(
            "training.package",
            "training.lora: the package peft is not installed. Run `pip install peft`, or remove lora.",
        )


def check_device(training: TrainingConfig, *, cuda: bool) -> None:
    """Check that the training machine supports the settings.

    Raises:
        GateauError: float16 or Liger without a GPU.
    """
    if training.dtype == "float16" and not cuda:
        raise GateauError("training.no_gpu", "training.dtype float16 needs a GPU. Use bfloat16 or float32.")
    if training.liger and not cuda:
        raise GateauError(
            "training.no_gpu",
            f"training.liger: Liger's kernels need a GPU, and this machine has none. {_WITHOUT_LIGER}",
        )


def check_ranks(training: TrainingConfig, *, ranks: int) -> None:
    """Check that the number of running ranks is the one that the batches are planned for.

    Raises:
        GateauError: they differ.
    """
    if ranks != training.processes:
        raise GateauError(
            "training.processes",
            f"training.processes is {training.processes}, but {ranks} rank(s) run. It counts the ranks on all "
            "machines: set it to what training.launcher starts, or correct the launcher.",
        )
