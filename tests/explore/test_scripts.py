"""Data as scripts: whatever the text, it is data and no code."""

import json

import pytest

from gateau_dagster.explore.publish import as_json, as_script, named_by_content


@pytest.mark.parametrize(
    "text", ["</script><script>x()", "<!--<script>", "\u2028\u2029", "'\"\\`${x}", "żółć 漢字 \x00"]
)
def test_text_ends_no_script_and_comes_back(text: str) -> None:
    found = as_json([text])
    assert json.loads(found) == [text]
    assert not {"<", "\u2028", "\u2029"} & {*found}


def test_what_is_no_number_in_json_is_refused() -> None:
    with pytest.raises(ValueError):
        as_script("a.js", [float("nan")])


def test_another_content_has_another_name() -> None:
    assert named_by_content("index", [1]) == named_by_content("index", [1]) != named_by_content("index", [2])
