"""Train specifications one after another, by the ranks of one launch or alone, and keep every step's gradients.

As a module it is one rank: `python -m torch.distributed.run … -m tests.training.gradients FOLDER SPEC…`.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gateau_dagster.models.training_attention import NAME as WHOLE_ROW
from gateau_dagster.training.dataset import MixRows
from gateau_dagster.training.deepspeed_config import join_by_gloo
from gateau_dagster.training.launch import TrainingSpec, training_environment
from gateau_dagster.training.model import load_base
from gateau_dagster.training.train import make_trainer, plan_of, read_mix, training_arguments

Step = dict[str, Tensor]
"""The gradient of every trained parameter before clipping, and the `loss`."""


class _Recorder(TrainerCallback):
    def __init__(self, trainer: Any) -> None:
        self._trainer, self._gradients, self.steps = trainer, dict[str, Tensor](), list[Step]()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        engine = self._trainer.deepspeed if self._trainer.is_deepspeed_enabled else None
        if engine is None:
            return
        step = engine.step

        def keep_and_step(*arguments: Any, **options: Any) -> Any:
            if engine.is_gradient_accumulation_boundary():
                from deepspeed.utils import safe_get_full_grad

                self._keep(safe_get_full_grad)
            return step(*arguments, **options)

        engine.step = keep_and_step

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        if not self._trainer.is_deepspeed_enabled:
            self._keep(lambda parameter: parameter.grad)

    def _keep(self, gradient_of: Any) -> None:
        named = [(name, each) for name, each in self._trainer.model.named_parameters() if each.requires_grad]
        self._gradients = {name: gradient_of(each).detach().clone() for name, each in named}

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        if "loss" in logs:
            self.steps.append({**self._gradients, "loss": torch.tensor(logs["loss"])})


def recorded(spec: TrainingSpec) -> list[Step]:
    """Train as `train` does, without outputs; return every step."""
    mix = read_mix(spec.mix, weighted=spec.training.weighs_in_mix)
    plan = plan_of(spec, mix)
    long_prefix = spec.training.row_tokens // 4 if spec.training.loss == "exact" else None
    rows = MixRows(mix, plan, skip=spec.training.skip, seed=spec.training.seed, long_prefix=long_prefix)
    arguments = training_arguments(spec, steps=plan.steps, cpu=True)
    arguments.save_strategy = "no"  # pyright: ignore[reportAttributeAccessIssue]
    if spec.deepspeed is not None:
        join_by_gloo()
    model, tokenizer = load_base(spec, longest=rows.farthest)
    trainer = make_trainer(spec, model, tokenizer, arguments, rows)
    recorder = _Recorder(trainer)
    trainer.add_callback(recorder)
    trainer.train()
    return recorder.steps


def recorded_by_ranks(specs: Sequence[TrainingSpec], folder: Path) -> list[list[Step]]:
    """Return the steps of each training, all by the ranks of one launch."""
    (ranks,) = {spec.training.processes for spec in specs}
    paths = [folder / f"{number}.json" for number in range(len(specs))]
    for spec, path in zip(specs, paths, strict=True):
        spec.save(path)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launch, "-m", __name__, str(folder), *map(str, paths)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **training_environment(processes=ranks, cuda=False)},
        text=True,
        capture_output=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [list(_read(folder, number)) for number in range(len(specs))]


def _read(folder: Path, number: int) -> Any:
    for step in count():
        path = folder / f"{number}-{step}.safetensors"
        if not path.exists():
            return
        yield load_file(path)


def _forget() -> None:
    """Undo what a training leaves in its process, so that another one can follow."""
    from deepspeed.runtime.sequence_parallel import parallel_state_sp

    parallel_state_sp._release_sequence_parallel_groups()
    if WHOLE_ROW in ALL_ATTENTION_FUNCTIONS._local_mapping:
        del ALL_ATTENTION_FUNCTIONS[WHOLE_ROW]  # DeepSpeed's wrapper
    AcceleratorState._reset_state()
    PartialState._reset_state()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for number, path in enumerate(sys.argv[2:]):
        for step, kept in enumerate(recorded(TrainingSpec.load(Path(path)))):
            if os.environ["RANK"] == "0":
                save_file(kept, place / f"{number}-{step}.safetensors")
        _forget()
