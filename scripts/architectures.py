"""Find which architectures of the installed transformers work here: the table of docs/architectures.md.

    .venv/bin/python scripts/architectures.py --out build/benchmarks/architectures.json --page docs/architectures.md

Of every model type that transformers loads as a causal language model a tiny random one is made (architectures_tiny)
and checked against transformers' own plain pass, in a separate process with a limit of time. What is in `--out` for
the same versions is not asked again; `--only` names some types, `--again` asks all anew.
"""

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from architectures_tiny import loaded, tiny_model
from common import say, write_json
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gateau_dagster.errors import GateauError
from gateau_dagster.models.context_attention import attention_unseen, context_attention
from gateau_dagster.models.forward import response_nll
from gateau_dagster.models.model_config import attention_layers_of
from gateau_dagster.models.packing import packs_documents
from gateau_dagster.models.prompt import Prompt
from gateau_dagster.models.shapes import model_shape
from gateau_dagster.models.training_attention import attend_within_documents
from gateau_dagster.training.response_loss import use_chunked_loss

SECONDS = 120
COLUMNS = {
    "scores": "scores exactly",
    "attention": "attention seen",
    "packed": "trains packed",
    "skips": "with skips",
    "why": "what does not work, and why",
}
Row = dict[str, Any]
TOLERANCE = 1e-4
"""Largest difference of an NLL in nats, of attention as a part of the largest weight, and of a loss."""
_SHAPES = ((1, 40, 6, 9), (1, 0, 5, 3), (2, 40, 6, 9), (1, 71, 2, 14))  # tokens of prefix, context, suffix, response
_IDS = 390


def check(kind: str) -> Row:
    """Return one row of the table: `class`, then for each check "yes", "no" or another word; `why` for what fails."""
    row: Row = {"kind": kind, "why": []}
    try:
        model = tiny_model(kind)
        _plain_nll(model.eval(), _ids(24, 1), 8)  # what transformers' own pass does not do, nobody can
    except Exception as error:
        return row | {"built": "no", "why": [_short(error)]}
    row |= {"built": "yes", "class": type(model).__name__}
    checks = {
        "scores": lambda: _scores(model),
        "attention": lambda: _attention(model, kind),
        "packed": lambda: _trains(kind, skips=False),
        "skips": lambda: _trains(kind, skips=True),
        "work": lambda: "by layer" if model_shape(model.config).each else "by configuration",
    }
    for name, ask in checks.items():
        try:
            row[name] = ask()
        except GateauError as error:
            row[name] = "no"
            row["why"].append(f"{name}: {_short(error)}")
        except Exception as error:
            row[name] = "bare"
            row["why"].append(f"{name}: {type(error).__name__}: {_short(error)}")
    return row


def _short(error: Exception) -> str:
    """Return one line; of a refusal to train, only the reason."""
    if isinstance(error, KeyError):
        return f"KeyError: {error}"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    line = lines[-1 if "validation" in lines[0].lower() else 0].strip()
    return line.split("nor with skipped positions: ")[-1].split(". Set training.")[0][:200]


def _ids(count: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(5, _IDS, (count,), generator=generator).tolist())


def _prompts() -> list[Prompt]:
    names = ("prefix", "context", "suffix", "response")
    prompts = []
    for number, shape in enumerate(_SHAPES):
        texts: Any = {
            name: _ids(count, 10 * number + place) for place, (name, count) in enumerate(zip(names, shape, strict=True))
        }
        prompts.append(Prompt(**texts))
    return prompts


def _plain_nll(model: PreTrainedModel, ids: tuple[int, ...], first: int) -> Tensor:
    """Return -log P of the tokens from `first` on, by the model's own forward pass over all of them: float64."""
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
    return cross_entropy(logits[first - 1 : -1], torch.tensor(ids[first:]), reduction="none")


def _close(got: Tensor, want: Tensor, what: str) -> None:
    difference = float((got.double() - want.double()).abs().max())
    if not difference <= TOLERANCE:
        raise GateauError("models.architecture", f"{what} differs by {difference:.1e}")


@torch.no_grad()
def _scores(model: PreTrainedModel) -> str:
    """Check that packed = alone = plain; return "packed", or "one at a time" where documents are not packed."""
    one, prompts = loaded(model), _prompts()
    packed = response_nll(one, prompts)
    alone = torch.cat([response_nll(one, [prompt]) for prompt in prompts])
    plain = torch.cat([_plain_nll(model, prompt.ids, prompt.response_span[0]) for prompt in prompts])
    last = prompts[0]
    early = _plain_nll(model, last.ids[:-4], last.response_span[0])
    _close(
        early, _plain_nll(model, last.ids, last.response_span[0])[:-4], "a token with what follows it: no causal model;"
    )
    _close(packed, plain, "packed against plain")
    _close(alone, plain, "alone against plain")
    return "packed" if packs_documents(one) else "one at a time"


@torch.no_grad()
def _attention(model: PreTrainedModel, kind: str) -> str:
    """Check that it is seen, and equal to whole matrices where the model gives them."""
    one, prompt = loaded(model), _prompts()[0]
    reason = attention_unseen(one)
    if reason is not None:
        raise GateauError("models.architecture", reason)
    got = context_attention(one, prompt).attention
    layers = (
        f"{attention_layers_of(model.config)} of {model.config.get_text_config(decoder=True).num_hidden_layers} layers"
    )
    want = _eager(kind, prompt)
    if want is None:
        return layers
    _close(got / want.max(), want / want.max(), "attention against whole matrices")
    return layers


def _eager(kind: str, prompt: Prompt) -> Tensor | None:
    """Return a_t of Eq. 4 from the model's own matrices; None where it gives none."""
    model = tiny_model(kind).eval()
    try:
        model.set_attn_implementation("eager")
        found = model(input_ids=torch.tensor([prompt.ids]), output_attentions=True, use_cache=False).attentions
    except Exception:  # its own code does not give them
        return None
    matrices = [each[0] for each in found or () if isinstance(each, Tensor) and each.ndim == 4]
    if len(matrices) != attention_layers_of(model.config):
        return None
    if any(name.endswith("sinks") for name, _ in model.named_parameters()) and _whole(matrices[0]):
        return None  # what the sinks take is taken off the output (Granite): these are not the weights that count
    rows, columns = slice(*prompt.response_span), slice(*prompt.context_span)
    return torch.stack([each[:, rows, columns].double().mean(dim=(0, 1)) for each in matrices]).mean(dim=0)


def _whole(matrix: Tensor) -> bool:
    """Return whether the rows add up to 1."""
    return bool((matrix.sum(-1) - 1).abs().max() < 1e-3)


def _trains(kind: str, *, skips: bool) -> str:
    """Check that two documents in one row have the loss of each by the plain model, and that gradients are finite."""
    model = tiny_model(kind).train()
    attend_within_documents(model)
    chunked = "yes"
    try:
        use_chunked_loss(model)
    except GateauError:
        chunked = "with chunked_loss: false"
    documents = [_ids(23, 1), _ids(37, 2)]
    steps = [np.where(np.arange(len(one)) % 7 == 6, 12, 1) if skips else np.ones(len(one), int) for one in documents]
    positions = [torch.tensor(each.cumsum() - each[0]) for each in steps]
    borders = torch.tensor([0, 23, 60], dtype=torch.int32)
    ids = torch.tensor([sum(documents, ())])
    labels = ids.clone()
    labels[0, [0, 23]] = -100
    row = {"input_ids": ids, "position_ids": torch.cat(positions)[None], "labels": labels}
    loss = model(**row, cu_seq_lens_q=borders, cu_seq_lens_k=borders, max_length_q=37, max_length_k=37).loss
    loss.backward()
    plain, total = tiny_model(kind).eval(), torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for document, places in zip(documents, positions, strict=True):
            given = torch.tensor([document])
            mask = torch.ones_like(given)
            where = {"position_ids": places[None]} if skips else {}  # without skips: where the model itself puts them
            logits = plain(input_ids=given, attention_mask=mask, use_cache=False, **where).logits[0]
            total += cross_entropy(logits[:-1].double(), given[0, 1:], reduction="sum")
    _close(loss.detach(), total / 58, "the loss of documents in a row against each alone")
    if not all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None):
        raise GateauError("models.architecture", "a gradient is not finite")
    return chunked


def all_kinds() -> list[str]:
    """Return every model type with a causal class, by name."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def asked(kind: str, *, seconds: float = SECONDS) -> Row:
    """Return the row of one model type, from a process that may die or hang without harm."""
    context = multiprocessing.get_context("fork")  # the libraries are loaded once
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(kind, sending), daemon=True)
    process.start()
    sending.close()
    try:
        if receiving.poll(seconds):
            return receiving.recv()
        return {"kind": kind, "built": "no", "why": [f"no answer within {seconds:g} seconds"]}
    except EOFError:
        process.join()
        return {"kind": kind, "built": "no", "why": [f"its process ended with {process.exitcode}"]}
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        receiving.close()


def _answer(kind: str, sending: Any) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    sending.send(check(kind))
    sending.close()


def rows(file: Path, kinds: list[str], *, again: bool) -> list[Row]:
    """Return the rows of these types; those that are not in the file for these versions are checked and kept."""
    about = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    stored = json.loads(file.read_text()) if file.is_file() and not again else {}
    known = stored.get("rows", {}) if stored.get("about") == about else {}
    for number, kind in enumerate(kinds, start=1):
        if kind not in known:
            known[kind] = asked(kind)
            write_json(file, {"about": about, "rows": known})
            say(f"{number}/{len(kinds)} {kind}: {' · '.join(str(known[kind].get(name, '-')) for name in COLUMNS)}")
    return [known[kind] for kind in kinds]


def page(found: list[Row]) -> str:
    """Return docs/architectures.md."""
    built = [row for row in found if row["built"] == "yes"]
    counts = {name: sum(_works(row, name) for row in built) for name in ("scores", "attention", "packed", "skips")}
    ways = Counter(row["scores"] for row in built)
    lines = [
        "# Which architectures work",
        "",
        f"Made by `make architectures` with transformers {transformers.__version__}: of each of its {len(found)} "
        "causal model types a tiny random model, in float32 on the CPU. A test that is marked `long` makes it again "
        "and compares.",
        "",
        f"Of {len(built)} that can be built small:",
        "",
        f"- **{counts['scores']} score exactly**: {ways['packed']} in packed rows, {ways['one at a time']} one prompt "
        "at a time.",
        f"- **{counts['attention']} show their attention**. The others work with preset `robust`, the default, which "
        "reads none.",
        f"- **{counts['packed']} train packed**, {counts['skips']} also with skipped positions.",
        "",
        "| column | meaning |",
        "|---|---|",
        "| scores exactly | Each response token's NLL, packed and alone, is within "
        f"{TOLERANCE:g} nats of the model's plain pass. It does not change with later text. `yes`: in packed rows. |",
        "| attention seen | Layers whose attention Eq. 4 averages. They equal the model's whole matrices where it "
        "gives them. |",
        "| trains packed, with skips | Two documents in one row have the loss of each alone, also with jumps in the "
        "positions. All gradients are finite. |",
        "",
        "A model that does not score exactly ends a run with that reason. One that sees later tokens is not loaded. "
        "One that does not train packed is trained with `training.batching: padded` or `sorted`.",
        "",
        "The table is from short documents. `gateau plan` also refuses packed rows of Llama 4, whose attention counts "
        "a row's tokens, and of `rope_type: longrope` or `dynamic` beyond the unscaled window.",
        "",
        *_table(("model type", *COLUMNS.values()), [_cells(row) for row in built]),
        "",
        f"## Not built small ({len(found) - len(built)})",
        "",
        "Not a statement about the architecture: the general sizes of `scripts/architectures_tiny.py` do not fit "
        "its configuration, or transformers needs something else for it.",
        "",
        *_table(("model type", "why"), [(f"`{row['kind']}`", _text(row["why"])) for row in found if row not in built]),
        "",
    ]
    return "\n".join(lines)


def _works(row: Row, name: str) -> bool:
    return row[name] not in {"no", "bare"}


def _cells(row: Row) -> tuple[str, ...]:
    marks = [
        ("yes" if row[name] == "packed" else str(row[name])) for name in ("scores", "attention", "packed", "skips")
    ]
    return (f"`{row['kind']}`", *marks, _text(row["why"]))


def _text(reasons: list[str]) -> str:
    """Return the reasons; those that several checks share once."""
    by_reason: dict[str, list[str]] = {}
    for reason in reasons:
        place, found, rest = reason.partition(": ")
        named = found and place in COLUMNS | {"work": ""}
        by_reason.setdefault(rest if named else reason, []).append(place if named else "")
    said = (f"{', '.join(places)}: {reason}" if any(places) else reason for reason, places in by_reason.items())
    return "; ".join(said).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _table(head: tuple[str, ...], cells: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *cells)]


def main(arguments: list[str]) -> int:
    """Check, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="what was found, as JSON; taken up again")
    parser.add_argument("--page", type=Path, help="where the table is written")
    parser.add_argument("--only", nargs="+", help="model types; without it, all")
    parser.add_argument("--again", action="store_true", help="ask what is known, too")
    options = parser.parse_args(arguments)
    found = rows(options.out, options.only or all_kinds(), again=options.again)
    if options.page is not None:
        options.page.write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
