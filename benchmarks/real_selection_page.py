"""A page of every method and kind from what real_selection.py measured: AUROC and precision, setting by setting.

    .venv/bin/python benchmarks/real_selection_page.py build/benchmarks/real_selection.json [MORE ...] \
        [--page FILE] [--figures docs/evidence/real_text.json]

--figures is the file that README and docs are held to by tests: AUROC of all kinds together and of each kind.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import say
from real_selection import ALL

COLUMNS = {"auroc": "AUROC", "precision_20": "Precision in the best 20 %"}
# A preset's halves, as the methods are called that compute the same.
NAMES = {"gateau[robust]": "robust", "cam[robust]": "far_gain_fg", "hmg[robust]": "far_gain_hmp"}
LEFT_OUT = "far_gain"  # ranks as robust does
_HEAD = """\
# Selection on real text: every method and kind

Made by `benchmarks/real_selection_page.py`. [Selection on real text](real_text.md) says what samples, models and
settings are, and how to read it. A kind is compared with all kinds of the other label. Both sides have the same weight,
so a precision of 0.5 is chance. Intervals are 95 %.
"""


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: a table of kinds by methods for each setting and figure. results: as real_selection.py wrote them."""
    return "\n".join([_HEAD, *(line for setting, found in results.items() for line in _setting(setting, found))])


def figures(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return settings and machine of each measurement, and AUROC with its interval by setting, method and kind.

    `answerable`: the same without the far samples whose answer theta_B does not know.
    """
    found: dict[str, Any] = {"measured": [{name: each[name] for name in ("settings", "machine")} for each in measured]}
    for each in measured:
        for setting, result in each["results"].items():
            some = result["answerable"]
            found[setting] = {
                "samples": result["samples"],
                "auroc": _auroc(result["figures"]),
                "answerable": {"samples": some["samples"], "auroc": _auroc(some["figures"])},
            }
    return found


def _auroc(by_method: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    return {
        label: {task: [round(each["auroc"][name], 4) for name in ("value", "low", "high")] for task, each in of.items()}
        for label, of in by_method.items()
    }


def _setting(setting: str, found: Mapping[str, Any]) -> Iterator[str]:
    figures = {label: by_task for label, by_task in found["figures"].items() if label != LEFT_OUT}
    methods = sorted(figures, key=lambda label: -figures[label][ALL]["auroc"]["value"])
    yield f"## {setting}, {found['samples']} samples\n"
    for key, title in COLUMNS.items():
        yield f"| {title} | " + " | ".join(f"`{NAMES.get(label, label)}`" for label in methods) + " |"
        yield "|---" * (1 + len(methods)) + "|"
        for task in (ALL, *found["probability_of_response"]):
            yield f"| {task} | " + " | ".join(_shown(figures[label][task][key]) for label in methods) + " |"
        yield ""


def _shown(figure: Mapping[str, float]) -> str:
    value, low, high = (round(figure[name], 2) + 0.0 for name in ("value", "low", "high"))  # no -0.00
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


def main(given: list[str] | None = None) -> int:
    """Parse, read, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", nargs="+", type=Path, help="JSON files of real_selection.py")
    parser.add_argument("--page", type=Path, help="Markdown file to write")
    parser.add_argument("--figures", type=Path, help="JSON file to write")
    options = parser.parse_args(given)
    measured = [json.loads(file.read_text()) for file in options.measured]
    results = {setting: result for each in measured for setting, result in each["results"].items()}
    if options.page:
        options.page.write_text(page(results))
    if options.figures:
        options.figures.write_text(json.dumps(figures(measured)) + "\n")
    say(f"{len(results)} settings: {', '.join(results)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
