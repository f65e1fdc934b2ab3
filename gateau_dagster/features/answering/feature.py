"""Check the servers that answer questions and judge answers."""

from collections.abc import Callable, Iterator
from functools import partial

from gateau_dagster.config import Config
from gateau_dagster.evaluation.asset_names import ANSWERS, CHARACTERISTICS, JUDGMENTS, PAIRS
from gateau_dagster.evaluation.server_client import server_key
from gateau_dagster.methods.judge import SAMPLE_RATINGS
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.feature import Feature


class Answering(Feature):
    """Servers that answer the questions of benchmarks, and that judge answers."""

    def machine_checks(self, config: Config) -> Iterator[Callable[[], object]]:
        """Yield the checks of the keys of the engine and the judge, if a required asset asks them."""
        families = {key.partition("/")[0] for key in pipeline_of(config).required}
        for place, server, asking in (
            ("evaluation.engine", config.evaluation.engine, {ANSWERS}),
            ("evaluation.judge", config.evaluation.judge, {JUDGMENTS, PAIRS, CHARACTERISTICS, SAMPLE_RATINGS}),
        ):
            if server is not None and families & asking:
                yield partial(server_key, place, server.key, server.base_url)


FEATURE = Answering()
