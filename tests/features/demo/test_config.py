"""Read where data come from: addresses of the demo, and others."""

from pathlib import Path

from gateau_dagster.features.demo.config import SECTION, DemoConfig, demo_folder, demo_path
from gateau_dagster.pipeline.project import parse_project
from tests.kit.error_codes import refused

TEXT = """\
demo: {seed: 3}
long_sft: {path: ['demo:samples', mine.jsonl]}
short_chat: {path: 'demo:conversations'}
models: {short: {path: 'demo:short'}, long: {path: 'demo:long', rope_theta: 5}}
"""


def test_demo_paths_lead_below_the_work_folder_and_others_stay(tmp_path: Path) -> None:
    config = parse_project(TEXT, folder=tmp_path)
    section = SECTION.of(config)
    assert section is not None
    folder = demo_folder(config.work_folder, section)
    assert config.located_long_sft.path == [str(folder / "samples.jsonl"), "mine.jsonl"]
    assert config.located_short_chat is not None
    assert config.located_short_chat.path == str(folder / "conversations.jsonl")
    assert config.located_model("long").path == str(folder / "pair" / "long")
    assert config.located_model("long").rope_theta == 5


def test_another_seed_or_size_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    demos = [DemoConfig(), DemoConfig(seed=1), DemoConfig(samples=30), DemoConfig(conversations=7)]
    assert len({demo_folder(tmp_path, demo) for demo in demos}) == len(demos)


def test_without_a_demo_section_addresses_stay(tmp_path: Path) -> None:
    config = parse_project("long_sft: {path: a}\nmodels: {short: {path: s}, long: {path: l}}", folder=tmp_path)
    assert config.located("demo:short") == "demo:short"
    assert config.located_short_chat is None


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with refused("demo.address", match="demo:short, demo:long"):
        demo_path("demo:x", tmp_path, DemoConfig())
