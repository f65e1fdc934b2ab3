"""Find where a model is loaded from: as configured, or from the store that holds the one that was made."""

from pathlib import Path

import pytest

from gateau_dagster.pipeline.loadable import loadable_model, model_version
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.storage import Stamp
from gateau_dagster.storage.content import file_digests, model_content
from gateau_dagster.storage.documents import publish_folder
from tests.pipeline.configured import configured

CHERRY = {"path": "pre_experienced:long", "context": "window", "window": 64}


@pytest.mark.parametrize("place", ["local", "s3"])
def test_a_made_model_is_loaded_from_the_store(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    root = "store" if place == "local" else f"s3://{request.getfixturevalue('bucket')}/store"
    config = configured(
        tmp_path, **{"models.cherry": CHERRY, "models.long.trust_remote_code": True, "storage.root": root}
    )
    state = state_of(config=config)
    for content in ("one", "two"):
        (tmp_path / "output").mkdir()
        (tmp_path / "output" / "weights").write_text(content)
        files = file_digests(tmp_path / "output")
        stamp = Stamp(fingerprint=f"f-{content}", content=model_content(files), files=files)
        publish_folder(state.store, tmp_path / "output", "pre_experienced/cherry", stamp)
        assert state.stamp("pre_experienced/cherry", None) == stamp
        section = loadable_model(state, "cherry")
        assert (Path(section.path) / "weights").read_text() == content
        assert (section.context, section.window, section.base) == ("window", 64, None)
        assert section.trust_remote_code, "the code is that of the model it was made from"
        assert model_version(state, "cherry") == stamp.content
        if place == "s3":
            state.store.files.remove("pre_experienced/cherry/weights")
            assert loadable_model(state, "cherry") == section, "a download is kept"
            assert (Path(section.path) / "weights").exists()


def test_another_model_is_where_the_configuration_says(tmp_path: Path) -> None:
    state = state_of(
        config=configured(tmp_path, **{"models.long.path": "demo:long", "models.short.path": "demo:short"})
    )
    assert loadable_model(state, "long") == state.config.located_model("long")
    assert model_version(state, "long") == state.model_digests["long"]
