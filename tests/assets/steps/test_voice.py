"""A step's lines in the log: readable, not too many, and never a long silence."""

import time

from assets.steps.progress import Voice, progress_line


def test_the_line() -> None:
    assert progress_line(12, 63, "samples", "", 4.0) == "12/63 samples (19%), 3.0 samples/s, 17 s left"
    assert progress_line(5, None, "files", "a.jsonl", 2.0) == "5 files, 2.5 files/s, a.jsonl"
    known = progress_line(12, 63, "samples", "1.5 samples/s, shard 1", 4.0, left=30.0)
    assert known == "12/63 samples (19%), 30 s left, 1.5 samples/s, shard 1"
    assert progress_line(0, 10, "samples", "", 0.0) == "0/10 samples (0%), 0.0 samples/s"


def test_a_silent_step_is_still_heard_of() -> None:
    said: list[str] = []
    with Voice(said.append, every=0.02, silence=0.05).speaking():
        time.sleep(0.3)
    assert 2 <= len(said) <= 6
    assert all(line.startswith("at work for") for line in said)
    count = len(said)
    time.sleep(0.12)
    assert len(said) == count, "it has ended"


def test_old_news_are_said_again_as_such() -> None:
    said: list[str] = []
    voice = Voice(said.append, every=0.05, silence=0.1)
    with voice.speaking():
        voice.hear(3, 12, "samples", "shard 1", 9.0)
        time.sleep(0.25)
    assert said and all(line.startswith("3/12 samples (25%), 9 s left, shard 1; the last news is") for line in said)


def test_reports_are_said_now_and_then() -> None:
    said: list[str] = []
    voice = Voice(said.append, every=0.1, silence=60)
    end = time.monotonic() + 0.35
    with voice.speaking():
        while time.monotonic() < end:
            voice.hear(1, 2, "steps", "", None)
            time.sleep(0.005)
    assert 1 <= len(said) <= 3
