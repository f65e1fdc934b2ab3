"""What is told of a run that failed."""

import dagster as dg

from assets.runs.launching import failure_of
from gateau_dagster.errors import UnforeseenError


def test_the_first_failure_is_the_message() -> None:
    @dg.op
    def fails() -> None:
        raise dg.Failure(description="the cause and the cure")

    @dg.op
    def breaks() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise RuntimeError("outer") from error

    def failure(op: dg.OpDefinition) -> Exception:
        @dg.job(name=f"job_{op.name}")
        def job() -> None:
            op()

        return failure_of(job.execute_in_process(raise_on_error=False).all_events)

    told, defect = failure(fails), failure(breaks)
    assert not isinstance(told, UnforeseenError) and str(told) == "fails: the cause and the cure"
    assert isinstance(defect, UnforeseenError) and (defect.kind, str(defect)) == ("KeyError", "breaks: 'inner'")
    assert "in breaks" in defect.trace and "outer" in defect.trace
