"""The configuration of the embedded demo."""

from pathlib import Path

from gateau_dagster.config import DemoConfig
from gateau_dagster.demo.configuration import embedded_demo
from gateau_dagster.methods.registry import chosen_methods, sample_tables


def test_the_embedded_demo_needs_no_file_and_knows_its_truth(tmp_path: Path) -> None:
    config = embedded_demo(tmp_path)
    assert config.demo == DemoConfig()
    assert config.folder == tmp_path and set(config.models) == {"short", "long"}
    assert config.selection.ground_truth
    assert Path(config.located_long_sft.path).is_relative_to(tmp_path / ".gateau")  # type: ignore[arg-type]


def test_the_demo_compares_methods_that_read_what_is_there_anyway(tmp_path: Path) -> None:
    """No further model is loaded, and no table made, for the report's section about methods."""
    config = embedded_demo(tmp_path)
    chosen = chosen_methods(config)
    assert {*chosen} == {config.selection.method, *config.selection.compare} and len(config.selection.compare) >= 3
    assert not sample_tables(config)
    read = {asset for one in chosen.values() for asset in one.reads(config)}
    assert read <= {"raw_long_sft", "perplexity/short", "perplexity/long", "cam", "combined_scores"}
