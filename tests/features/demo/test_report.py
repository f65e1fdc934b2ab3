"""The page of the demo says how to see the same on real text."""

from pathlib import Path

from gateau_dagster.features.demo.report import notes
from gateau_dagster.pipeline.observed import state_of
from tests.kit.project import configured


def test_the_demo_says_how_to_see_the_same_of_real_text(tmp_path: Path) -> None:
    of_demo, of_others = (
        notes(state_of(config=configured(folder=tmp_path, **sections))) for sections in ({"demo": {}}, {})
    )
    assert "make demo MODEL=" in of_demo[-1] and of_others == []
