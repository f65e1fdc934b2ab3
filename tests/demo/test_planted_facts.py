"""Where the demo's facts stand, against a search word by word."""

from gateau_dagster.demo.language import VALUES
from gateau_dagster.demo.long_samples import demo_samples
from gateau_dagster.demo.planted_facts import planted_values


def test_each_asked_value_is_found_where_it_stands() -> None:
    recalled = 0
    for sample in demo_samples(50, 3):
        words, asked = sample["context"].split(), sample["instruction"].split()
        places, expected = [len(" ".join([*words[:index], ""])) for index in range(len(words))], []
        for name in asked[1:] if asked[0] == "recall" else []:
            value = next(index for index, word in enumerate(words) if word in VALUES[name])
            assert words[value - 2 : value] == ["note", name]
            expected.append(places[value])
        assert planted_values(sample["context"], sample["instruction"]) == expected
        recalled += bool(expected)
    assert recalled == 30


def test_other_texts_have_none() -> None:
    assert planted_values("note metal metal-3 .", "tell about metal") == []
    assert planted_values("note metal metal-3 .", "") == []
    assert planted_values("footnote metal metal-3 . note metals metal-1 .", "recall metal") == []
