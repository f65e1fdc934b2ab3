"""The schedule is checked by Dagster, wherever a configuration is read."""

import itertools
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from dagster._utils.schedules import is_valid_cron_schedule, schedule_execution_time_iterator
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.config import Config
from gateau_dagster.resources.configuration import ConfigurationResource
from gateau_dagster.resources.project import check_schedule, checked_project
from tests.kit.error_codes import refused


def with_schedule(line: str) -> Config:
    return Config.model_validate({"long_sft": {"path": "a"}, "execution": {"schedule": line}})


TAKEN = ["@daily", "0 0-6/2 1,15 * 1-5", "0 0 29 2 *"]
REFUSED = ["every day", "0 3 * *", "0 0 3 * * *", "@reboot", "", "0 0 31 apr *"]


@pytest.mark.parametrize("line", [*TAKEN, *REFUSED])
def test_what_dagster_would_never_run_by_is_refused(line: str) -> None:
    with refused("execution.schedule") if line in REFUSED else nullcontext():
        check_schedule(with_schedule(line))


def test_the_time_zone_of_the_schedule() -> None:
    def zone(name: str) -> str:
        return Config.model_validate({"long_sft": {"path": "a"}, "execution": {"timezone": name}}).execution.timezone

    assert [zone(name) for name in ("UTC", "Europe/Berlin")] == ["UTC", "Europe/Berlin"]
    for name in ("Berlin", "../x", ""):
        with pytest.raises(ValueError, match=r"execution\.timezone"):
            zone(name)


FIELDS = st.tuples(
    st.sampled_from(["*", "0", "5", "60", "*/2", "a", "1,"]),
    st.sampled_from(["*", "3", "1-3", "24"]),
    st.sampled_from(["*", "1", "30", "31", "30,31", "L", "32"]),
    st.sampled_from(["*", "2", "2,4", "jun", "13"]),
    st.sampled_from(["*", "1", "MON-FRI", "7", "8"]),
)


@given(fields=FIELDS)
def test_the_check_is_what_the_daemon_does(fields: tuple[str, ...]) -> None:
    """Slow twin: the function by which the daemon finds the times, asked for the next two."""
    line = " ".join(fields)
    runs = is_valid_cron_schedule(line)
    if runs:
        try:
            list(itertools.islice(schedule_execution_time_iterator(time.time(), line, "UTC"), 2))
        except ValueError:
            runs = False
    if runs:
        check_schedule(with_schedule(line))
    else:
        with refused("execution.schedule"):
            check_schedule(with_schedule(line))


def test_every_way_to_a_configuration_names_file_and_line(tmp_path: Path) -> None:
    from gateau_dagster.definitions import build_definitions  # it names a configuration for its whole process

    file = tmp_path / "g.yaml"
    file.write_text(
        "long_sft: {path: a}\nselection: {method: length}\nexecution:\n  retries: 1\n  schedule: every day\n"
    )
    for read in (
        lambda: checked_project(file),
        lambda: build_definitions(str(file)),
        lambda: ConfigurationResource(config_file=str(file)).config,
    ):
        with refused("execution.schedule", r"g\.yaml:5.*execution\.schedule.*'every.*day'"):
            read()
