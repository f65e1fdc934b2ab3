"""Find the versions of the texts."""

from collections.abc import Mapping

from gateau_dagster.data.sources import FILE_DIGESTS
from gateau_dagster.features.text_mix.mix import text_key, text_signatures
from gateau_dagster.pipeline.state import State


def partition_digests(state: State) -> Mapping[str, str]:
    """Return the signature of each homologous model's texts, by the key of the input; see `text_signatures`."""
    config = state.config
    found = text_signatures(config, config.work_folder / "cache" / FILE_DIGESTS)
    return {text_key(name): signature for name, signature in found.items()}
