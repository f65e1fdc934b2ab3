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
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from common_measure import (
    PeakMemory,
    Spread,
    interleaved,
    machine,
    memory_held,
    ratios,
    say,
    show,
    table,
    verdict,
    write_json,
)
from common_models import add_run_options, build_model, shape_of
from common_ragged import Lengths, built_in, draw, read_lengths
from transformers import PreTrainedModel

from gateau_dagster.models.training_attention import attend_within_documents
from gateau_dagster.training.batching import pack
from gateau_dagster.training.dataset import Batch, PadRight, SideBySide, TrainingDocument
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.response_loss import summed_nll, use_chunked_loss

SPEED_TARGET, MEMORY_TARGET, LOSS_TOLERANCE = 2.0, 1 / 8, 1e-5
_HIDDEN = 64  # of the loss measured alone: small, so that memory is the logits'


def padded_batches(documents: Sequence[TrainingDocument], *, rows: int, device: str) -> Iterator[Batch]:
    """Documents as they come, `rows` at a time, padded on the right to the longest."""
    collate = PadRight(pad_token_id=0)
    for begin in range(0, len(documents), rows):
        yield _model_inputs(collate([[each] for each in documents[begin : begin + rows]]), device)


def packed_batches(documents: Sequence[TrainingDocument], *, pack_length: int, device: str) -> Iterator[Batch]:
    """Rows of documents side by side."""
    collate, lengths = SideBySide(), [len(each.input_ids) for each in documents]
    for row in pack(lengths, range(len(documents)), pack_length=pack_length):
        yield _model_inputs(collate([[documents[index] for index in row]]), device)


def _model_inputs(batch: Batch, device: str) -> Batch:
    """On the device, without the places in the mix, which the trainer takes out, too."""
    inputs = {name: value for name, value in batch.items() if name != "row"}
    return {name: value.to(device) if torch.is_tensor(value) else value for name, value in inputs.items()}


def run_over(model: PreTrainedModel, batches: list[Batch], labels: int) -> float:
    """Forward and backward of every batch; the mean loss over all labels."""
    model.zero_grad()
    total = torch.zeros((), device=model.device)
    for batch in batches:
        loss = model(**batch, num_items_in_batch=labels, use_cache=False).loss
        loss.backward()
        total += loss.detach()
    return total.item()


def models(options: argparse.Namespace) -> dict[str, PreTrainedModel]:
    """The same weights for every side."""
    loaded = build_model(shape_of(options), name="trained", dtype=getattr(torch, options.dtype), device=options.device)
    plain = loaded.model.train().requires_grad_(True)
    padded, packed = deepcopy(plain), deepcopy(plain)
    use_chunked_loss(padded)
    attend_within_documents(packed)
    use_chunked_loss(packed)
    found = {"padded": padded, "packed": packed}
    return found | {"padded, all logits": plain} if options.all_logits else found


def speed(options: argparse.Namespace, documents: list[TrainingDocument]) -> dict[str, Any]:
    """Useful tokens a second of each side, their ratio, and how far the losses are apart."""
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
    seconds = interleaved(candidates, options.repetitions, torch.device(options.device))
    return {
        "documents": len(documents),
        "useful_tokens": tokens,
        "labels": labels,
        "padded_tokens": sum(batch["input_ids"].numel() for batch in padded),
        "seconds": seconds,
        "useful_tokens_per_second": {name: Spread.of([tokens / time for time in t]) for name, t in seconds.items()},
        "ratio": {name: ratios(times, seconds["packed"]) for name, times in seconds.items() if name != "packed"},
        "losses": losses,
        "loss_difference": max(losses.values()) - min(losses.values()),
    }


def loss_peak(options: argparse.Namespace, way: str) -> int:
    """Bytes above what was held, of the loss and its gradients, in this process."""
    device = torch.device(options.device)
    states = torch.randn(options.loss_tokens, _HIDDEN, device=device, requires_grad=True)
    weight = torch.randn(options.vocabulary, _HIDDEN, device=device, requires_grad=True)
    targets = torch.randint(options.vocabulary, (options.loss_tokens,), device=device)
    base = memory_held(device)
    peak = PeakMemory(device)
    if way == "chunked":
        loss = summed_nll(states, weight, None, targets)
    else:
        loss = torch.nn.functional.cross_entropy((states @ weight.t()).float(), targets, reduction="sum")
    loss.backward()
    return peak.read() - base


def loss_peaks(options: argparse.Namespace) -> dict[str, int]:
    """`loss_peak` of both ways, in a fresh process each."""
    settings = {key: value for key, value in vars(options).items() if not isinstance(value, Path)}
    found = {}
    for way in ("chunked", "plain"):
        command = [sys.executable, __file__, "--worker", json.dumps({"way": way, "options": settings})]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[way] = int(done.stdout.splitlines()[-1])  # libraries may write before it
        say(f"  the loss, {way}: {found[way] / 2**20:.0f} MiB")
    return found


def lengths_of(options: argparse.Namespace) -> tuple[Lengths, Lengths]:
    """(long, short): of the files, where they are given."""
    long, short = built_in()
    if options.lengths_from is not None:
        long = read_lengths(options.lengths_from)
    if options.short_from is not None:
        short = read_lengths(options.short_from)
    return long, short


def report(found: dict[str, Any]) -> None:
    """The table and the verdicts."""
    rows = [
        [name, found["useful_tokens_per_second"][name].show(0), found["ratio"][name].show() if name != "packed" else ""]
        for name in found["seconds"]
    ]
    show(table(["side", "useful tokens/s", "packed is faster by"], rows))
    share = found["useful_tokens"] / found["padded_tokens"]
    show(f"{found['documents']} documents, {found['useful_tokens']} tokens, {share:.0%} of the padded batches' tokens")
    show(verdict("packed against padded", found["ratio"]["padded"].median, SPEED_TARGET, at_most=False))
    show(verdict("difference of the losses", found["loss_difference"], LOSS_TOLERANCE, at_most=True))
    peaks = found["loss_peak_bytes"]
    show(verdict("memory of the loss, chunked / plain", peaks["chunked"] / peaks["plain"], MEMORY_TARGET, at_most=True))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=32, help="default 32")
    parser.add_argument("--long-share", type=float, default=0.5, help="of the documents, default 0.5")
    parser.add_argument("--shrink", type=int, default=8, help="what all lengths are divided by, default 8")
    parser.add_argument("--longest", type=int, default=8192, help="tokens; longer ones are cut, default 8192")
    parser.add_argument("--rows", type=int, default=4, help="documents in a padded batch, default 4")
    parser.add_argument("--pack-length", type=int, default=8192, help="tokens of a packed row, default 8192")
    parser.add_argument("--lengths-from", type=Path, help="JSON or JSON lines, also .gz, of long conversations")
    parser.add_argument("--short-from", type=Path, help="the same, of short conversations")
    parser.add_argument("--all-logits", action="store_true", help="also padded batches with the model's own loss")
    parser.add_argument("--loss-tokens", type=int, default=16_384, help="of the loss measured alone, default 16384")
    parser.add_argument("--repetitions", type=int, default=3, help="rounds, default 3")
    parser.add_argument("--seed", type=int, default=0)
    add_run_options(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; the exit status."""
    options = parse(arguments)
    if options.worker is not None:
        task = json.loads(options.worker)
        show(str(loss_peak(argparse.Namespace(**task["options"]), task["way"])))
        return 0
    description = machine()
    long, short = lengths_of(options)
    rng = random.Random(options.seed)
    documents = draw(
        long,
        short,
        count=options.documents,
        long_share=options.long_share,
        shrink=options.shrink,
        longest=options.longest,
        vocabulary=options.vocabulary,
        rng=rng,
    )
    found = speed(options, documents)
    found["loss_peak_bytes"] = loss_peaks(options)
    report(found)
    settings = {key: value for key, value in vars(options).items() if not isinstance(value, Path) and key != "worker"}
    write_json(options.out, {"machine": description, "settings": settings, **found})
    return 1 if found["loss_difference"] > LOSS_TOLERANCE else 0


if __name__ == "__main__":
    sys.exit(main())
