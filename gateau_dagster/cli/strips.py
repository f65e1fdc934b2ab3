"""The maps of methods that read spans, in the terminal: a line of blocks as long as the context, and what adds most."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gateau_dagster.readable import number
from gateau_dagster.report.evidence_card import Bar, SpanStrip, strip_card

_BLOCKS, _EMPTY = "·▁▂▃▄▅▆▇█", 0  # by level of shading
_WIDEST = 100
_THOUSANDTHS = 1000


def show_strips(out: Console, strips: Sequence[SpanStrip]) -> None:
    """Prints each map: nothing for none."""
    for strip in strips:
        card = strip_card(strip)
        out.print(
            Text.assemble(
                "\n",
                (f"By {', '.join(card.methods)}", "bold"),
                (f" what each stretch of the context adds to {card.adds}", "dim"),
            )
        )
        out.print(f"  {line_of(card.bars, max(10, min(_WIDEST, out.width - 4)))}", soft_wrap=True)
        for added, text in card.most:
            out.print(Text(f"  {number(added)}: {' '.join(text.split())}…"))
        if card.elsewhere:
            out.print(Text(f"  Instruction and response add {number(card.elsewhere)}.", style="dim"))


def line_of(bars: Sequence[Bar], width: int) -> str:
    """`width` blocks; each as high as the strongest of the stretches that it stands for."""
    levels = [_EMPTY] * width
    for bar in bars:
        first = int(bar.left * width / _THOUSANDTHS)
        last = max(first, int((bar.left + bar.width) * width / _THOUSANDTHS - 1e-9))
        for place in range(min(first, width - 1), min(last, width - 1) + 1):
            levels[place] = max(levels[place], bar.level)
    return "".join(_BLOCKS[level] for level in levels)
