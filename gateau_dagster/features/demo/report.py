"""Say on the page what the demo shows, and what it does not."""

from markupsafe import Markup

from gateau_dagster.features.demo.config import SECTION
from gateau_dagster.pipeline.state import State

_MODELS = Markup(
    "The demo's models are tiny and its language is made up. Two of five of its samples need far text, nearly as "
    "many as in its use: random samples are expected to train as good a model. A selection can pay where few "
    "samples need far text. The checkpoint is the short model, trained on the chosen samples and short "
    "conversations: the long one finds every fact already."
)
_REAL = Markup(
    "The same page on <b>real text and a pretrained model</b>, with the same figure at its top: <code>make demo "
    "MODEL=HuggingFaceTB/SmolLM2-135M-Instruct</code> in this project's source, about ten minutes on two cores. A"
    " hub name is downloaded; a folder with a model and its tokenizer works, too."
)


def notes(state: State) -> list[Markup]:
    """Return the notes of a configuration of the demo."""
    return [] if SECTION.of(state.config) is None else [_MODELS, _REAL]
