"""Methods' own maps in the terminal."""

from io import StringIO

import pytest
from rich.console import Console

from gateau_dagster.cli.show import line_of, show_strips
from gateau_dagster.data.sample import Sample
from gateau_dagster.explanation.maps import Bar, SpanStrip, Stretch

TEXT = "[bold]first[/bold] part\nof the context, then the rest of it"


def bar(left: float, width: float, level: int) -> Bar:
    return Bar(left=left, width=width, level=level, text="")


@pytest.mark.parametrize(
    ("bars", "line"),
    [
        ([], "····"),
        ([bar(0, 250, 8), bar(250, 500, 1)], "█▁▁·"),
        ([bar(990, 10, 3)], "···▃"),
        # Many stretches in one block: the strongest; a stretch of no width has a block of its own.
        ([bar(0, 10, 2), bar(10, 10, 5), bar(20, 10, 1), bar(1000, 0, 4)], "▅··▄"),
    ],
)
def test_blocks_are_as_high_as_the_strongest_stretch_below_them(bars: list[Bar], line: str) -> None:
    assert line_of(bars, 4) == line


def test_a_map_is_told_in_words_and_its_text_is_not_markup() -> None:
    sample = Sample(sample_id="s", source="", context=TEXT, instruction="", response="")
    stretches = [Stretch(start=0, end=30, added=0.75), Stretch(start=30, end=len(TEXT), added=0.0)]
    strip = SpanStrip(methods=["ladm", "cam"], adds="CDS", sample=sample, stretches=stretches, elsewhere=0.25)
    out = Console(width=80, record=True, file=StringIO())
    show_strips(out, [])
    assert out.export_text(clear=False) == ""
    show_strips(out, [strip])
    heading, line, most, elsewhere = out.export_text().strip().splitlines()
    assert heading.startswith("By ladm, cam what each stretch") and heading.endswith("CDS")
    assert {*line.strip()} == {"█", "·"}
    assert most.strip() == "0.7500: [bold]first[/bold] part of the…"
    assert elsewhere.strip() == "Instruction and response add 0.2500."
