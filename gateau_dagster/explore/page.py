"""Build the page: markup, style and script in one file, whose content security policy restricts what may run in it."""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gateau_dagster.explore.sample_pages import LONGEST
from gateau_dagster.explore.scripts import as_json
from gateau_dagster.readable import number, plural
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.report.provenance import chosen_by, ranked_by

# In this order: each script uses those before it.
_SCRIPTS = (
    "loading.js",
    "elements.js",
    "columns.js",
    "order.js",
    "evidence.js",
    "strips.js",
    "sample.js",
    "list.js",
    "start.js",
)
_STYLES = ("style.css",)


def build_page(inputs: ReportInputs, index: str) -> str:
    """Return the viewer as HTML. Only its own script and the files that it loads run; nothing is fetched from
    elsewhere.

    Args:
        index: name of the index file.
    """
    environment = Environment(
        loader=PackageLoader("gateau_dagster.explore", package_path="."), autoescape=True, undefined=StrictUndefined
    )
    script, style = f'"use strict";\n(() => {{{_joined(_SCRIPTS)}}})();\n', _joined(_STYLES)
    return environment.get_template("explore.html.j2").render(
        manifest=Markup(as_json({"index": index})),
        summary=_summary(inputs),
        longest=number(LONGEST),
        script=Markup(script),
        style=Markup(style),
        script_hash=_hash(script),
        style_hash=_hash(style),
    )


def _summary(inputs: ReportInputs) -> str:
    chosen = number(inputs.selected_subset.height)
    made = inputs.generated_at.strftime("%Y-%m-%d %H:%M %Z").strip()
    return (
        f"{plural(inputs.given, 'sample')}, {chosen} selected. {ranked_by(inputs.config.selection)}; "
        f"{chosen_by(inputs.config.selection)}. Made {made}."
    )


def _joined(names: tuple[str, ...]) -> str:
    folder = files("gateau_dagster.explore")
    return "\n".join(["", *(folder.joinpath(name).read_text(encoding="utf-8") for name in names)])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
