"""Estimate the memory of a plan's training runs, name settings that would fit, and refuse runs that cannot fit.

The arithmetic is that of `training.memory_plan`, which also resolves levers on `auto`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateau_dagster.config import Config
from gateau_dagster.config.training import LoraConfig, TrainingConfig, check_sequence_parallel
from gateau_dagster.errors import GateauError
from gateau_dagster.models.model_facts import facts_of
from gateau_dagster.models.shapes import alike
from gateau_dagster.pipeline.checks import checked_plan
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.planned_training import mixed_lengths, training_recipes
from gateau_dagster.pipeline.recipes import Recipe
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.token_rates import token_rates
from gateau_dagster.training.deepspeed_config import agreed_deepspeed_config, deepspeed_config
from gateau_dagster.training.memory_plan import (
    PARTS,
    USABLE,
    Levers,
    MemoryPlan,
    ModelSizes,
    choose_levers,
    levers_plan,
)
from gateau_dagster.training.readiness import check_heads

if TYPE_CHECKING:
    from transformers.configuration_utils import PreTrainedConfig

GIB = 2**30
CARDS = (24, 48, 80, 141)
"""GiB of common GPUs, for plans on a machine that has none."""
_MOST_GPUS = 1024
_STEP = 1024  # tokens, of the longest pass that fits
_SHORT_STEP = 128  # of the longest row that a cure names
_LONGEST = 2**24


@dataclass(frozen=True, kw_only=True)
class TrainingMemory:
    """The memory of one rank of a training run.

    tokens: number of tokens of its longest pass.
    memory: bytes by part; None if they are not known, with the reason in `unknown`.
    gpu_bytes: bytes of each GPU; None if they are not known.
    on_cpu: whether training runs on this machine without a GPU.
    approximate: whether it may need more, because some layers are not softmax attention or tiles could not be tried.
    longest: tokens of the longest pass that fits, by bytes of a GPU; 0: none fits.
    ranks: number of ranks that share this machine's memory.
    cures: settings that would make it fit, if it does not.
    """

    asset: str
    tokens: int
    memory: MemoryPlan | None
    levers: Levers
    gpu_bytes: int | None
    on_cpu: bool
    approximate: bool
    longest: Mapping[int, int]
    ranks: int
    cures: Sequence[str]
    unknown: str = ""

    @property
    def fits(self) -> bool:
        """Return whether the memory fits into a GPU with a reserve for uncounted memory; True if it is not known."""
        if self.memory is None or self.gpu_bytes is None:
            return True
        return self.memory.device_bytes <= USABLE * self.gpu_bytes

    @property
    def impossible(self) -> bool:
        """Return whether a GPU is known to have too little memory."""
        if self.memory is None or self.gpu_bytes is None or self.approximate:
            return False
        return self.memory.device_bytes > self.gpu_bytes


def planned_memory(state: State, plan: Plan) -> list[TrainingMemory]:
    """Return for each asset of a plan the memory of the training run that needs most.

    Raises:
        GateauError: training.deepspeed cannot be used, or the settings ask for tiles that the model does not allow.
    """
    found: list[TrainingMemory] = []
    for asset, recipes in training_recipes(state, plan).items():
        # Variants with equal settings differ in their data, which determine the longest pass.
        longest: dict[str, tuple[int, Config]] = {}
        for recipe in recipes:
            tokens, settings = _pass_tokens(state, plan, recipe), recipe.config.training.model_dump_json()
            longest[settings] = max(
                longest.get(settings, (0, recipe.config)), (tokens, recipe.config), key=lambda x: x[0]
            )
        each = [_memory(asset, config, tokens) for tokens, config in longest.values()]
        found.append(max(each, key=lambda one: 0 if one.memory is None else one.memory.device_bytes))
    return found


def check_training_memory(state: State, plan: Plan | None = None) -> None:
    """Check that the GPUs, as far as they are known, can hold the training runs of a plan.

    Args:
        plan: None: the plan of a run.

    Raises:
        GateauError: a training run does not fit; the message holds its memory by part, and settings that would fit.
    """
    plan = checked_plan(state) if plan is None else plan
    # Variants may have other GPUs than the single run. Looking for those here takes seconds: only if something trains.
    trained = [each.config.training for recipes in training_recipes(state, plan).values() for each in recipes]
    if all(gpu_bytes(each) is None for each in trained):
        return
    for each in planned_memory(state, plan):
        if each.impossible and each.memory is not None and each.gpu_bytes is not None:
            parts = ", ".join(f"{part} {gib(each.memory.device[part])}" for part in PARTS if each.memory.device[part])
            cures = " No setting of `training` makes it fit: take a smaller model, or GPUs with more memory."
            if each.cures:
                cures = " It fits with one of these in `training`:" + "".join(f"\n  {cure}" for cure in each.cures)
            raise GateauError(
                "training.memory",
                f"{each.asset}: a pass of {each.tokens:,} tokens takes {gib(each.memory.device_bytes)} of a GPU that "
                f"has {gib(each.gpu_bytes)} ({parts}).{cures}",
            )


def gpu_bytes(training: TrainingConfig) -> int | None:
    """Return the bytes of each GPU that trains, as configured or as found on this machine; None if not known."""
    if training.gpu_memory is not None:
        return int(training.gpu_memory * GIB)
    if training.launcher is not None or training.hostfile is not None:
        return None
    import torch

    found = [torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())]
    return min(found, default=None)


def gib(size: float) -> str:
    """Return a number of bytes as text in GiB."""
    return f"{size / GIB:,.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:,.1f} MiB"


def _pass_tokens(state: State, plan: Plan, recipe: Recipe) -> int:
    """Return the tokens of the longest pass of a rank, by the sequences of the mix, or the lengths of the samples if
    the mix is out of date.
    """
    training, accepted = recipe.config.training, state.index.accepted
    row = training.row_tokens
    if (mixed := mixed_lengths(state, plan, recipe)) is not None:
        row = min(row, int(mixed.sum() if training.packs else mixed.max()))  # pyright: ignore
    elif accepted.height and not training.mix.without_long:
        lengths = (accepted["characters"] / token_rates(state, training.model).context).clip(
            upper_bound=training.max_length
        )
        row = min(row, int(float(lengths.sum() if training.packs else lengths.max()) + 1))  # pyright: ignore
    return row * training.batch_size


def _memory(asset: str, config: Config, tokens: int) -> TrainingMemory:
    training, known = config.training, facts_of(config, config.training.model)
    given = gpu_bytes(training)
    on_cpu = given is None and training.launcher is None and training.hostfile is None
    here = training.processes if training.launcher is None and training.hostfile is None else 1
    common: dict[str, Any] = {"asset": asset, "tokens": tokens, "gpu_bytes": given, "on_cpu": on_cpu, "ranks": here}
    nothing: dict[str, Any] = {"memory": None, "levers": Levers(), "approximate": True, "longest": {}, "cures": ()}
    if known.config is None:
        return TrainingMemory(**common, **nothing, unknown=known.missing)
    try:
        sizes = ModelSizes.known(known.config)
    except GateauError as error:
        return TrainingMemory(**common, **nothing, unknown=str(error))
    tiles = False if on_cpu or training.tiled_mlp == "off" else _tiles(known.config, training)
    sizes = replace(sizes, tileable=tiles is not False)
    deepspeed = agreed_deepspeed_config(training, folder=config.folder)
    levers = choose_levers(training, sizes, tokens=tokens, deepspeed=deepspeed, device_bytes=given)
    device = "cpu" if on_cpu else "cuda"
    memory = levers_plan(training, sizes, levers, tokens=tokens, deepspeed=deepspeed, device=device)
    longest = partial(longest_pass, training, sizes, deepspeed=deepspeed)
    cards = [] if on_cpu else [given] if given is not None else [card * GIB for card in CARDS]
    found = TrainingMemory(
        **common,
        memory=memory,
        levers=levers,
        approximate=tiles is None or not alike(known.config.get_text_config(decoder=True)),
        longest={card: longest(gpu_bytes=card) for card in cards},
        cures=(),
    )
    if found.fits or given is None:
        return found
    options = {"tokens": tokens, "gpu_bytes": given, "deepspeed": deepspeed}
    cures = tuple(_cures(training, sizes, **options, model=known.config, folder=config.folder))
    return TrainingMemory(**{**vars(found), "cures": cures})


def _tiles(model_config: PreTrainedConfig, training: TrainingConfig) -> bool | None:
    """Return whether training on GPUs may compute feed-forward layers in tiles, tried on a small model of its kind.

    None means that no small model could be built.

    Raises:
        GateauError: the settings ask for tiles, but its layers cannot be tiled.
    """
    from gateau_dagster.training.readiness import NoSmallModelError, small_model, tileable

    try:
        return tileable(small_model(model_config), training, cuda=True)
    except NoSmallModelError:
        return None


def longest_pass(
    training: TrainingConfig,
    sizes: ModelSizes,
    *,
    deepspeed: dict[str, Any] | None,
    gpu_bytes: int,
    step: int = _STEP,
) -> int:
    """Return the most tokens of a pass that fits, a multiple of `step`; 0 if none does."""
    # By bisection: levers on `auto` change with the length, so no formula can be solved for it.
    least, most = 0, _LONGEST // step
    while least < most:
        middle = (least + most + 1) // 2
        if _fits(training, sizes, tokens=middle * step, deepspeed=deepspeed, gpu_bytes=gpu_bytes):
            least = middle
        else:
            most = middle - 1
    return least * step


def _fits(
    training: TrainingConfig, sizes: ModelSizes, *, tokens: int, deepspeed: dict[str, Any] | None, gpu_bytes: int
) -> bool:
    levers = choose_levers(training, sizes, tokens=tokens, deepspeed=deepspeed, device_bytes=gpu_bytes)
    needed = levers_plan(training, sizes, levers, tokens=tokens, deepspeed=deepspeed).device_bytes
    return needed <= USABLE * gpu_bytes


def _divisible(training: TrainingConfig, model: PreTrainedConfig, count: int) -> bool:
    """Return whether `count` ranks can share the sequences of this training."""
    try:
        check_sequence_parallel(training)
        check_heads(model, count, name="")
    except GateauError:
        return False
    return True


def _cures(
    training: TrainingConfig,
    sizes: ModelSizes,
    *,
    tokens: int,
    gpu_bytes: int,
    deepspeed: dict[str, Any] | None,
    model: PreTrainedConfig,
    folder: Path,
) -> Iterator[str]:
    """Yield single changes of `training` that would make it fit, the cheapest first.

    If there is none, yield changes that make shorter rows fit.
    """
    levers: dict[str, Any] = {"gradient_checkpointing": True, "every_n_layers": 1}
    levers |= {"offload_activations": "auto", "tiled_mlp": "auto"}
    missing = {name: value for name, value in levers.items() if getattr(training, name) != value}
    steps: dict[str, Any] = {"sequences_per_step": None, "tokens_per_step": None, "gradient_accumulation": 2}
    fits = partial(_fits, sizes=sizes, gpu_bytes=gpu_bytes)
    shown = ", ".join(f"{name}: {str(value).lower()}" for name, value in missing.items())
    also = f", {shown}" if shown else ""

    def changed(**changes: Any) -> TrainingConfig:
        return training.model_copy(update=missing | steps | changes)

    if missing and fits(changed(), tokens=tokens, deepspeed=deepspeed):
        yield shown
        return
    enough = False
    if training.lora is None and fits(changed(lora=LoraConfig()), tokens=tokens, deepspeed=deepspeed):
        yield f"lora: {{}}{also}"
        enough = True
    offloading = deepspeed_config("zero3_offload", folder=folder)
    if training.lora is None and fits(changed(), tokens=tokens, deepspeed=offloading):
        plan = partial(levers_plan, changed(), sizes, tokens=tokens, deepspeed=offloading)
        chosen = choose_levers(changed(), sizes, tokens=tokens, deepspeed=offloading, device_bytes=gpu_bytes)
        yield f"deepspeed: zero3_offload{also}; {gib(plan(chosen).host_bytes)} of the host's memory for each rank"
        enough = True
    spread = deepspeed_config("zero3", folder=folder)
    for name, shares in (("", False), ("sequence_parallel", True)):
        count = 2 * training.processes if training.processes > 1 else 2
        while count <= _MOST_GPUS:
            changes = {"processes": count} | ({name: count} if shares else {})
            divides = not shares or _divisible(changed(**changes, deepspeed="zero3"), model, count)
            if divides and fits(changed(**changes), tokens=tokens, deepspeed=spread):
                together = f", sequence_parallel: {count}" if shares else ""
                yield f"processes: {count}{together}, deepspeed: zero3{also}"
                enough = True
                break
            count *= 2
    ways: list[tuple[str, TrainingConfig, dict[str, Any] | None]] = [("", changed(), deepspeed)]
    if training.lora is None:
        ways.append(("lora: {}, ", changed(lora=LoraConfig()), deepspeed))
        ways.append(("deepspeed: zero3_offload, ", changed(), offloading))
    for way, config, zero in ways:
        longest = longest_pass(config, sizes, deepspeed=zero, gpu_bytes=gpu_bytes, step=_SHORT_STEP)
        if longest >= training.batch_size * _SHORT_STEP:
            yield f"{way}{_shorter(training, longest // training.batch_size)}{also}"
            enough = True
        if enough:
            return


def _shorter(training: TrainingConfig, tokens: int) -> str:
    """Return the settings of rows of at most this many tokens."""
    keys = ["pack_length"] if training.packs else []
    if not training.packs or training.max_length > tokens:
        keys.append("max_length")
    return ", ".join(f"{key}: {tokens}" for key in keys)
