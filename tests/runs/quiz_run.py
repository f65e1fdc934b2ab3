"""`python -m tests.runs.quiz_run run --config FILE`: the command line, which knows the benchmark `quiz`."""

import sys

from gateau_dagster.cli import main
from tests.features.evaluation.quiz import with_quiz

if __name__ == "__main__":
    with with_quiz():
        sys.exit(main())
