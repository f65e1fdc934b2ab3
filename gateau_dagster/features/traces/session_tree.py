"""Find the turns of a session file that the model saw last, in causal order.

Lines name the line that they follow, so that a file is a tree. The way from the last turn up to the first line is the
conversation. Files break this in known ways, each of which has its rule here:

| in the file | rule |
|---|---|
| the line that is followed was never written, or lies on a circle | the line before it in the file counts instead |
| a history written again under other ids | each turn counts once; lines that follow a copy follow its original |
| parts of one answer on several lines, results that hang on them | the whole answer, then all results |
| a compaction | what precedes it is left out, except turns that it keeps: they follow its summary |
| the first turn after a compaction follows a line before it | it follows the summary, or the turns that are kept |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Message = dict[str, Any]

WRITTEN_TWICE = "lines written twice"
BRANCH = "turns of an abandoned branch"
COMPACTED = "turns before a compaction"
UNANSWERED = "turns after a compaction that no answer follows"
SUBAGENTS = "turns of subagents"
_SHORTEST_REPLAY = 3  # turns; a shorter one without ids or times may be the same question, asked and answered again

_NONE = frozenset[str]()
_NO_TOOLS = (_NONE, _NONE)
_MARGIN = 16  # lines beside the kept ones that the way from the last to the first of them may pass


@dataclass(slots=True, kw_only=True, eq=False)
class SessionLine:
    """A line: its place in the tree, and its message if it is a turn.

    key, parent: the ids of the line and of the line that it follows. begins: the file says that it follows no line.
    reason: why the line is no turn, if it would be one otherwise. answer: the id of the API's answer, whose parts
    have a line each. time: when it was written; texts of one format, which sort by time. aside: it is a subagent's.
    compacts: the model no longer saw what precedes it. summary: it is the summary of a compaction.
    head, tail: the first and the last line that a compaction keeps; kept: all of them. anchor: the line that these
    follow. original: the earlier line that this one repeats, where the file says so. meta: a request that the program
    wrote. tools: see `_tools`.
    """

    key: str | None = None
    parent: str | None = None
    begins: bool = False
    message: Message | None = None
    reason: str | None = None
    answer: str | None = None
    time: str | None = None
    aside: bool = False
    compacts: bool = False
    summary: bool = False
    head: str | None = None
    tail: str | None = None
    kept: tuple[str, ...] = ()
    anchor: str | None = None
    original: SessionLine | None = None
    meta: bool = False
    tools: tuple[frozenset[str], frozenset[str]] | None = None


def last_seen(entries: Sequence[SessionLine]) -> tuple[list[SessionLine], Counter[str]]:
    """Return the turns that the model saw last, in causal order, and how many others there are by reason."""
    turns = [entry for entry in entries if entry.message is not None]
    is_aside = all(entry.aside for entry in turns)  # a subagent's file
    lines = [entry for entry in entries if is_aside or not entry.aside]
    copies = _copies(lines)
    end = _end(lines, copies)
    tree = _Tree(lines[:end], {copy: place for copy, place in copies.items() if copy < end})
    seen = tree.conversation()
    left = Counter[str]()
    left[SUBAGENTS] = len(turns) - sum(entry.message is not None for entry in lines)
    shown = set(seen)
    for place, entry in enumerate(lines):
        if entry.message is None or place in shown:
            continue
        if place >= end:
            left[WRITTEN_TWICE if place in copies else UNANSWERED] += 1
        elif place in tree.gone:
            left[WRITTEN_TWICE] += 1
        else:
            left[COMPACTED if place < tree.start and place not in tree.kept else BRANCH] += 1
    return [lines[place] for place in seen], +left


def _tools(entry: SessionLine) -> tuple[frozenset[str], frozenset[str]]:
    """Return the ids of a turn's calls, and those of the calls whose results it holds."""
    if entry.tools is None:
        content, calls, results = entry.message["content"] if entry.message is not None else None, _NONE, _NONE
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "tool_use" and isinstance(call := part.get("id"), str):
                calls |= {call}
            elif kind == "tool_result" and isinstance(call := part.get("tool_use_id"), str):
                results |= {call}
        entry.tools = (calls, results) if calls or results else _NO_TOOLS
    return entry.tools


def _calls(entry: SessionLine) -> frozenset[str]:
    return _tools(entry)[0]


def _results(entry: SessionLine) -> frozenset[str]:
    return _tools(entry)[1]


def _is_answer(entry: SessionLine) -> bool:
    return entry.message is not None and entry.message["role"] == "assistant"


def _is_request(entry: SessionLine) -> bool:
    return entry.message is not None and entry.message["role"] == "user" and not _results(entry)


def _copies(lines: Sequence[SessionLine]) -> dict[int, int]:
    """Return the original of each turn that the file repeats under another id, both by their places.

    Equal content is no copy yet: a user may say the same twice. A copy has the same ids of answer or tools, or the
    time of its original although later lines precede it, or is part of a repetition of everything before it. A
    request before a copy is one if its original precedes the copy's original.
    """
    turns = [place for place, entry in enumerate(lines) if entry.message is not None]
    places = {entry: place for place, entry in enumerate(lines)} if any(entry.original for entry in lines) else {}
    copies, latest = dict[int, int](), ""
    known, more = dict[tuple[str | None, str | None], int](), dict[tuple[str | None, str | None], list[int]]()
    for number, place in enumerate(turns):
        entry = lines[place]
        if entry.original in places:
            copies[place] = places[entry.original]
            continue
        ids = entry.answer or min(_calls(entry) | _results(entry), default=None)
        mark = (ids, entry.time)
        original = known.get(mark)
        if original is not None and lines[original].message != entry.message:
            original = next((other for other in more.get(mark, ()) if lines[other].message == entry.message), None)
        last = turns[number - 1] if number else None
        goes_on = last is not None and (last == original or last in copies)
        is_late = entry.time is not None and (entry.time < latest or (entry.time == latest and goes_on))
        if original is not None and (ids is not None or is_late):
            copies[place] = original
        elif (ids is not None or entry.time is not None) and known.setdefault(mark, place) != place:
            more.setdefault(mark, []).append(place)
        latest = max(latest, entry.time or "")
    before = {below: above for above, below in pairwise(turns)}
    for place in reversed(turns):
        above, original = before.get(place), before.get(copies.get(place, -1))
        if above is None or original is None or place not in copies or above in copies or above <= original:
            continue
        if _is_request(lines[above]) and lines[above].message == lines[original].message:
            copies[above] = original
    copies |= _replayed(lines, [place for place in turns if place not in copies])
    for place in sorted(copies):
        copies[place] = copies.get(copies[place], copies[place])
    return copies


def _replayed(lines: Sequence[SessionLine], turns: Sequence[int]) -> dict[int, int]:
    """Return the copies in whole histories that the file repeats."""
    copies, unique, number = dict[int, int](), list[int](), 0
    while number < len(turns):
        size = len(unique)
        if _SHORTEST_REPLAY <= size <= len(turns) - number and all(
            lines[turns[number + step]].message == lines[unique[step]].message for step in range(size)
        ):
            copies.update(zip(turns[number : number + size], unique, strict=True))
            number += size
        else:
            unique.append(turns[number])
            number += 1
    return copies


def _end(lines: Sequence[SessionLine], copies: Mapping[int, int]) -> int:
    """Return the place of the first compaction that no answer follows: it has changed what no answer has seen."""
    end = len(lines)
    for place in range(len(lines) - 1, -1, -1):
        if _is_answer(lines[place]) and place not in copies:
            break
        if lines[place].compacts:
            end = place
    return end


@dataclass(eq=False)
class _Tree:
    """The lines by their places.

    gone: turns of which the file has another copy. start: the compaction with which the conversation begins, or 0.
    kept: the lines that it keeps.
    """

    lines: Sequence[SessionLine]
    copies: Mapping[int, int]
    gone: set[int] = field(default_factory=set)
    start: int = 0
    kept: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self._places = {entry.key: place for place, entry in enumerate(self.lines) if entry.key is not None}
        self._compaction = list[int]()  # of each line, the last one before it; -1 if there is none
        last, number = -1, list[int]()
        for place, entry in enumerate(self.lines):
            self._compaction.append(last)
            last = place if entry.compacts else last
            number.append(last)
        stands = dict[int, int]()  # by the original, the turn that counts
        for copy, original in sorted(self.copies.items()):
            # The model sees nothing before a compaction: there, the copy that follows it counts.
            earlier = stands.get(original, original)
            is_same = number[copy] == number[earlier]
            self.gone.add(copy if is_same else earlier)
            stands[original] = earlier if is_same else copy
        for copy, original in self.copies.items():
            for key in (self.lines[copy].key, self.lines[original].key):
                if key is not None:
                    self._places[key] = stands[original]
        # The line that a line follows, where the file names another or none; what follows a line instead, from a place.
        self._fixed, self._instead = dict[int, int](), dict[int, tuple[int, int]]()
        self._kept = dict[int, list[int]]()
        self._continued = dict[int, int]()  # the first turn after a compaction and its summary
        self._free = [*range(len(self.lines))]  # towards the nearest line, from each one backwards, that is not seen
        for place in self.gone:
            self._leave(place)
        for place, entry in enumerate(self.lines):
            if entry.compacts:
                self._compact(place)
            elif place not in self.gone:
                is_after = self._places.get(entry.parent or "", -1) > place  # its parent is written behind it
                if entry.message is not None and not entry.summary and not is_after:
                    self._continued.setdefault(self._compaction[place], place)
                if entry.key is None and not entry.begins:
                    self._splice(place)

    def conversation(self) -> list[int]:
        """Return the places of the turns that the model saw last, in causal order."""
        path, at = list[int](), self._leaf()
        while at is not None:
            self._leave(at)
            path.append(at)
            at = self._above(at)
        path.reverse()
        if path and self.lines[path[0]].compacts:
            self.start, self.kept = path[0], frozenset(self._kept[path[0]])
        return [place for place in self._whole(path) if self.lines[place].message is not None]

    def _leave(self, place: int) -> None:
        self._free[place] = place - 1

    def _before(self, place: int) -> int | None:
        """Return the nearest earlier line that is not on the way yet; nearly constant time (path halving)."""
        free, at = self._free, place - 1
        while at >= 0 and free[at] != at:
            if free[at] >= 0:
                free[at] = free[free[at]]
            at = free[at]
        return at if at >= 0 else None

    def _is_free(self, place: int) -> bool:
        return self._free[place] == place

    def _leaf(self) -> int | None:
        """Return the last turn; if others follow it although they were written before, the last of these."""
        below, turns = dict[int, int](), list[int]()
        for place, entry in enumerate(self.lines):
            if place in self.gone:
                continue
            if entry.message is not None:
                turns.append(place)
            if entry.parent is not None and not entry.compacts and entry.parent in self._places:
                below[self._places[entry.parent]] = place
        leaf = self._behind_results(turns)
        passed = set[int]()
        while leaf in below and leaf not in passed:
            passed.add(leaf)
            leaf = below[leaf]
        return leaf

    def _behind_results(self, turns: Sequence[int]) -> int | None:
        """Return the last turn; of late results, the turn that follows another result of their answer."""
        if not turns or not _results(self.lines[turns[-1]]):
            return turns[-1] if turns else None

        def answer(result: int | None) -> str | None:
            call = self._named(result) if result is not None and _results(self.lines[result]) else None
            return self.lines[call].answer if call is not None else None

        last = next((place for place in reversed(turns) if not _results(self.lines[place])), None)
        late = answer(turns[-1])
        return last if last is not None and late is not None and answer(self._named(last)) == late else turns[-1]

    def _above(self, place: int) -> int | None:
        """Return the line that a line follows; None for the first."""
        named = self._named(place)
        if named is None and (self.lines[place].compacts or self.lines[place].begins):
            return None
        if named is not None and self._is_free(named):
            return named
        before = self._before(place)
        if before is None:
            return None
        instead = self._followed(before, place)
        return instead if self._is_free(instead) else before

    def _named(self, place: int) -> int | None:
        """Return the line that the file says a line follows; None if there is no such line."""
        entry = self.lines[place]
        if place in self._fixed:
            return self._fixed[place]
        above = self._places.get(entry.parent) if entry.parent is not None and not entry.compacts else None
        if above is None or above == place:
            return None
        compaction = self._compaction[place]
        if 0 <= above < compaction and self.lines[compaction].parent is None:
            kept = self._kept.get(compaction, [])
            if above in kept:
                if above == kept[-1] and self.lines[compaction].anchor == self.lines[compaction].key:
                    return None
            elif place <= self._continued.get(compaction, place):
                return None
        return self._followed(above, place)

    def _followed(self, above: int, place: int) -> int:
        passed = set[int]()
        while above in self._instead and self._instead[above][0] < place and above not in passed:
            passed.add(above)
            above = self._instead[above][1]
        return above

    def _splice(self, place: int) -> None:
        """Put a line without an id, which no other can name, behind the one that it follows.

        What follows that one then follows this line, unless the next line has lost its parent: it was this one.
        """
        above = self._named(place)
        if above is None and (last := self._last(place)) is not None:
            above = self._followed(last, place)
        if above is not None:
            self._fixed[place] = above
            below = self.lines[place + 1] if place + 1 < len(self.lines) else SessionLine()
            if below.key is None or below.begins or below.parent in self._places:
                self._instead[above] = (place, place)

    def _last(self, place: int) -> int | None:
        return next((other for other in range(place - 1, -1, -1) if other not in self.gone), None)

    def _compact(self, place: int) -> None:
        """Put the turns that a compaction keeps behind its summary, and what follows the summary behind them."""
        entry = self.lines[place]
        # A turn that the file has again behind a later compaction belongs there.
        kept = [each for each in self._kept_by(place) if self._compaction[each] <= place]
        self._kept[place] = kept
        if not kept:
            return
        anchor = self._places.get(entry.anchor or "", place)
        if entry.anchor is None and place + 1 < len(self.lines) and self.lines[place + 1].summary:
            anchor = place + 1
        for above, below in pairwise([anchor, *kept]):
            self._fixed[below] = above
        self._instead[anchor] = (place, kept[-1])

    def _kept_by(self, place: int) -> list[int]:
        """Return the lines that a compaction keeps: those that it names, else from the first to the last one."""
        entry = self.lines[place]
        if entry.kept:
            kept = [self._places[key] for key in dict.fromkeys(entry.kept) if key in self._places]
            return [each for each in dict.fromkeys(kept) if not self.lines[each].compacts]
        head = self._places.get(entry.head or "")
        if head is None:
            return []
        tail = self._places.get(entry.tail or "", self._last(place))
        path, at = dict[int, None](), tail
        most = 2 * abs(place - head) + _MARGIN
        while at is not None and at not in path and len(path) < most:
            path[at] = None
            if at == head:
                kept = [*reversed(path)]
                break
            above = self._named(at)
            begins = self.lines[at].begins or self.lines[at].compacts
            at = self._followed(at - 1, at) if above is None and not begins else above
        else:
            # The lines between them in the file, unless the compaction itself is on a way without its first line.
            between = range(head, (head if tail is None else tail) + 1) if entry.parent is None else ()
            kept = [each for each in between if not self.lines[each].summary]
        return [each for each in kept if not self.lines[each].compacts and each not in self.gone]

    def _whole(self, path: Sequence[int]) -> Iterator[int]:
        """Yield the lines of a path, each answer with all its parts, then the results of all its calls."""
        groups, others = self._answers(path), self._off(path)
        given = set[int]()
        for place in path:
            if place in given:
                continue
            group = groups.get(place)
            if group is None or not others:
                given.update(group or ())
                yield from group or (place,)
                continue
            given.update(group)
            parts = [*group, *self._beside(group, others, given)]
            yield from parts
            for call in dict.fromkeys(call for part in parts for call in sorted(_calls(self.lines[part]))):
                for other in others.get(("result", call), ())[:1]:
                    if other not in given:
                        given.add(other)
                        yield other

    def _beside(
        self, group: Sequence[int], others: Mapping[tuple[str, str | None], Sequence[int]], given: set[int]
    ) -> Iterator[int]:
        """Yield the lines beside the path with parts of an answer: they follow it, its results, or what it follows."""
        first, parts = self.lines[group[0]], set(group)
        above = self._named(group[0])
        calls = {call for part in group for call in _calls(self.lines[part])}
        for other in others.get(("answer", first.answer), ()):
            named = self._named(other)
            if other in given or named is None:
                continue
            if named in parts or named == above or _results(self.lines[named]) & calls:
                given.add(other)
                parts.add(other)
                calls |= _calls(self.lines[other])
                yield other

    def _answers(self, path: Sequence[int]) -> dict[int, list[int]]:
        """Return, by the place of each line of an answer with an id, all lines of it on the path."""
        groups, group, answer = dict[int, list[int]](), list[int](), None
        for place in path:
            entry = self.lines[place]
            if _is_request(entry):
                answer = None
            elif _is_answer(entry):
                if entry.answer is None or entry.answer != answer:
                    group, answer = list[int](), entry.answer
                group.append(place)
                groups[place] = group
        return groups

    def _off(self, path: Sequence[int]) -> dict[tuple[str, str | None], list[int]]:
        """Return the lines beside the path that may belong to it: by the answer that they are parts of, and by the
        call that they answer.
        """
        on_path = set(path)
        answered = {call for place in path for call in _results(self.lines[place])}
        others = dict[tuple[str, str | None], list[int]]()
        for place, entry in enumerate(self.lines):
            if place in on_path or place in self.gone or entry.message is None:
                continue
            if entry.answer is not None and _is_answer(entry):
                others.setdefault(("answer", entry.answer), []).append(place)
            for call in _results(entry) - answered:
                others.setdefault(("result", call), []).append(place)
        return others
