"""Measure scores, dependencies and evidence on meetings whose relevant turns people marked.

    .venv/bin/python benchmarks/qmsum_selection.py --qmsum qmsum.jsonl.gz --models MODEL [MODEL ...] \
        --sizes 4096/1024 --parts 20 --fold report --out build/benchmarks/qmsum_report.json

The samples are those of qmsum.py (its help says where --qmsum comes from); a size is a context's tokens and theta_A's
window. theta_B is the model itself, theta_A the same model whose prompt is cut to the window. A part is one sample of
`far`, one of `near` and two of the other kinds, in turns. The tables of a part are written once it is scored, so that
a stopped run resumes with the part that it was at. With --until a run starts no part after so many seconds, and
measures the parts that are there. Intervals (95 %) resample meetings.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from qmsum import KINDS, Record, make_samples, read_meetings
from real_selection import RealCase
from real_text_passages import Fold, Room

from gateau_dagster.config.models import Template
from gateau_dagster.models.prompt import open_tokenizer

PAIR, OTHERS = ("far", "near"), ("far_long", "other", "far_and_near", "whole")
_MOST = 96  # parts


@dataclass(frozen=True, kw_only=True)
class MeetingCase(RealCase):
    """A real model, theta_A's window, and a part of the meetings' samples. `nq` is the meetings' file."""

    part: int = 0
    kinds: tuple[str, ...] = tuple(KINDS)

    @property
    def name(self) -> str:
        """The name in progress messages."""
        return f"{self.setting}, part {self.part}"

    def labelled(self) -> list[Record]:
        """Return one sample of each kind of PAIR, and one of two of the others."""
        numbers = dict.fromkeys(PAIR, self.part)
        numbers |= dict.fromkeys(OTHERS[2 * (self.part % 2) :][:2], self.part // 2)
        made = _made(self.nq, self.model, self.tokens, self.window, self.template, self.fold, self.seed)
        return [made[kind][number] for kind, number in numbers.items() if number < len(made[kind])]


@cache
def _made(
    file: str, model: str, tokens: int, window: int, template: Template, fold: Fold, seed: int
) -> dict[str, list[Record]]:
    """Return the samples by kind."""
    room = Room(tokenizer=open_tokenizer(model), tokens=tokens, window=window, template=template)
    found: dict[str, list[Record]] = {name: [] for name in KINDS}
    for record in make_samples(read_meetings(Path(file)), room, fold=fold, per_kind=_MOST, seed=seed):
        found[record["source"]].append(record)
    return found
