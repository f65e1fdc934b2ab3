"""`gateau validate --synthesis`."""

from gateau_dagster.cli.commands import FeatureTrial
from gateau_dagster.config import Config


def _try(config: Config) -> None:
    from gateau_dagster.features.synthesis.trial import print_synthesis

    print_synthesis(config)


TRIALS = (
    FeatureTrial(
        option="synthesis",
        run=_try,
        help="Write and check synthetic samples about 20 documents, and print the yield. It asks the generator.",
    ),
)
