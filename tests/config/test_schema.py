"""Any valid configuration survives being written and read."""

from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateau_dagster.config import Config
from gateau_dagster.pipeline.project import parse_project

# Credentials, variables and schemes of addresses are refused where they stand in a path.
LETTERS = st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters="@$:")
TEXT = st.text(LETTERS, min_size=1, max_size=12).map(lambda text: "p" + text)
POSITIVE = st.floats(min_value=1e-9, max_value=1e9)
SHARE = st.floats(0.001, 1)
COUNT = st.integers(1, 1000)


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A section with any of its keys."""
    return st.fixed_dictionaries({}, optional=keys)


MODEL = st.fixed_dictionaries(
    {"path": TEXT},
    optional={
        "revision": st.none() | TEXT,
        "rope_theta": st.none() | POSITIVE,
        "context": st.sampled_from(["full", "window"]),
        "window": st.none() | st.integers(8, 9000),
        "trust_remote_code": st.booleans(),
    },
)
PATHS = TEXT | st.lists(TEXT, min_size=1, max_size=3)
CONFIGS = st.fixed_dictionaries(
    {
        "long_sft": st.fixed_dictionaries({"path": PATHS}, optional={"shards": COUNT}),
        "models": st.fixed_dictionaries({"short": MODEL, "long": MODEL}, optional={"other_1": MODEL}),
    },
    optional={
        "storage": some(root=TEXT),
        "short_chat": st.none() | st.fixed_dictionaries({"path": PATHS}, optional={"fraction": SHARE}),
        "scoring": some(
            max_length=st.integers(1024, 99_999),  # the shortest of the default needle prompts
            segment_length=COUNT,
            template=st.sampled_from(["gateau", "chat"]),
            dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
            device=TEXT,
            batch_tokens=COUNT,
        ),
        "selection": some(preset=st.sampled_from(["paper", "official", "robust"]), alpha=st.floats(0, 1), count=COUNT),
        "training": some(
            enabled=st.booleans(),
            model=st.sampled_from(["short", "long"]),
            epochs=st.floats(1e-9, 1000),
            adam_betas=st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2),
            deepspeed=st.none()
            | st.sampled_from(["zero2", "zero3", "my.json"])
            | st.just({"zero_optimization": {"stage": 1}}),
        ),
        "evaluation": some(
            enabled=st.booleans(),
            benchmarks=st.lists(st.sampled_from(["heldout", "needle"]), unique=True),
            heldout=some(samples=COUNT, buckets=st.lists(COUNT, min_size=1, max_size=4)),
            needle=some(
                lengths=st.lists(st.integers(1, 1024), min_size=1, max_size=3),
                depths=st.lists(st.floats(0, 1), min_size=1, max_size=3),
            ),
        ),
        "execution": some(retries=st.integers(0, 9), executor=st.sampled_from(["in_process", "multiprocess"])),
        "demo": st.none() | some(seed=st.integers(0, 9)),
    },
)


@given(content=CONFIGS)
def test_any_valid_configuration_survives_being_written_and_read(content: dict[str, Any]) -> None:
    config = parse_project(yaml.safe_dump(content, allow_unicode=True), folder=Path("/project"))
    written = yaml.safe_dump(config.model_dump(mode="json"), allow_unicode=True)
    assert parse_project(written, folder=Path("/project")) == config


def test_no_key_asks_for_a_secret() -> None:
    """Secrets come from the environment, never from the file."""
    names = {name.lower() for name in _field_names(Config)}
    assert not {name for name in names if any(word in name for word in ("secret", "password", "api_key", "credential"))}


def _field_names(section: Any) -> set[str]:
    names: set[str] = set()
    for name, field in section.model_fields.items():
        names.add(name)
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(part, "model_fields"):
                names |= _field_names(part)
    return names
