"""Two levers that reduce the memory of training: checkpoints in the host's memory, and feed-forward layers in tiles.

A feed-forward layer processes every token separately, so tiles give the same result as the whole row, whatever its
documents are. Only one tile's intermediate values exist at a time. The forward pass keeps only the layer's input. The
backward pass computes each tile once more, with its gradients, and adds these up in float32 or better. The idea is that
of DeepSpeed's TiledMLP (Arctic Long Sequence Training, arXiv 2506.13996), which this module does not use: it computes
the backward pass without autocast, and its gradients reach DistributedDataParallel once per tile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from transformers import PreTrainedModel

from gateau_dagster.models.last_layers import feed_forward, layers_of
from gateau_dagster.models.memory import is_out_of_memory
from gateau_dagster.models.probe import ROUNDING, probe_ids, probed_states

Layer = Callable[[Tensor], Tensor]
_PROBE = 5  # tokens


def why_untiled(model: PreTrainedModel) -> str | None:
    """Return why the feed-forward layers of `model` cannot be tiled; None if they can. Leaves the model unchanged.

    Under ZeRO-3 all ranks must call it: it runs the model on a few tokens.
    """
    parts = _parts(model)
    if not parts:
        return "its feed-forward layers are not found"
    if any(isinstance(each, nn.Dropout) and each.p > 0 for part in parts for each in part.modules()):
        return "its feed-forward layers have dropout"
    plain = _states(model)
    with _tiled(parts, tokens=2):
        try:
            difference = float((_states(model) - plain).norm() / plain.norm())
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise  # it does not depend on the model
            return f"its feed-forward layers fail on a part of the tokens ({str(error).partition(chr(10))[0]})"
    return None if difference <= ROUNDING[plain.dtype] else "a part of the tokens comes out otherwise than in the whole"


def tile_feed_forward(model: PreTrainedModel, *, tokens: int, longest: int | None = None) -> None:
    """Let the feed-forward layers of `model` compute at most `tokens` tokens at a time.

    Call it after adapters and Liger's kernels are in place, if `why_untiled` had no objection.

    Args:
        model: a causal language model.
        tokens: number of tokens of a tile.
        longest: tokens of the longest pass. If given, every pass has as many tiles as this one. ZeRO-3 needs this,
            because each tile gathers the layer's weights from all ranks.
    """
    _tile(_parts(model), tokens=tokens, count=None if longest is None else -(-longest // tokens))


def tile_tokens(model: nn.Module) -> int | None:
    """Return the tokens of a tile in the model's feed-forward layers; None if they are not tiled."""
    found = (vars(module).get("forward") for module in model.modules())
    return next(
        (each.keywords["tokens"] for each in found if isinstance(each, partial) and each.func is _forward), None
    )


def _parts(model: PreTrainedModel) -> list[nn.Module]:
    return [part for layer in layers_of(model) for part in feed_forward(layer)]


def _states(model: PreTrainedModel) -> Tensor:
    ids = probe_ids(model, _PROBE)[None]
    borders = torch.tensor([0, _PROBE], dtype=torch.int32, device=ids.device)  # for attention within documents
    return probed_states(model, input_ids=ids, cu_seq_lens_q=borders, cu_seq_lens_k=borders)


def _tile(parts: Sequence[nn.Module], *, tokens: int, count: int | None) -> None:
    for part in parts:
        # The method is replaced, and no module put around: parameters keep their names, which checkpoints and adapters
        # use.
        part.forward = partial(_forward, module=part, layer=part.forward, tokens=tokens, count=count)


@contextmanager
def _tiled(parts: Sequence[nn.Module], *, tokens: int) -> Iterator[None]:
    own = [vars(part).get("forward") for part in parts]
    _tile(parts, tokens=tokens, count=None)
    try:
        yield
    finally:
        for part, forward in zip(parts, own, strict=True):
            if forward is None:
                del part.forward
            else:
                part.forward = forward


def _forward(states: Tensor, *, module: nn.Module, layer: Layer, tokens: int, count: int | None) -> Tensor:
    """Replace the forward of a feed-forward layer, over states [..., hidden]."""
    tiles = count or -(-states[..., 0].numel() // tokens)
    if tiles <= 1:
        return layer(states)
    trained = [each for each in module.parameters() if each.requires_grad]
    # ZeRO-3 keeps a part of each weight, so that no gradient of the whole weight can be returned to it.
    returned = [] if any(hasattr(each, "ds_id") for each in trained) else trained
    output = _Tiles.apply(states, layer, tiles, trained, *returned)
    assert isinstance(output, Tensor)
    return output


class _Tiles(torch.autograd.Function):
    """A layer over tiles of tokens; its gradients by the states and by the parameters given last."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, layer: Layer, tiles: int, trained: list[nn.Parameter], *returned: nn.Parameter
    ) -> Tensor:
        kind = states.device.type
        ctx.save_for_backward(states)
        ctx.layer, ctx.tiles, ctx.trained, ctx.returned = layer, tiles, trained, returned
        # Without a cache: a weight that is converted here, without gradients, must not serve other passes.
        ctx.precision = partial(
            torch.autocast,
            kind,
            dtype=torch.get_autocast_dtype(kind),
            enabled=torch.is_autocast_enabled(kind),
            cache_enabled=False,
        )
        with ctx.precision():
            first, *others = _split(states, tiles)
            output = layer(first)
            whole = output.new_empty(states[..., 0].numel(), output.shape[-1])
            begin = output.shape[1]
            whole[:begin] = output[0]
            for tile in others:
                whole[begin : begin + tile.shape[1]] = layer(tile)[0]
                begin += tile.shape[1]
        return whole.view(*states.shape[:-1], -1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        (states,) = ctx.saved_tensors
        by_states = torch.zeros_like(states, memory_format=torch.contiguous_format)
        sums: list[Tensor | None] = [None] * len(ctx.returned)
        pairs = zip(_split(states, ctx.tiles), _split(gradients[0], ctx.tiles), strict=True)
        into = _split(by_states, ctx.tiles)
        for index, (tile, by_output) in enumerate(pairs):
            leaf = tile.detach().requires_grad_()
            with torch.enable_grad(), ctx.precision():
                output = ctx.layer(leaf)
            if ctx.returned or not ctx.trained:
                by_leaf, *found = torch.autograd.grad(output, (leaf, *ctx.returned), by_output, allow_unused=True)
                sums = [_added(total, one) for total, one in zip(sums, found, strict=True)]
            else:
                for each in ctx.trained:  # DeepSpeed reduces a gradient only once all tiles have added to it
                    each.ds_grad_is_ready = index == ctx.tiles - 1
                torch.autograd.backward(output, by_output)
                by_leaf = leaf.grad
            if by_leaf is not None:
                into[index].copy_(by_leaf)
        weights = [
            None if total is None else total.to(each.dtype) for total, each in zip(sums, ctx.returned, strict=True)
        ]
        return by_states, None, None, None, *weights


def _split(states: Tensor, tiles: int) -> tuple[Tensor, ...]:
    # Always `tiles` parts, some empty if there are fewer tokens: under ZeRO-3 all ranks gather the weights equally
    # often.
    return states.reshape(1, -1, states.shape[-1]).tensor_split(tiles, dim=1)


def _added(total: Tensor | None, one: Tensor | None) -> Tensor | None:
    if one is None:
        return total
    exact = one.to(torch.promote_types(one.dtype, torch.float32))
    return exact if total is None else total.add_(exact)


_CHECKPOINT = "_gradient_checkpointing_func"  # transformers' attribute of every checkpointed module


def offload_checkpoints(model: nn.Module) -> None:
    """Keep the inputs of checkpointed layers for the backward pass in the host's memory instead of the GPU's.

    This frees layers x tokens x hidden size elements on the GPU. Gradient checkpointing must be on. Both copies are
    asynchronous, from and to pinned memory, in the order of the GPU's work. transformers has the same switch, which
    fails where there is no GPU.
    """
    for module in model.modules():
        if hasattr(module, _CHECKPOINT):
            setattr(module, _CHECKPOINT, partial(_offloaded, checkpoint=getattr(module, _CHECKPOINT)))


def has_offloaded_checkpoints(model: nn.Module) -> bool:
    """Return whether a layer's checkpoints are offloaded."""
    functions = [getattr(module, _CHECKPOINT, None) for module in model.modules()]
    return any(isinstance(each, partial) and each.func is _offloaded for each in functions)


def _offloaded(layer: Callable[..., Any], *inputs: Any, checkpoint: Callable[..., Any]) -> Any:
    # `checkpoint` saves its inputs outside its own hooks, and `save_on_cpu` then moves them.
    with save_on_cpu(pin_memory=any(getattr(each, "is_cuda", False) for each in inputs)):
        return checkpoint(layer, *inputs)
