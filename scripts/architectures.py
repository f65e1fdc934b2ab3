"""Which architectures of the installed transformers work here: the table of docs/architectures.md.

    .venv/bin/python scripts/architectures.py --out build/benchmarks/architectures.json --page docs/architectures.md

Of every model type that transformers loads as a causal language model a tiny random one is made (architectures_tiny)
and asked what it can do (architectures_checks), in a process of its own with a limit of time. What is in `--out` for
the same versions is not asked again; `--only` names some types, `--again` asks all anew.
"""

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from architectures_checks import TOLERANCE, check
from common_measure import say, write_json
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

SECONDS = 120
COLUMNS = {
    "scores": "scores exactly",
    "attention": "attention seen",
    "packed": "trains packed",
    "skips": "with skips",
    "why": "what does not work, and why",
}
Row = dict[str, Any]


def all_kinds() -> list[str]:
    """Every model type with a causal class, by name."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def asked(kind: str, *, seconds: float = SECONDS) -> Row:
    """The row of one model type, from a process that may die or hang without harm."""
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
    """The rows of these types; those that are not in the file for these versions are asked, and kept one by one."""
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
    """docs/architectures.md."""
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
        f"Of {len(built)} that can be built small, **{counts['scores']} score exactly** ({ways['packed']} in packed "
        f"rows, {ways['one at a time']} one prompt at a time), **{counts['attention']} show their attention** (the "
        "others work with preset `robust`, the default, which reads none), "
        f"**{counts['packed']} train packed**, {counts['skips']} also with skipped positions.",
        "",
        "- *scores exactly*: the NLL of every response token, of prompts packed and alone, is within "
        f"{TOLERANCE:g} nats of the model's own plain pass, and does not change with the text behind it; "
        "`yes`: packed rows. Those that do not end with that reason; one that sees what follows a token is not loaded.",
        "- *attention seen*: layers whose attention Eq. 4 averages, equal to the model's own whole matrices where it "
        "gives them.",
        "- *trains packed*, *with skips*: the loss of two documents in one row is that of each alone, also with jumps "
        "in the positions, and all gradients are finite. Those that do not are trained with "
        "`training.batching: padded` or `sorted`.",
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
    """Reasons that several checks share are said once."""
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
    """Asks, and writes the page."""
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
