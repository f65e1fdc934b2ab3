import yaml

from gateau_dagster.config.load import line_of, repeated_keys

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
    found = list(repeated_keys(node("a:\n  b: 1\n  c: 2\n  b: 3\na: 1\na: 2\n"), "g"))
    assert found == [
        "  g:4: a.b: stands twice, first in line 2",
        "  g:5: a: stands twice, first in line 1",
        "  g:6: a: stands twice, first in line 1",
    ]


def test_a_document_that_holds_itself_ends() -> None:
    assert list(repeated_keys(node("&a {x: *a}"), "g")) == []
