"""Mistakes name their file, line and cure."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from gateau_dagster.config.load import line_of, misread_numbers, repeated_keys
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.project import parse_project

TEXT = """\
models:
  short:
    path: s
  long: {path: l}

list:
- a
- key: 1
"""


def node(text: str) -> yaml.Node | None:
    return yaml.compose(text, Loader=yaml.SafeLoader)


def test_the_line_of_a_key_and_of_the_nearest_one_above_it() -> None:
    tree = node(TEXT)
    assert line_of(tree, ["models"]) == 1
    assert line_of(tree, ["models", "short", "path"]) == 3
    assert line_of(tree, ["models", "long", "path"]) == 4
    assert line_of(tree, ["models", "long", "missing"]) == 4
    assert line_of(tree, ["missing", "too"]) == 1
    assert line_of(tree, ["list", 1, "key"]) == 8
    assert line_of(tree, ["list", 9]) == 6
    assert line_of(None, ["models"]) == 1


def test_keys_that_stand_twice_are_found_at_any_depth() -> None:
    assert list(repeated_keys(node(TEXT), "g")) == []
    found = [str(each) for each in repeated_keys(node("a:\n  b: 1\n  c: 2\n  b: 3\na: 1\na: 2\n"), "g")]
    assert found == [
        "  g:4: a.b: is given twice, first in line 2: keep one",
        "  g:5: a: is given twice, first in line 1: keep one",
        "  g:6: a: is given twice, first in line 1: keep one",
    ]


def test_a_document_that_holds_itself_ends() -> None:
    assert list(repeated_keys(node("&a {x: *a}"), "g")) == []


GOOD = """\
long_sft: {path: long.jsonl}
models:
  short: {path: s}
  long: {path: l}
"""


def message_of(text: str) -> str:
    with pytest.raises(GateauError) as failure:
        parse_project(text, folder=Path("/project"), name="gateau.yaml")
    return str(failure.value)


def lines_of(text: str) -> list[str]:
    """The mistakes, one a line, without the heading."""
    heading, *lines = message_of(text).splitlines()
    assert heading == "The configuration is wrong:"
    return [line.strip() for line in lines]


def test_no_message_shows_a_value_of_an_unknown_key() -> None:
    assert "secret-value" not in message_of(GOOD + "api_key: secret-value")


def test_an_alias_is_no_repeated_key() -> None:
    config = parse_project(GOOD.replace("{path: s}", "&m {path: s}").replace("{path: l}", "*m"), folder=Path())
    assert config.models["long"] == config.models["short"]


def test_merged_aliases_that_multiply_end_before_they_are_copied() -> None:
    lines = ["a: &a {x: 1, y: 2}"]
    for above, name in pairwise("abcdefghi"):
        lines.append(f"{name}: &{name} {{<<: [{', '.join([f'*{above}'] * 9)}], z{name}: 1}}")
    assert message_of("\n".join(lines)) == (
        "gateau.yaml:1: its aliases expand to more than 1,000,000 values: use fewer."
    )


@pytest.mark.parametrize("number", ["0", "0.5", "0x10", "1_0"])
def test_other_numbers_are_what_they_look_like(number: str) -> None:
    assert not [*misread_numbers(yaml.compose(f"a: {number}"), "gateau.yaml")]


def test_of_very_many_mistakes_the_first_are_named() -> None:
    """Each of 20,000 took as long as the file is."""
    found = message_of(GOOD + "".join(f"key{number}: 1\n" for number in range(20_000))).splitlines()
    assert len(found) == 52 and found[-1] == "  gateau.yaml: and 19,950 more"
    assert "key0: unknown key" in found[1] and "key49: unknown key" in found[50]


def test_numbers_in_scientific_notation_are_numbers() -> None:
    config = parse_project(GOOD + "training: {learning_rate: 2e-5}", folder=Path())
    assert config.training.learning_rate == 2e-5
