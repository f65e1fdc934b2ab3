"""Write docs/errors.md from the catalogue of error codes; with `--check`, only report whether it is current."""

import sys
from pathlib import Path

from gateau_dagster.cli.explain import error_codes

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
HEAD = """\
# Error codes

Every error ends with a code in brackets, such as `[config.unknown_key]`. `gateau explain CODE` prints its entry.
`gateau plan --json` and `gateau status --json` contain the codes. Codes are stable; the wording of messages is not.

This page is written by `python scripts/error_codes.py`.
"""


def page() -> str:
    """Return the page in Markdown: a heading per code."""
    entries = (
        f"## `{code}`\n**Cause.** {entry['cause']}\\\n**Cure.** {entry['cure']}\n"
        for code, entry in error_codes().items()
    )
    return "\n".join([HEAD, *entries]).replace("<", "&lt;")


def main(arguments: list[str]) -> int:
    """Write the page and return 0; with `--check`, return 1 if the page is out of date."""
    if "--check" in arguments:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
