"""What the processes of a test are, some of which may end while it looks."""

import psutil


def command_of(process: psutil.Process) -> list[str]:
    """Its command line; nothing where it has ended, or is a zombie."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def descendants(pid: int, word: str) -> list[psutil.Process]:
    """Processes below this one whose command line has a part that contains the word."""
    found = psutil.Process(pid).children(recursive=True)
    return [child for child in found if any(word in part for part in command_of(child))]
