"""Make a golden store: `python -m tests.golden.make COMMIT`, in a checkout of that commit.

It holds tables of every method that runs without further models, and an experiment of eight trained variants. The
archive leaves out Dagster's home, which no plan reads.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.kit.project import gateau, make_project

METHODS = (
    *("gateau", "gateau_unnormalised", "hmg", "cam", "far_gain", "far_gain_fg", "far_gain_hmp", "perplexity", "ifd"),
    *("length", "response_length", "random", "delta_perplexity", "ladm", "information_gain", "key_tokens", "longattn"),
)


def project(folder: Path) -> Path:
    """Write data, models and configuration into `folder`; return the configuration file."""
    file = make_project(
        folder,
        samples=16,
        shards=2,
        training=True,
        selection={
            "fraction": 0.25,
            "compare": [*METHODS],
            "options": {"ladm": {"span_length": 8}, "delta_perplexity": {"pairs": 4, "segment_length": 16}},
        },
        variants={"methods": ["gateau", "random"], "seeds": [0, 1], "also": ["full", "short_only"]},
        short_chat={"path": "chat.json"},
    )
    turns = [("human", "recall {}"), ("gpt", "a note .")]
    records = [
        {"id": f"c{number}", "conversations": [{"from": who, "value": text.format(number)} for who, text in turns]}
        for number in range(6)
    ]
    (folder / "chat.json").write_text(json.dumps(records))
    return file


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out owners, times and what no plan reads, so that an archive depends on its content."""
    parts = Path(entry.name).parts
    if ".gateau" in parts or "_lease" in parts[2:3]:
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def make(target: Path) -> None:
    """Run the project to its end and write it as an archive.

    Raises:
        AssertionError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "golden"
        file = project(root)
        gateau("run", "--config", str(file), folder=root)
        with tarfile.open(target, "w:xz") as archive:
            archive.add(root, arcname="golden", filter=_kept)


if __name__ == "__main__":
    make(Path(__file__).parent / f"{sys.argv[1]}.tar.xz")
