"""Plan the memory of training: what one device and its host hold at the peak of an optimiser step, by part.

`choose_levers` uses it to choose the levers that make a pass fit into a GPU's memory.

The arithmetic follows the tensors that torch keeps. For the backward pass, a layer keeps its residual stream and the
inputs of its matrices, with fp32 copies of its norms. It also keeps queries, keys, values and output of the attention,
and the intermediate values of its feed-forward part. With gradient checkpointing, only its input is kept, and the
layers are recomputed one by one.

A step can have its peak at four moments. *loss*: all layers' tensors are kept, and a chunk of logits exists.
*backward*: the last layer's gradients are computed. *embedding*: almost all gradients exist. *update*: the optimiser's
temporaries exist.
"""

# Why arithmetic and not a trial pass: `gateau plan` may run on a machine without the GPUs, and must answer before
# scoring has cost anything. Estimators of accelerate and DeepSpeed count weights, gradients and optimiser only. With
# long rows, activations are most of the memory.
#
# What it costs: the model is built without weights, which takes about a second. What it is worth: within 4 % of the
# peak where it was measured on a GPU, and within 11 % on a CPU (docs/how-to/long-training.md). CUDA's context,
# fragmentation and NCCL are not counted, so USABLE leaves room for them.
#
# When another way is better: torch's memory snapshots show which tensors exist in a real step. Use them if a pass does
# not fit although the plan says so.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gateau_dagster.models.model_config import first_of, spans_of
from gateau_dagster.models.shapes import EXPERTS_A_TOKEN, model_without_weights

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel
    from transformers.configuration_utils import PreTrainedConfig

    from gateau_dagster.config.training import TrainingConfig

PARTS = ("weights", "gradients", "optimiser", "checkpoints", "attention", "mlp", "loss")

_FLOAT = 4  # bytes of float32
_WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
_WINDOW_ROWS = 63  # of a block of a sliding window, as in `attention_kernels`, without the first
_LIVE = 1_000_000_000  # DeepSpeed's stage3_max_live_parameters: gathered weights that ZeRO-3 keeps for their next use
_SUB_GROUP = 1_000_000_000  # DeepSpeed's sub_group_size: weights that ZeRO-3 updates at once


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """The sizes of one decoder layer; widths are elements per token.

    weights: number of parameters. matrices: number of parameters that autocast copies, which excludes experts.
    readers: linear layers of attention and feed-forward part that read the hidden states.
    heads, keys: width of all queries and of all keys. head: width of one head.
    fused: one matrix makes queries, keys and values, and its output stays as long as the values do.
    span: tokens that a query attends to; None: all.
    norms: number of norms of the hidden states. head_norms: width of the normalised queries and keys.
    plain: whether the norms are torch's LayerNorm, which keeps only its input.
    up, down: output width of the first matrix and input width of the last matrix of the feed-forward part.
    activation: elements that the activation function keeps for each of its inputs, without its output.
    chosen: experts per token; 0: no experts. With experts, up and down are those of one expert.
    experts: number of weights of the experts.
    adapted: total input and output width of the linear layers, for low-rank adapters.
    """

    weights: int
    matrices: int
    readers: tuple[int, int]
    heads: int
    keys: int
    head: int
    fused: bool
    span: int | None
    norms: int
    head_norms: int
    plain: bool
    up: int
    down: int
    activation: int
    chosen: int
    experts: int
    adapted: int

    @property
    def gated(self) -> bool:
        """Return whether the feed-forward part multiplies two branches."""
        return self.up == 2 * self.down


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """The sizes of a decoder in parameters: all `weights`, the word `embedding` and the output layer `head`.

    tied: whether the output layer is the embedding, which counts once in `weights`.
    tileable: whether the feed-forward layers may be computed in tiles, see `readiness.tileable`.
    """

    layers: tuple[LayerSizes, ...]
    weights: int
    embedding: int
    vocabulary: int
    hidden: int
    tied: bool
    tileable: bool = True

    @classmethod
    def of(cls, model: PreTrainedModel) -> ModelSizes:
        """Return the sizes of a model before adapters are added; it may be on the device `meta`.

        `layers` is empty if no layers are found.
        """
        from gateau_dagster.models.last_layers import layers_of

        config: Any = model.config.get_text_config(decoder=True)
        embedding: Any = model.get_input_embeddings().weight
        output: Any = model.get_output_embeddings()
        hidden, layers = _shape(embedding)[1], layers_of(model)
        spans = spans_of(config)
        if len(spans) != len(layers):  # the configuration names none, or counts layers differently
            spans = (None,) * len(layers)
        return cls(
            layers=tuple(_layer_sizes(layer, config, hidden, span) for layer, span in zip(layers, spans, strict=True)),
            weights=sum(map(_numel, model.parameters())),
            embedding=_numel(embedding),
            vocabulary=_shape(embedding)[0],
            hidden=hidden,
            tied=output is not None and output.weight is embedding,
        )

    @classmethod
    def known(cls, config: PreTrainedConfig) -> ModelSizes:
        """Return the sizes of a model of this configuration, built without weights.

        Raises:
            GateauError: the model cannot be built, or its layers are not found.
        """
        return cls.of(model_without_weights(config)[0])

    def adapters(self, rank: int) -> int:
        """Return the parameters of low-rank adapters on all linear layers of the decoder's layers."""
        return rank * sum(layer.adapted for layer in self.layers)


def _layer_sizes(layer: nn.Module, config: Any, hidden: int, span: int | None) -> LayerSizes:
    from torch import nn

    from gateau_dagster.models.last_layers import output_projection

    projection = output_projection(layer)
    attention = next((part for part in layer.modules() if projection in [*part.children()]), None)
    inside = {*()} if attention is None else {*attention.modules()}
    linear = {part: sizes for part in layer.modules() if (sizes := _linear_sizes(part)) is not None}
    heads = linear[projection][0] if projection in linear else 0
    queries = [sizes for part, sizes in linear.items() if part in inside and part is not projection]
    others = [sizes for part, sizes in linear.items() if part not in inside and part is not projection]
    ups = [out for into, out in others if into == hidden]
    up, down, chosen = sum(ups), max((into for into, out in others if out == hidden), default=0), 0
    experts = [shape for weight in layer.parameters() if len(shape := _shape(weight)) == 3]
    adapted = sum(map(sum, linear.values()))
    if experts:
        chosen = int(first_of(config, *EXPERTS_A_TOKEN) or 1)
        wide = [size for shape in experts for size in shape[1:] if size != hidden]
        up, down = max(wide), min(wide)
        # peft: as many ranks as experts; the gate and its branch share a matrix and get twice as many.
        adapted += sum(shape[0] * sum(shape[1:]) * (2 if up > down and up in shape else 1) for shape in experts)
    keys = max(0, sum(out for _, out in queries) - heads) // 2
    norms = [part for part in layer.modules() if _is_norm(part)]
    widths = [_numel(next(part.parameters())) for part in norms]
    return LayerSizes(
        weights=sum(map(_numel, layer.parameters())),
        matrices=sum(_numel(each) for each in layer.parameters() if len(_shape(each)) == 2),
        readers=(len(queries), len(ups)),
        heads=heads,
        keys=keys,
        head=getattr(config, "head_dim", None) or hidden // (getattr(config, "num_attention_heads", None) or 1),
        fused=len(queries) == 1 and getattr(config, "rope_parameters", None) is not None,
        span=span,
        norms=widths.count(hidden),
        head_norms=heads + keys if any(width != hidden for width in widths) else 0,
        plain=any(isinstance(part, nn.LayerNorm) for part in norms),
        up=up,
        down=down,
        activation=next((_kept_numbers(part) for part in layer.modules() if _is_activation(part)), 1),
        chosen=chosen,
        experts=sum(map(math.prod, experts)),
        adapted=adapted,
    )


def _shape(weight: Any) -> tuple[int, ...]:
    # ZeRO-3 leaves an empty tensor in place of a partitioned weight, and its shape in `ds_shape`.
    return tuple(getattr(weight, "ds_shape", weight.shape))


def _numel(weight: Any) -> int:
    return math.prod(_shape(weight))


def _is_norm(part: nn.Module) -> bool:
    return "Norm" in type(part).__name__ and any(True for _ in part.parameters(recurse=False))


def _is_activation(part: nn.Module) -> bool:
    own = type(part).__module__ in {"torch.nn.modules.activation", "transformers.activations"}
    return own and next(part.parameters(), None) is None


def _kept_numbers(activation: nn.Module) -> int:
    """Return the elements that autograd keeps for each input of an activation function, without its output.

    A single torch function keeps its input. GPT-2's GELU, composed of products and a tanh, keeps three more elements.
    """
    import torch

    inputs = torch.ones(2, device="cpu", requires_grad=True)
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape == inputs.shape:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = activation(inputs)
    kept.pop(output.untyped_storage()._cdata, None)
    return len(kept)


def _linear_sizes(part: nn.Module) -> tuple[int, int] | None:
    """Return inputs and outputs of a linear layer; None for other modules."""
    from torch import nn

    if isinstance(part, nn.Linear):
        return part.in_features, part.out_features
    if type(part).__name__ == "Conv1D":  # GPT-2
        into, out = _shape(part.weight)
        return into, out
    return None


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """A rank's share under DeepSpeed, and the parts kept in the host's memory. stage 0: a rank holds everything."""

    stage: int = 0
    ranks: int = 1
    deepspeed: bool = False
    offloads_optimiser: bool = False
    offloads_weights: bool = False
    bucket: int = 0  # gradients that are reduced at once

    @classmethod
    def of(cls, config: Mapping[str, Any] | None, *, ranks: int, hidden: int) -> Sharding:
        """Return the sharding of a resolved DeepSpeed configuration."""
        if config is None:
            return cls(ranks=ranks)
        zero = config["zero_optimization"]
        bucket = zero.get("reduce_bucket_size", 500_000_000)
        return cls(
            stage=zero["stage"],
            ranks=ranks,
            deepspeed=True,
            offloads_optimiser=zero.get("offload_optimizer", {}).get("device", "none") != "none",
            offloads_weights=zero.get("offload_param", {}).get("device", "none") != "none",
            bucket=hidden**2 if bucket == "auto" else int(bucket),
        )

    def part(self, stage: int) -> float:
        """Return a rank's share of the tensors that are partitioned from this stage on."""
        return 1 / self.ranks if self.stage >= stage else 1.0


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One forward and backward pass of a rank, and the way in which it is computed.

    tokens: number of tokens of all its rows; with sequence parallelism, of the rank's part.
    trained: number of tokens with loss; None: all.
    every: with checkpointing, every `every`-th layer is recomputed, from the first on; the others keep everything.
    tile: tokens that the feed-forward part computes at a time; None: all.
    offloads: whether the layers' checkpoints are kept in the host's memory.
    accumulates: whether gradients of an earlier pass exist.
    device: the type of the device, cpu or cuda.
    """

    tokens: int
    dtype: str
    trained: int | None = None
    checkpointing: bool = False
    every: int = 1
    rank: int | None = None  # of the adapters
    drops: bool = False  # whether they have dropout
    chunked: bool = True
    tile: int | None = None
    offloads: bool = False
    accumulates: bool = False
    sharding: Sharding = Sharding()
    device: str = "cuda"

    @classmethod
    def of(
        cls,
        training: TrainingConfig,
        sharding: Sharding,
        *,
        tokens: int,
        trained: int | None = None,
        device: str = "cuda",
        offloads: bool = False,
        tile: int | None = None,
    ) -> Pass:
        """Return the pass of a section `training` over rows of `tokens` tokens in all."""
        return cls(
            tokens=-(-tokens // training.sequence_parallel),
            trained=trained,
            dtype=training.dtype,
            checkpointing=training.gradient_checkpointing,
            every=training.every_n_layers,
            rank=None if training.lora is None else training.lora.rank,
            drops=training.lora is not None and training.lora.dropout > 0,
            chunked=training.chunked_loss,
            tile=tile,
            offloads=offloads,
            accumulates=training.passes_per_step > 1,
            sharding=sharding,
            device=device,
        )


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes by part (`PARTS`) at the peak of a step, and in the host's memory for one rank."""

    moment: str
    device: Mapping[str, int]
    host: Mapping[str, int]

    @property
    def device_bytes(self) -> int:
        """Return the bytes of the device at the peak."""
        return sum(self.device.values())

    @property
    def host_bytes(self) -> int:
        """Return the bytes of the host, for one rank."""
        return sum(self.host.values())


def memory_plan(sizes: ModelSizes, run: Pass) -> MemoryPlan:
    """Return the plan of one rank."""
    moments = _Moments(sizes=sizes, run=run)
    found = dict(moments.each())
    fullest = max(found, key=lambda name: sum(found[name].values()))
    whole = {part: round(found[fullest].get(part, 0)) for part in PARTS}
    return MemoryPlan(moment=fullest, device=whole, host={key: round(value) for key, value in moments.host().items()})


Bytes = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class _Moments:
    sizes: ModelSizes
    run: Pass

    @property
    def _half(self) -> bool:
        return self._width == 2

    @property
    def _width(self) -> int:
        return _WIDTHS[self.run.dtype]

    @property
    def _autocast(self) -> bool:
        return self._half and not self.run.sharding.deepspeed

    @property
    def _stream(self) -> int:
        # Bytes per element. Autocast leaves the residual stream in float32.
        return _FLOAT if self._autocast else self._width

    @property
    def _whole(self) -> bool:
        # Without adapters, the model's own weights are trained.
        return self.run.rank is None

    @cached_property
    def _trained(self) -> int:
        return self.sizes.weights if self.run.rank is None else self.sizes.adapters(self.run.rank)

    @property
    def _present(self) -> int:
        return self.sizes.weights + (0 if self._whole else self._trained)

    def each(self) -> Iterator[tuple[str, Bytes]]:
        """Yield the bytes by part of each moment."""
        gradients, head = self._gradients(), self._head_gradient()
        before = gradients if self.run.accumulates else 0.0
        always: Bytes = {"weights": self._weights(), "optimiser": self._optimiser()}
        saved, stream = self._saved(), float(self._stream * self.run.tokens * self.sizes.hidden)
        checkpointing = self.run.checkpointing
        layer = max(self.sizes.layers, key=lambda one: sum(self._kept(one, recomputed=checkpointing).values()))
        kept = self._kept(layer, recomputed=checkpointing)
        copies, own_copy = sum(map(self._copy, self._copied())), self._copy(layer)
        running = _sum(always, saved, {"weights": copies + self._gathered()})
        yield "forward", _sum(running, {"gradients": before}, self._forward(layer))
        yield "loss", _sum(running, {"gradients": max(before, head)}, self._loss())
        backward = _sum(always, {"weights": self._gathered(), "loss": stream}, self._backward(layer))
        recomputed = checkpointing and (len(self.sizes.layers) - 1) % self.run.every == 0
        first = {"weights": sum(map(self._copy, self._plain)) + own_copy * recomputed, "gradients": max(before, head)}
        yield "backward of the last layer", _sum(backward, saved, kept if recomputed else {}, first)
        alone = {} if self.run.offloads or not checkpointing else {"checkpoints": stream}
        last = {"weights": own_copy, "gradients": gradients}
        yield "backward of the first layer", _sum(backward, alone, kept, last)
        twice = _FLOAT * self.sizes.embedding * (self._whole and self.sizes.tied)
        embedding = {"weights": self._gathered(), "gradients": gradients + twice, "loss": stream}
        yield "backward of the embedding", _sum(always, embedding)
        yield "update", _sum(always, {"gradients": gradients, "optimiser": self._update()})

    # What stays

    def _weights(self) -> float:
        sharding = self.run.sharding
        if not sharding.deepspeed:
            return float(_FLOAT * self._present)
        if sharding.offloads_weights:
            return 0.0
        return self._width * self._present * sharding.part(3)

    def _gathered(self) -> float:
        """Return the bytes of the weights that ZeRO-3 has gathered and keeps for their next use."""
        sharding = self.run.sharding
        if sharding.stage < 3 or (sharding.ranks == 1 and not sharding.offloads_weights):
            return 0.0
        return float(self._width * min(self._present, _LIVE))

    def _gradients(self) -> float:
        """Return the bytes of the gradients of all trained weights."""
        sharding = self.run.sharding
        if not sharding.deepspeed:
            return float(_FLOAT * self._trained * (2 if sharding.ranks > 1 else 1))  # DDP sends copies
        bucket = 2.0 * self._width * min(sharding.bucket, self._trained) * (sharding.stage > 1)
        if sharding.offloads_optimiser:
            return bucket
        return self._width * self._trained * sharding.part(2) + bucket

    def _optimiser(self) -> float:
        sharding = self.run.sharding
        if sharding.offloads_optimiser:
            return 0.0
        if not sharding.deepspeed:
            return 2.0 * _FLOAT * self._trained
        return 3.0 * _FLOAT * self._trained * sharding.part(1)

    def _update(self) -> float:
        """Return the bytes of the temporaries of the optimiser's update."""
        sharding = self.run.sharding
        if sharding.offloads_optimiser:
            return 0.0
        own = self._trained * sharding.part(1)
        if not sharding.deepspeed:  # torch updates all weights at once on CUDA, one after another on the CPU
            largest = max(self.sizes.embedding, 1) if self._whole else 0
            return float(_FLOAT * (own if self.run.device == "cuda" else largest))
        return 2.0 * _FLOAT * (min(own, _SUB_GROUP) if sharding.stage == 3 else own)

    # The layers

    def _across(self) -> int:
        return self.run.tokens if self.run.tile is None else min(self.run.tile, self.run.tokens)

    def _kept(self, layer: LayerSizes, *, recomputed: bool = False) -> Bytes:
        """Return the bytes that one layer keeps for its backward pass; if `recomputed`, without its input."""
        w, r, hidden, tokens = self._width, self._stream, self.sizes.hidden, self.run.tokens
        copy = _FLOAT if w < _FLOAT else 0  # norms compute in float32
        readers = layer.readers[0] if self._autocast else min(layer.readers[0], 1)  # autocast copies for each
        low = w * (self.run.rank or 0)
        before = min(layer.norms, 2)  # norms of the residual stream; the others norm what is added to it
        after = layer.norms - before
        if layer.plain:
            normed = after * w * hidden
        else:
            normed = before * hidden * ((copy if r < _FLOAT else 0) + r * self._whole)
            normed += (after * hidden + layer.head_norms) * (_FLOAT + w * self._whole)
        attended = w * 2 * (layer.heads + layer.keys) + _FLOAT * layer.heads / layer.head
        if layer.fused:
            attended += w * (layer.heads + layer.keys)
        if low and self._autocast:
            attended += w * layer.heads + r * hidden  # adapters read copies, and their output is added
        if self.run.device == "cpu" and layer.span is not None and layer.span < tokens:
            attended += w * layer.heads + w * (layer.span + _WINDOW_ROWS)  # blocks of rows with masks, and their union
        streams = r * hidden * (1 if recomputed else 2)
        attended += self._dropped() * (layer.readers[0] * hidden + layer.heads)
        attention = streams + normed + w * hidden * readers + attended + low * (layer.readers[0] + 1)
        mlp = self._feed_forward(layer) if self.run.tile is None else r * hidden  # with tiles, only their input
        return {"attention": attention * tokens, "mlp": float(mlp * tokens)}

    def _forward(self, layer: LayerSizes) -> Bytes:
        """Return the largest bytes of temporaries in one layer's forward pass."""
        r, hidden = self._stream, self.sizes.hidden
        if not self.run.checkpointing and self.run.tile is None:
            return {}
        return {"mlp": float(self._inner(layer) * self._across()), "attention": 2.0 * r * hidden * self.run.tokens}

    def _backward(self, layer: LayerSizes) -> Bytes:
        """Return the largest bytes that the backward pass of one layer adds to the kept tensors."""
        w, r, tokens = self._width, self._stream, self.run.tokens
        each = r * layer.chosen or w
        inner = each * layer.down * (2 if layer.gated or layer.activation > 1 else 1)
        if self.run.rank and self._autocast and not layer.chosen:
            inner += _FLOAT * layer.down  # adapters turn their input into float32
        if self.run.drops:
            inner += r * layer.down
        mlp = float(inner * self._across())
        if self.run.tile is not None:  # a tile is computed once more, and the gradients by all tiles' input are kept
            mlp += self._feed_forward(layer) * self._across() + r * self.sizes.hidden * tokens
        # Gradients of queries, keys and values, and of their rotation; the feed-forward part is done with then.
        rotated = float(tokens * (w * (layer.heads + 2 * layer.keys) + 4 * r * layer.heads))
        done = self._kept(layer)["mlp"] if self.run.checkpointing else 0.0
        return {"mlp": mlp, "attention": max(0.0, rotated - done - mlp)}

    def _feed_forward(self, layer: LayerSizes) -> float:
        """Return the bytes that the feed-forward part of one layer keeps per token."""
        w, hidden = self._width, self.sizes.hidden
        readers = layer.readers[1] if self._autocast else min(layer.readers[1], 1)
        kept = w * hidden * readers + self._inner(layer) + w * (self.run.rank or 0) * (layer.readers[1] + 1)
        kept += self._dropped() * (layer.readers[1] * hidden + layer.down)
        # Experts read and write in the type of their weights.
        return kept + layer.chosen * 2 * self._stream * hidden

    def _dropped(self) -> int:
        # CUDA saves a mask of bytes; the CPU saves the factors, in the type of the stream.
        return self.run.drops * (1 if self.run.device == "cuda" else self._stream)

    def _inner(self, layer: LayerSizes) -> float:
        width = self._stream * layer.chosen or self._width  # autocast leaves experts in the type of their weights
        return width * (layer.up + layer.down * (layer.activation + layer.gated))

    def _adapted_experts(self, layer: LayerSizes) -> float:
        # peft adds the adapters to the weights of all experts in each pass, and keeps the sums.
        return 0.0 if self._whole else float(self._stream * layer.experts)

    @property
    def _plain(self) -> Sequence[LayerSizes]:
        """Return the layers that keep everything for the backward pass."""
        layers = self.sizes.layers
        if not self.run.checkpointing:
            return layers
        return [layer for index, layer in enumerate(layers) if index % self.run.every]

    @property
    def _checkpoints(self) -> int:
        return len(self.sizes.layers) - len(self._plain)

    def _saved(self) -> Bytes:
        one = float(self._stream * self.run.tokens * self.sizes.hidden)
        checkpoints = min(2, self._checkpoints) if self.run.offloads else self._checkpoints
        return _sum({"checkpoints": one * checkpoints}, *map(self._kept, self._plain))

    def _copied(self) -> Sequence[LayerSizes]:
        # Autocast caches the copies of weights that are trained.
        return self.sizes.layers if self._whole else self._plain

    def _copy(self, layer: LayerSizes) -> float:
        return self._width * layer.matrices * self._autocast + self._adapted_experts(layer)

    # The output layer

    def _head_gradient(self) -> float:
        # It exists from the loss on, which computes it while the logits exist.
        return float(_FLOAT * self.sizes.embedding) if self._whole else 0.0

    def _loss(self) -> Bytes:
        """Return the bytes of the loss's tensors at the end of the forward pass."""
        from gateau_dagster.training.response_loss import chunk_rows

        w, r, tokens, hidden, vocabulary = (
            self._width, self._stream, self.run.tokens, self.sizes.hidden, self.sizes.vocabulary,
        )  # fmt: skip
        states = tokens * hidden * (r + (r if self._whole else 0) + (_FLOAT if r < _FLOAT else 0))
        if not self.run.chunked:
            return {"loss": float(states + tokens * vocabulary * 3 * _FLOAT)}  # logits, their softmax, its gradient
        trained = tokens if self.run.trained is None else min(self.run.trained, tokens)
        rows = min(trained, chunk_rows(self.run.device, vocabulary))
        chunk = rows * vocabulary * (_FLOAT + max(w if self._half else 0, _FLOAT if self.run.device == "cuda" else 0))
        matrix = w * self.sizes.embedding * ((1 if self._autocast else 0) + (1 if self._whole and self._half else 0))
        return {"loss": float(states + trained * hidden * (r + _FLOAT) + chunk + matrix)}

    # The host

    def host(self) -> Bytes:
        """Return the bytes in the host's memory of one rank."""
        sharding, kept = self.run.sharding, 0.0
        if self.run.offloads and self.run.checkpointing:
            one = self._stream * self.run.tokens * self.sizes.hidden
            # torch rounds blocks of pinned memory up to a power of two.
            one = 2 ** math.ceil(math.log2(one)) if self.run.device == "cuda" else one
            kept = float(self._checkpoints * one)
        own = self._trained * sharding.part(1)
        gradients = own * (_FLOAT + (self._width if sharding.stage == 3 else 0)) if sharding.offloads_optimiser else 0
        # Each rank loads all weights in float32 before it passes them on; under ZeRO-3 it loads its part.
        loaded = 0.0 if sharding.stage == 3 or self.run.device == "cpu" else float(_FLOAT * self.sizes.weights)
        waiting = self._width * self._present * sharding.part(3) if sharding.offloads_weights else 0.0
        return {
            "weights": max(loaded, waiting),
            "gradients": gradients,
            "optimiser": 3.0 * _FLOAT * own if sharding.offloads_optimiser else 0.0,
            "checkpoints": kept,
        }


def _sum(*parts: Mapping[str, float]) -> Bytes:
    whole: Bytes = {}
    for each in parts:
        for part, value in each.items():
            whole[part] = whole.get(part, 0.0) + value
    return whole


TILE_TOKENS = 32_768
"""Tokens of a tile that keep a GPU busy: with smaller tiles the layer takes longer."""
USABLE = 0.9
"""Share of the GPU's memory that training may plan with: the CUDA context and fragmentation take the rest."""


@dataclass(frozen=True, kw_only=True)
class Levers:
    """The levers that a training run uses.

    offload: whether each layer's input is kept in the host's memory. tile_tokens: tokens that a feed-forward layer
    computes at a time; None: all.
    """

    offload: bool = False
    tile_tokens: int | None = None


def choose_levers(
    training: TrainingConfig,
    sizes: ModelSizes,
    *,
    tokens: int,
    deepspeed: dict[str, Any] | None,
    device_bytes: int | None,
) -> Levers:
    """Return the levers that are set and, for `auto`, the cheapest choice that fits.

    Args:
        training: the settings.
        sizes: sizes of the model; without layers `auto` uses no lever.
        tokens: number of tokens of the longest pass.
        deepspeed: the resolved DeepSpeed configuration.
        device_bytes: memory of the GPU; None on a CPU, where `auto` uses no lever.
    """
    tiles: list[int | None] = [None, TILE_TOKENS]
    if training.tiled_mlp != "auto":
        tiles = [None if training.tiled_mlp == "off" else training.tiled_mlp]
    elif not sizes.tileable or device_bytes is None or (training.lora is not None and training.lora.dropout > 0):
        tiles = [None]
    offloads = [False, True]
    if training.offload_activations != "auto":
        offloads = [training.offload_activations == "on"]
    elif device_bytes is None or not training.gradient_checkpointing:
        offloads = [False]
    choices = [Levers(offload=offload, tile_tokens=tile) for offload in offloads for tile in tiles]
    if device_bytes is None or not sizes.layers:
        return choices[0]
    # In the order of their price: tiles compute a layer once more, offloading copies each input to the host and back.
    fitting = (
        each
        for each in choices
        if levers_plan(training, sizes, each, tokens=tokens, deepspeed=deepspeed).device_bytes <= USABLE * device_bytes
    )
    # If none fits, take them all and try: the arithmetic may be wrong by some percent.
    return next(fitting, choices[-1])


def levers_plan(
    training: TrainingConfig,
    sizes: ModelSizes,
    levers: Levers,
    *,
    tokens: int,
    deepspeed: dict[str, Any] | None,
    device: str = "cuda",
) -> MemoryPlan:
    """Return a rank's memory in a pass over `tokens` tokens with these levers; ranks may share the pass."""
    sharding = Sharding.of(deepspeed, ranks=training.processes, hidden=sizes.hidden)
    tile = levers.tile_tokens
    run = Pass.of(training, sharding, tokens=tokens, device=device, offloads=levers.offload, tile=tile)
    return memory_plan(sizes, run)
