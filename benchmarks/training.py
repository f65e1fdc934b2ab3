"""Training on packed rows against padded batches, on documents as ragged as real ones, and the memory of the loss.

    .venv/bin/python benchmarks/training.py --out build/benchmarks/training.json
    .venv/bin/python benchmarks/training.py --lengths-from long.jsonl.gz --short-from sharegpt.json

Both sides make the forward and backward passes over the same documents, in turns, in one process, as the pipeline's
collators join them: padded batches of --rows documents with transformers' own sdpa attention and a mask, and rows of up
to --pack-length tokens with attention within documents. Both compute the loss in chunks over the labelled rows only, so
that the ratio is of the batching alone; --all-logits adds the padded side with the model's own loss. A useful token is
a document's token. Lengths are drawn from what real files hold, long instructions and short chats (built-in quantiles,
or --lengths-from and --short-from), all divided by --shrink, so that a CPU can take them and they stay as ragged, and
cut at --longest. The loss over all documents must agree to 1e-5, or the exit status is 1.

The loss alone, forward and backward, is measured in a process each, at --loss-tokens tokens: peak memory above what is
held before.

So are the levers that save memory, over a packed row of --lever-tokens tokens with gradient checkpointing, off and on
(offloaded checkpoints, feed-forward layers in tiles of an eighth of the row): peak memory and time. And how far the
gradients of bfloat16 are from those of float32, without and with each lever.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import common
import torch
from common_models import add_run_options, build_model, shape_of
from transformers import PreTrainedModel

from gateau_dagster.data.forms import turns_of
from gateau_dagster.data.readers import read_records
from gateau_dagster.data.sources import Record, resolve_files
from gateau_dagster.models.training_attention import attend_within_documents
from gateau_dagster.training.batch_plan import pack
from gateau_dagster.training.dataset import Batch, PadRight, SideBySide, TrainingDocument
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.memory_levers import offload_checkpoints, tile_feed_forward
from gateau_dagster.training.response_loss import summed_nll, use_chunked_loss

SPEED_TARGET, MEMORY_TARGET, LOSS_TOLERANCE, DRIFT_TARGET = 2.0, 1 / 8, 1e-5, 1.01
_HIDDEN = 64  # of the loss measured alone: small, so that memory is the logits'
_CHARACTERS_PER_TOKEN = 4  # of English text, roughly

Lengths = list[tuple[int, int]]
"""For each document: its tokens, and the number of those that are the response's."""

# The middles of the twentieths of 142 long instructions of LongAlign's form and of 500 short chats.
_LONG = (3017, 3614, 3964, 4078, 4559, 5482, 6018, 6563, 6753, 7148)
_LONG += (8049, 8426, 9933, 10743, 12348, 14152, 17669, 20865, 25940, 35024)
_LONG_RESPONSES = (5, 7, 8, 9, 16, 23, 25, 31, 41, 45, 63, 68, 76, 96, 107, 139, 255, 399, 423, 522)
_SHORT = (22, 25, 26, 27, 28, 29, 30, 31, 31, 32, 34, 35, 37, 52, 56, 58, 59, 61, 62, 68)
_SHORT_RESPONSES = (18, 19, 19, 21, 21, 21, 22, 22, 23, 23, 25, 25, 27, 44, 47, 47, 50, 51, 51, 56)


def built_in() -> tuple[Lengths, Lengths]:
    """Return (long, short). Responses do not depend on the context's length: they are mixed by a fixed step."""
    long = [(tokens, _LONG_RESPONSES[7 * index % len(_LONG)]) for index, tokens in enumerate(_LONG)]
    return long, list(zip(_SHORT, _SHORT_RESPONSES, strict=True))


def read_lengths(path: Path) -> Lengths:
    """Return the lengths of the conversations of an input file, by characters. Other records are left out.

    Raises:
        ValueError: the file holds no conversation with an answer.
    """
    found = []
    for record in (record for file in resolve_files(str(path), Path()) for record in read_records(file)):
        turns = turns_of(record.value) if isinstance(record, Record) and isinstance(record.value, dict) else None
        total = sum(len(turn.content) for turn in turns or ())
        answers = sum(len(turn.content) for turn in turns or () if turn.role == "assistant")
        if answers >= _CHARACTERS_PER_TOKEN and total > answers:
            found.append((total // _CHARACTERS_PER_TOKEN, answers // _CHARACTERS_PER_TOKEN))
    if not found:
        raise ValueError(f"{path.name} holds no conversation with an answer")
    return found


def draw(long: Lengths, short: Lengths, options: argparse.Namespace) -> list[TrainingDocument]:
    """Return documents in random order, a share of them long: lengths divided by `shrink`, then cut at `longest`.

    Dividing all lengths alike keeps how ragged they are, which cutting them does not.
    """
    rng = random.Random(options.seed)
    count, shrink, longest = options.documents, options.shrink, options.longest
    lengths = [rng.choice(long if index < round(count * options.long_share) else short) for index in range(count)]
    rng.shuffle(lengths)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    documents = []
    for row, (total, answer) in enumerate(lengths):
        tokens, response = max(2, min(total // shrink, longest)), max(1, answer // shrink)
        ids = torch.randint(options.vocabulary, (tokens,), generator=generator)
        labels = ids.clone()
        labels[: max(1, tokens - response)] = IGNORED
        documents.append(TrainingDocument(row=row, input_ids=ids, labels=labels, positions=torch.arange(tokens)))
    return documents


def padded_batches(documents: Sequence[TrainingDocument], *, rows: int, device: str) -> Iterator[Batch]:
    """Yield batches of documents as they come, `rows` at a time, padded on the right to the longest."""
    collate = PadRight(pad_token_id=0)
    for begin in range(0, len(documents), rows):
        yield _model_inputs(collate([[each] for each in documents[begin : begin + rows]]), device)


def packed_batches(documents: Sequence[TrainingDocument], *, pack_length: int, device: str) -> Iterator[Batch]:
    """Yield rows of documents side by side."""
    collate, lengths = SideBySide(), [len(each.input_ids) for each in documents]
    for row in pack(lengths, range(len(documents)), pack_length=pack_length):
        yield _model_inputs(collate([[documents[index] for index in row]]), device)


def _model_inputs(batch: Batch, device: str) -> Batch:
    """Return the batch on the device, without the places in the mix, which the trainer takes out, too."""
    inputs = {name: value for name, value in batch.items() if name != "row"}
    return {name: value.to(device) if torch.is_tensor(value) else value for name, value in inputs.items()}


def run_over(model: PreTrainedModel, batches: list[Batch], labels: int) -> float:
    """Run forward and backward pass of every batch; return the mean loss over all labels."""
    model.zero_grad()
    total = torch.zeros((), device=model.device)
    for batch in batches:
        loss = model(**batch, num_items_in_batch=labels, use_cache=False).loss
        loss.backward()
        total += loss.detach()
    return total.item()


def models(options: argparse.Namespace) -> dict[str, PreTrainedModel]:
    """Return a model with the same weights for every side."""
    loaded = build_model(shape_of(options), name="trained", dtype=getattr(torch, options.dtype), device=options.device)
    plain = loaded.model.train().requires_grad_(True)
    padded, packed = deepcopy(plain), deepcopy(plain)
    use_chunked_loss(padded)
    attend_within_documents(packed)
    use_chunked_loss(packed)
    found = {"padded": padded, "packed": packed}
    return found | {"padded, all logits": plain} if options.all_logits else found


def speed(options: argparse.Namespace, documents: list[TrainingDocument]) -> dict[str, Any]:
    """Measure useful tokens a second of each side, their ratio, and how far the losses are apart."""
    padded = list(padded_batches(documents, rows=options.rows, device=options.device))
    packed = list(packed_batches(documents, pack_length=options.pack_length, device=options.device))
    labels = sum(int((each.labels != IGNORED).sum()) for each in documents)
    tokens = sum(len(each.input_ids) for each in documents)
    losses: dict[str, float] = {}
    candidates: dict[str, Callable[[], object]] = {}
    for name, model in models(options).items():
        batches = packed if name == "packed" else padded

        def work(name: str = name, model: PreTrainedModel = model, batches: list[Batch] = batches) -> None:
            losses[name] = run_over(model, batches, labels)

        work()  # warm, and the losses are there
        candidates[name] = work
    seconds = common.interleaved(candidates, options.repetitions, torch.device(options.device))
    return {
        "documents": len(documents),
        "useful_tokens": tokens,
        "labels": labels,
        "padded_tokens": sum(batch["input_ids"].numel() for batch in padded),
        "seconds": seconds,
        "useful_tokens_per_second": {
            name: common.Spread.of([tokens / time for time in t]) for name, t in seconds.items()
        },
        "ratio": {name: common.ratios(times, seconds["packed"]) for name, times in seconds.items() if name != "packed"},
        "losses": losses,
        "loss_difference": max(losses.values()) - min(losses.values()),
    }


def loss_peak(options: argparse.Namespace, way: str) -> int:
    """Return bytes above what was held, of the loss and its gradients, in this process."""
    device = torch.device(options.device)
    states = torch.randn(options.loss_tokens, _HIDDEN, device=device, requires_grad=True)
    weight = torch.randn(options.vocabulary, _HIDDEN, device=device, requires_grad=True)
    targets = torch.randint(options.vocabulary, (options.loss_tokens,), device=device)
    base = common.memory_held(device)
    peak = common.PeakMemory(device)
    if way == "chunked":
        loss = summed_nll(states, weight, None, targets)
    else:
        loss = torch.nn.functional.cross_entropy((states @ weight.t()).float(), targets, reduction="sum")
    loss.backward()
    return peak.read() - base


def lever_model(options: argparse.Namespace, *, tokens: int, offload: bool, tile: bool) -> PreTrainedModel:
    """Return a float32 model with gradient checkpointing and these levers, for rows of `tokens` tokens.

    The tiles of the feed-forward layers are an eighth of the row. On a CPU offloaded checkpoints stay where they are.
    """
    shape = replace(shape_of(options), layers=2, intermediate=options.lever_intermediate)
    model = build_model(shape, name="trained", dtype=torch.float32, device=options.device).model
    model.train().requires_grad_(True)
    attend_within_documents(model)
    use_chunked_loss(model)
    model.activation_checkpointing_enable({"use_reentrant": False})
    if offload:
        offload_checkpoints(model)
    if tile:
        tile_feed_forward(model, tokens=tokens // 8)
    return model


def lever_row(options: argparse.Namespace, *, tokens: int) -> list[Batch]:
    """Return one packed row of 16 documents, with a response that is a sixteenth of each, at least one token."""
    length, generator = tokens // 16, torch.Generator().manual_seed(options.seed)
    documents = []
    for row in range(16):
        ids = torch.randint(options.vocabulary, (length,), generator=generator)
        labels = ids.clone()
        labels[: length - max(1, length // 16)] = IGNORED
        documents.append(TrainingDocument(row=row, input_ids=ids, labels=labels, positions=torch.arange(length)))
    batches = list(packed_batches(documents, pack_length=tokens, device=options.device))
    assert len(batches) == 1
    return batches


def levers_peak(options: argparse.Namespace, levers: bool) -> dict[str, float]:
    """Return bytes above what was held, seconds and loss of a pass over one packed row, in this process."""
    device, tokens = torch.device(options.device), options.lever_tokens
    model = lever_model(options, tokens=tokens, offload=levers, tile=levers)
    batches = lever_row(options, tokens=tokens)
    base, peak = common.memory_held(device), common.PeakMemory(device)
    losses: list[float] = []
    with torch.autocast(device.type, torch.bfloat16, enabled=options.dtype == "bfloat16"):
        seconds = common.seconds(lambda: losses.append(run_over(model, batches, tokens // 16)), device)
    return {"bytes": max(1, peak.read() - base), "seconds": seconds, "loss": losses[0]}


def drifts(options: argparse.Namespace) -> dict[str, float]:
    """Return how far bfloat16's gradients are from float32's without and with each lever.

    The distance is over all parameters, relative to the length of float32's gradients. The row is short, because a CPU
    without instructions for bfloat16 takes 80 times as long for a product.
    """
    tokens = options.lever_tokens // 64
    batches = lever_row(options, tokens=tokens)

    def gradients(*, bfloat16: bool, offload: bool = False, tile: bool = False) -> torch.Tensor:
        model = lever_model(options, tokens=tokens, offload=offload, tile=tile)
        with torch.autocast(options.device, torch.bfloat16, enabled=bfloat16):
            run_over(model, batches, tokens)
        return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])

    exact = gradients(bfloat16=False)
    cases = {
        "none": {},
        "offload_activations": {"offload": True},
        "tiled_mlp": {"tile": True},
        "both": {"offload": True, "tile": True},
    }
    return {
        name: float((gradients(bfloat16=True, **levers) - exact).norm() / exact.norm())
        for name, levers in cases.items()
    }


def levers(options: argparse.Namespace) -> dict[str, Any]:
    """Measure a pass with and without the levers, in turns, in a process each."""
    rounds = [
        {name: common.in_a_process(levers_peak, options, name == "on") for name in ("off", "on")}
        for _ in range(options.repetitions)
    ]
    of = {what: {name: [each[name][what] for each in rounds] for name in ("off", "on")} for what in rounds[0]["on"]}
    return {
        "tokens": options.lever_tokens,
        "peak_bytes": of["bytes"],
        "seconds": of["seconds"],
        "memory_ratio": common.ratios(of["bytes"]["off"], of["bytes"]["on"]),
        "time_ratio": common.ratios(of["seconds"]["on"], of["seconds"]["off"]),
        "loss_difference": max(abs(one - other) for one, other in zip(*of["loss"].values(), strict=True)),
    }


def report(found: dict[str, Any]) -> None:
    """Print the table and the verdicts."""
    rows = [
        [name, found["useful_tokens_per_second"][name].show(0), found["ratio"][name].show() if name != "packed" else ""]
        for name in found["seconds"]
    ]
    common.show(common.table(["side", "useful tokens/s", "packed is faster by"], rows))
    share = found["useful_tokens"] / found["padded_tokens"]
    common.show(
        f"{found['documents']} documents, {found['useful_tokens']} tokens, {share:.0%} of the padded batches' tokens"
    )
    common.show(common.verdict("packed against padded", found["ratio"]["padded"].median, SPEED_TARGET, at_most=False))
    common.show(common.verdict("difference of the losses", found["loss_difference"], LOSS_TOLERANCE, at_most=True))
    peaks = found["loss_peak_bytes"]
    common.show(
        common.verdict(
            "memory of the loss, chunked / plain", peaks["chunked"] / peaks["plain"], MEMORY_TARGET, at_most=True
        )
    )
    levers = found["levers"]
    least = {name: min(values) / 2**20 for name, values in levers["peak_bytes"].items()}
    ratios = levers["memory_ratio"].show(), levers["time_ratio"].show()
    common.show(
        f"a pass over {levers['tokens']} tokens with gradient checkpointing: {least['off']:.0f} MiB, with levers "
        f"{least['on']:.0f} MiB; {ratios[0]} times less, in {ratios[1]} times the time"
    )
    difference = levers["loss_difference"]
    common.show(common.verdict("difference of the losses, levers", difference, LOSS_TOLERANCE, at_most=True))
    drift = found["drift"]
    shown = ", ".join(f"{name} {value:.4f}" for name, value in drift.items())
    common.show(f"distance of bfloat16's gradients from float32's, by lever: {shown}")
    further = max(drift.values()) / drift["none"]
    common.show(common.verdict("the largest, of the one without", further, DRIFT_TARGET, at_most=True))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = common.benchmark_parser(__doc__)
    add = parser.add_argument
    add("--documents", type=int, default=32, help="in all")
    add("--long-share", type=float, default=0.5, help="of the documents")
    add("--shrink", type=int, default=8, help="what all lengths are divided by")
    add("--longest", type=int, default=8192, help="tokens; longer documents are cut")
    add("--rows", type=int, default=4, help="documents in a padded batch")
    add("--pack-length", type=int, default=8192, help="tokens of a packed row")
    add("--lengths-from", type=Path, help="JSON or JSON lines, also .gz, of long conversations")
    add("--short-from", type=Path, help="the same, of short conversations")
    add("--all-logits", action="store_true", help="also padded batches with the model's own loss")
    add("--loss-tokens", type=int, default=16_384, help="of the loss measured alone")
    add("--lever-tokens", type=int, default=16_384, help="of the row with and without levers; a multiple of 2,048")
    add("--lever-intermediate", type=int, default=2048, help="width of its model's feed-forward layers")
    add("--repetitions", type=int, default=3, help="rounds")
    add("--seed", type=int, default=0)
    add_run_options(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; the exit status."""
    options = parse(arguments)
    description = common.machine()
    long, short = built_in()
    long = read_lengths(options.lengths_from) if options.lengths_from else long
    short = read_lengths(options.short_from) if options.short_from else short
    found = speed(options, draw(long, short, options))
    found["loss_peak_bytes"] = {way: common.in_a_process(loss_peak, options, way) for way in ("chunked", "plain")}
    found["levers"] = levers(options)
    found["drift"] = common.in_a_process(drifts, options)
    report(found)
    common.write_json(options.out, {"machine": description, "settings": common.settings_of(options), **found})
    return 1 if max(found["loss_difference"], found["levers"]["loss_difference"]) > LOSS_TOLERANCE else 0


if __name__ == "__main__":
    raise SystemExit(main())
