"""Write the held-out file that `answer_loss` reads, from samples of yours whose evidence the product found.

    gateau run --config heldout.yaml --until evidence
    python heldout_file.py heldout.yaml questions.jsonl

`heldout.yaml` scores the held-out samples (`long_sft`) with the pair of models and `selection.evidence: true`. What
they need is the class of `dependency`; unpredictable ones, and those without a row, are left out. `gold`, the part of
the response that counts as its answer, are the tokens that a far segment makes likelier than near text does, by at
least 0.2 under theta_B before any training. Write the file once, before models are compared.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.data.sample import Sample
from gateau_dagster.selection.evidence import CLASS_OF

if TYPE_CHECKING:
    from gateau_dagster.config.models import Template

LEAST_GAIN = 0.2
_TEXTS = ("sample_id", "source", "context", "instruction", "response")


def records(
    raw: pl.DataFrame, evidence: pl.DataFrame, cam: pl.DataFrame, tokenizer: Any, template: Template = "gateau"
) -> Iterator[dict[str, Any]]:
    """Yield the records of own_answers.py, with `page`, the same for equal contexts, in the order of `raw`.

    Args:
        raw: rows of `raw_long_sft`.
        evidence: rows of `evidence`.
        cam: rows of `cam`, with near_probability and far_probability.
        tokenizer: theta_B's, which reports offsets.
        template: `scoring.template`.
    """
    from gateau_dagster.models.prompt import response_offsets

    classified = raw.join(evidence.select("sample_id", "evidence", "dependency"), on="sample_id", maintain_order="left")
    gains = cam.select("sample_id", "near_probability", "far_probability")
    for row in classified.join(gains, on="sample_id", maintain_order="left").iter_rows(named=True):
        kind = CLASS_OF.get(row["dependency"], "unpredictable")
        if kind == "unpredictable":
            continue
        sample = Sample(**{name: row[name] for name in _TEXTS})
        pairs = zip(row["far_probability"], row["near_probability"], strict=True)
        counts = [far - near >= LEAST_GAIN for far, near in pairs]
        offsets = response_offsets(tokenizer, sample, template)
        yield {
            **{name: row[name] for name in _TEXTS},
            "needs_far": kind == "far",
            "evidence": [[span["start"], span["end"]] for span in row["evidence"] or []],
            "gold": _joined([list(span) for span, far in zip(offsets, counts, strict=True) if far]),
            "page": hashlib.sha256(row["context"].encode()).hexdigest()[:16],
        }


def _joined(spans: Sequence[list[int]]) -> list[list[int]]:
    """Return ranges with those that touch as one; empty ones are left out."""
    ranges: list[list[int]] = []
    for begin, end in spans:
        if ranges and begin <= ranges[-1][1]:
            ranges[-1][1] = max(end, ranges[-1][1])
        elif begin < end:
            ranges.append([begin, end])
    return ranges


def main(config: str, out: str) -> None:
    """Read the tables of a project's store and write the file."""
    from gateau_dagster.api import Project
    from gateau_dagster.models.loading import load_tokenizer

    project = Project(config)
    settings = project.config
    tokenizer = load_tokenizer(settings.located_model(settings.origin("long")), folder=settings.folder)
    raw, evidence, cam = (project.table(name) for name in ("raw_long_sft", "evidence", "cam"))
    made = records(raw, evidence, cam, tokenizer, settings.scoring.template)
    lines = [json.dumps(record, ensure_ascii=False) for record in made]
    Path(out).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
