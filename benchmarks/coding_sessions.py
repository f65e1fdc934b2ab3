"""Make sessions of a coding agent from a git history: one per commit, in the form of Claude Code's session files.

    .venv/bin/python benchmarks/coding_sessions.py --repository . --end COMMIT --count 60 \
        --out build/benchmarks/sessions --edits build/benchmarks/edits.jsonl

What the agent does is scripted; all texts are the history's. The user asks for the commit's subject. The agent
searches for a word of the lines that change (Grep), reads the touched files and up to two other files with this word
(Read), makes each change of the diff (Edit), and ends with the commit's body. The order of the files is drawn. Files
are those before the commit, with line numbers, as the agent shows them. Taken are the newest commits that have a body
and few short changes, and whose files fit into --characters.

--out is a folder of session files, which `long_sft.path` reads. With `turns: last`, a sample is the final answer. The
work of an agent is in its edits, so --edits gets samples whose response is an edit: of each session one, drawn by hash
from those of `turns: each`.
"""

import argparse
import difflib
import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from common import benchmark_parser, say
from real_text import write_samples

from gateau_dagster.config.inputs import LongSftConfig
from gateau_dagster.data.index import build_index, read_samples
from gateau_dagster.data.sample import text_digest
from gateau_dagster.storage.local import fill_with, replace_local

_FILES, _EDITS, _OTHERS, _HITS = 4, 6, 2, 30
_EDIT_CHARACTERS = 1200  # old and new text of an edit; with the request, it fits into base_rates' frame
_LEAST_BODY = 60  # characters
_WORD = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]{5,}\b")
_TEXTS = (".py", ".md", ".yaml", ".toml", ".sh", ".j2", ".js", ".css")
_EDIT = "Edit {"
Edit = tuple[str, str]  # old text, new text


class History:
    """A git repository, read without its working tree."""

    def __init__(self, folder: Path, end: str) -> None:
        self._folder, self._end = folder, end

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self._folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8", errors="replace").stdout

    def commits(self) -> Iterator[tuple[str, str, str]]:
        """Yield commit, subject and body, newest first."""
        for record in self._git("log", "--no-merges", "--format=%H%x1f%s%x1f%b%x1e", self._end).split("\x1e"):
            if record.strip():
                commit, subject, body = record.strip("\n").split("\x1f")
                yield commit, subject, body.strip()

    def changes(self, commit: str) -> dict[str, tuple[str, str]] | None:
        """Return the text before and after of each touched file; None if not all are changed texts."""
        lines = self._git("diff-tree", "-r", "--root", "--no-commit-id", "--name-status", commit).splitlines()
        names = [line.split("\t") for line in lines]
        if not 1 <= len(names) <= _FILES or any(kind != "M" or not name.endswith(_TEXTS) for kind, name in names):
            return None
        return {name: (self.text(f"{commit}~", name), self.text(commit, name)) for _, name in names}

    def text(self, commit: str, name: str) -> str:
        """Return a file's text at a commit."""
        return self._git("show", f"{commit}:{name}")

    def hits(self, commit: str, word: str) -> list[str]:
        """Return the lines with a word as `file:number:line`, at most _HITS."""
        patterns = [f"*{ending}" for ending in _TEXTS]
        lines = self._git("grep", "-n", "-w", "-F", "-e", word, commit, "--", *patterns).splitlines()
        return [line.partition(":")[2] for line in lines[:_HITS]]


def edits_between(before: str, after: str) -> list[Edit] | None:
    """Return the edits that turn one text into the other, in order; each old text is once in `before`.

    None where the changes are many, long, or not unique with five lines around them.
    """
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for around in range(1, 6):
        groups = [(group[0], group[-1]) for group in matcher.get_grouped_opcodes(around)]
        edits = [("".join(old[a[1] : z[2]]), "".join(new[a[3] : z[4]])) for a, z in groups]
        if len(edits) > _EDITS or any(len(gone) + len(come) > _EDIT_CHARACTERS for gone, come in edits):
            return None
        text = before
        for gone, come in edits:
            if not gone or before.count(gone) != 1 or text.count(gone) != 1:
                break
            text = text.replace(gone, come)
        else:
            return edits if text == after else None
    return None


class _Writer:
    """Write the lines of a session, each behind the one before it."""

    def __init__(self, name: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self._name, self._calls = name, 0

    def add(self, role: str, content: Any) -> None:
        place = len(self.lines)
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            message |= {"id": f"msg_{self._name[:12]}_{place}", "type": "message", "model": "scripted"}
        self.lines.append({
            "parentUuid": self.lines[-1]["uuid"] if self.lines else None,
            "isSidechain": False, "userType": "external", "cwd": "/repository", "sessionId": self._name,
            "type": role, "message": message, "uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._name} {place}")),
            "timestamp": f"2026-01-01T10:{place // 60:02d}:{place % 60:02d}.000Z",
        })  # fmt: skip

    def call(self, tool: str, arguments: dict[str, Any], result: str) -> None:
        self._calls += 1
        of = f"toolu_{self._name[:12]}_{self._calls}"
        self.add("assistant", [{"type": "tool_use", "id": of, "name": tool, "input": arguments}])
        self.add("user", [{"type": "tool_result", "tool_use_id": of, "content": result}])


def session_lines(
    history: History, commit: str, subject: str, body: str, characters: tuple[int, int]
) -> list[dict[str, Any]] | None:
    """Return the lines of a commit's session file; None where the commit does not make one, see above."""
    changes = history.changes(commit) if len(body) >= _LEAST_BODY else None
    if changes is None:
        return None
    edits = {name: edits_between(*texts) for name, texts in changes.items()}
    words = [word for of in edits.values() for gone, _ in of or () for word in _WORD.findall(gone)]
    if not words or sum(map(len, filter(None, edits.values()))) > _EDITS:
        return None
    word = max(dict.fromkeys(words), key=len)
    rng, before = Random(commit), f"{commit}~"
    hits = history.hits(before, word)
    others = sorted({hit.partition(":")[0] for hit in hits} - changes.keys())
    files = {name: texts[0] for name, texts in changes.items()}
    for name in rng.sample(others, min(_OTHERS, len(others))):
        text = history.text(before, name)
        if sum(map(len, files.values())) + len(text) <= characters[1]:
            files[name] = text
    if not characters[0] <= sum(map(len, files.values())) <= characters[1]:
        return None
    writer = _Writer(commit)
    writer.add("user", subject)
    writer.call("Grep", {"pattern": word, "output_mode": "content", "-n": True}, "\n".join(hits))
    for name in rng.sample(sorted(files), len(files)):
        shown = "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(files[name].splitlines(), 1))
        writer.call("Read", {"file_path": f"/repository/{name}"}, shown)
    for name, of in edits.items():
        path = f"/repository/{name}"
        for gone, come in of or ():
            given = {"file_path": path, "old_string": gone, "new_string": come}
            writer.call("Edit", given, f"The file {path} has been updated successfully.")
    writer.add("assistant", [{"type": "text", "text": body}])
    return writer.lines if all(edits.values()) else None


def edit_samples(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one sample of each session in a folder whose response is an edit, drawn by hash."""
    config = LongSftConfig(path=str(folder), shards=1, turns="each")
    index = build_index(config, Path.cwd())
    of: dict[str, list[Any]] = {}
    for sample in read_samples(config, index, index.accepted.drop("shard")):
        if sample.response.startswith(_EDIT):
            of.setdefault(sample.sample_id.partition("#")[0], []).append(sample)
    for samples in of.values():
        drawn = min(samples, key=lambda sample: text_digest([sample.sample_id]))
        texts = {text: getattr(drawn, text) for text in ("source", "context", "instruction", "response")}
        yield {"id": drawn.sample_id, **texts}


def parse(given: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = benchmark_parser(__doc__, "folder for the session files", required=True)
    add = parser.add_argument
    add("--repository", type=Path, default=Path(), help="folder with the git history")
    add("--end", default="HEAD", metavar="COMMIT", help="the newest commit")
    add("--count", type=int, default=60, help="sessions")
    add("--characters", nargs=2, type=int, default=(10_000, 22_000), metavar=("LEAST", "MOST"), help="of all files")
    add("--edits", type=Path, required=True, help="JSON lines of samples whose response is an edit")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Parse, make, write."""
    options = parse(given)
    history, made = History(options.repository, options.end), 0
    options.out.mkdir(parents=True, exist_ok=True)
    for commit, subject, body in history.commits():
        lines = session_lines(history, commit, subject, body, tuple(options.characters))
        if lines is not None:
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
            replace_local(options.out / f"{commit[:12]}.jsonl", lambda part, text=text: fill_with(part, text))
            made += 1
        if made == options.count:
            break
    write_samples(edit_samples(options.out), options.edits)
    say(f"wrote {made} sessions, and {options.edits}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
