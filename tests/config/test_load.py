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


@pytest.mark.parametrize(
    ("section", "mistake"),
    [
        ("scorring: {}", "5: scorring: unknown key; did you mean scoring?"),
        ("scoring:\n  max_lenght: 3", "6: scoring.max_lenght: unknown key; did you mean max_length?"),
        ("api_key: secret-value", "5: api_key: unknown key; known here: storage, long_sft, "),
        ("folder: /x", "5: folder: unknown key; it follows from the place of this file"),
        ("name: x", "5: name: unknown key; it follows from the place of this file"),
        ("scoring:\n  1: 2", "6: scoring.1: should be text, so put it in quotes (found 1)"),
        (
            "scoring: {max_length: long}",
            "5: scoring.max_length: should be a whole number, but it is not one (found 'long')",
        ),
        ("scoring: {device: [cpu]}", "5: scoring.device: should be text (found ['cpu'])"),
        (
            "scoring: {device: cuda, device_map: auto}",
            "5: scoring: device_map: auto takes all GPUs, but device is cuda",
        ),
        ("scoring: {workers: 2, device_map: auto}", "5: scoring: device_map: auto gives all GPUs to one model, but"),
        ("scoring: {workers: 0}", "5: scoring.workers: should be greater than or equal to 1"),
        ("scoring:", "5: scoring: should be a section of `key: value` lines (found None)"),
        ("scoring: 3", "5: scoring: should be a section of `key: value` lines (found 3)"),
        ("short_chat: {path: a, fraction: 0}", "5: short_chat.fraction: should be greater than 0 (found 0)"),
        ("selection:\n  alpha: 1.5", "6: selection.alpha: should be less than or equal to 1 (found 1.5)"),
        (
            "selection: {preset: best}",
            "5: selection.preset: should be 'paper', 'official' or 'robust' (found 'best')",
        ),
        (
            "selection: {preset: robst}",
            "5: selection.preset: should be 'paper', 'official' or 'robust' (found 'robst'); did you mean robust?",
        ),
        ("selection: {method: far_gian}", "5: selection.method: there is no method 'far_gian'; did you mean far_gain?"),
        ("selection: {options: {ifd: {modle: x}}}", "5: selection.options.ifd.modle: unknown key; did you mean model?"),
        (
            "training: {preset: skipaling}",
            "5: training.preset: should be 'gateau-7b', 'gateau-7b-scripts', 'skipalign'",
        ),
        ("evaluation: {reference: bse}", "5: evaluation.reference: no variant bse; did you mean base?"),
        ("selection:\n  fraction: 0.1\n  count: 3", "5: selection: give fraction or count, not both"),
        ("training: {learning_rate: .inf}", "5: training.learning_rate: should be a finite number (found inf)"),
        ("training: {learning_rate: .nan}", "5: training.learning_rate: should be a finite number (found nan)"),
        ("training: {deepspeed: 3}", "5: training.deepspeed: should be 'zero1', 'zero2', 'zero3'"),
        (
            "training:\n  enabled: true\n  model: longg",
            "7: training.model: 'longg' is none of models: add it there, or set training.enabled: false; did you",
        ),
        ("training: {adam_betas: [0.9]}", "5: training.adam_betas.1: is required"),
        ("storage: {root: ''}", "5: storage.root: is empty: give a path"),
        ("evaluation: {benchmarks: [heldout, x]}", "5: evaluation.benchmarks.1: should be 'generated_needle', "),
        (
            "evaluation: {heldout: {buckets: []}}",
            "5: evaluation.heldout.buckets: should have at least 1 item (found [])",
        ),
        ("evaluation: {heldout: {buckets: [-1]}}", "5: evaluation.heldout.buckets.0: should be greater than or equal"),
        ("variants:\n  fraction: [0.1]", "6: variants.fraction: unknown key; did you mean fractions?"),
        (
            "variants:\n  also: [ful]",
            "6: variants.also.0: should be 'full', 'short_only' or 'base' (found 'ful'); did you mean full?",
        ),
        ("variants:\n  also:\n  - {name: a, pth: x}", "7: variants.also.0.pth: unknown key; did you mean path?"),
        ("variants:\n  also:\n  - {name: a/b, path: x}", "7: variants.also.0.name: becomes a file's name"),
        ("variants: {methods: [none]}", "5: variants.methods: there is no method 'none'; there are gateau, cam"),
        ("variants: {equal: steps}", "5: variants.equal: steps needs training.max_steps"),
        ("evaluation:\n  needel: {}", "6: evaluation.needel: unknown key; did you mean needle?"),
        ("evaluation: {needle: 3}", "5: evaluation.needle: should be a section of `key: value` lines (found 3)"),
        ("evaluation: {needle: {}, enabled: 3}", "5: evaluation.enabled: should be true or false"),
        ("evaluation: {heldout: {share: 1}}", "5: evaluation.heldout.share: should be less than 1"),
        ("short_chat: {path: b.json, verify: bytes}", "5: short_chat.verify: should be 'signature' or 'content'"),
        ("evaluation:\n  needle:\n    fact: hello", "6: evaluation.needle: fact lacks {key} and {value}"),
        ("evaluation:\n  needle:\n    depths: [2]", "6: evaluation.needle: depths lie between 0"),
        (
            "evaluation:\n  needle:\n    pairs:\n    - {key: a, values: [x, y]}\n    - {key: b, valuess: [x, y]}",
            "9: evaluation.needle.pairs.1.valuess: unknown key; did you mean values?",
        ),
        ("scoring: {dtype: float32}\nscoring: {dtype: bfloat16}", "6: scoring: is given twice, first in line 5"),
    ],
)
def test_each_mistake_names_its_place_and_what_is_wrong(section: str, mistake: str) -> None:
    lines = lines_of(GOOD + section)
    assert any(line.startswith(f"gateau.yaml:{mistake}") for line in lines), lines
    assert len(lines) <= 2


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("models: {short: {path: s}, long: {path: l}}", "1: long_sft: is required"),
        ("long_sft: {path: a}", "1: models: lacks short and long: GATEAU compares a short and a long model (another"),
        (
            "long_sft: {path: a}\nselection: {method: perplexity}",
            "2: selection.options.perplexity.model: 'long' is none of models: add it there, with task causal; there",
        ),
        (
            "long_sft: {path: a}\nselection: {method: length, rule: token_budget, budget: 9}",
            "2: selection.rule: token_budget counts the tokens of models.long, which is missing",
        ),
        (
            "long_sft: {path: a}\nselection: {method: length, compare: [far_gain]}\nmodels: {long: {path: l}}",
            "3: models: lacks short: method far_gain reads perplexity/short",
        ),
        (
            "long_sft: {path: a}\nselection: {method: length, segment_lengths: [64]}\nmodels: {long: {path: l}}",
            "2: selection.segment_lengths: compares GATEAU's rankings, which need models.short and models.long",
        ),
        (
            "long_sft: {path: a}\nselection: {method: length}\ntraining: {epochs: 1}",
            "3: training.model: 'long' is none of models: add it there, or set training.enabled: false; there are none",
        ),
        ("long_sft: {}\nmodels: {short: {path: s}, long: {path: l}}", "1: long_sft.path: is required"),
        ("long_sft: {path: a}\nmodels:\n  short: {path: s}", "2: models: lacks long: GATEAU compares"),
        ("long_sft: {path: a}\nmodels: [a]", "2: models: should be a section of `key: value` lines (found ['a'])"),
        (
            "long_sft: {path: 3}\nmodels: {short: {path: s}, long: {path: l}}",
            "1: long_sft.path: should be text or a list",
        ),
        (
            "long_sft:\n  path:\n  - a\n  - 3\nmodels: {short: {path: s}, long: {path: l}}",
            "4: long_sft.path.1: should be text",
        ),
        (GOOD + "  a/b: {path: x}", "5: models.a/b: a model's name becomes an asset key"),
        (GOOD + "  3: {path: x}", "5: models.3: should be text"),
        (GOOD.replace("long.jsonl", "'demo:samples'"), "1: long_sft.path: demo:samples needs a demo section"),
        (
            GOOD.replace("{path: s}", "{path: 'demo:shrot'}") + "demo: {}",
            "3: models.short.path: demo:shrot: the demo has",
        ),
    ],
)
def test_a_wrong_or_missing_section_is_one_line(text: str, mistake: str) -> None:
    (line,) = lines_of(text)
    assert line.startswith(f"gateau.yaml:{mistake}"), line


def test_several_mistakes_come_in_the_order_of_the_file() -> None:
    lines = lines_of(
        "long_sft: {path: a}\nscoring:\n  dtype: int8\n  max_length: 3\nmodels:\n  short: {paht: s}\n  long: {path: l}"
    )
    assert [line.split(": ")[0] for line in lines] == [
        "gateau.yaml:3",
        "gateau.yaml:4",
        "gateau.yaml:6",
        "gateau.yaml:6",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [\n", "gateau.yaml:2: not valid YAML, at column 1: expected the node content"),
        ("a:\n\tb: 3\n", "gateau.yaml:2: not valid YAML, at column 1: found character '\\t'"),
        ("a: !!python/object:os.system x", "gateau.yaml:1: not valid YAML, at column 4: could not determine"),
        ("a: 1\n---\nb: 2", "gateau.yaml:2: not valid YAML"),
        ("a: 1\nb: \x00", "gateau.yaml:2: not valid YAML, at column 4: the character '\\x00', which is not allowed"),
        *(
            (f"a:\n  b: {value}", f"gateau.yaml:2: not valid YAML, at column 6: the value is no valid {kind}")
            for value, kind in (
                *(("!!int ''", "int"), ("!!int secret", "int"), ("!!float ''", "float"), ("!!bool foo", "bool")),
                *(("!!timestamp abc", "timestamp"), ("2024-02-30", "timestamp")),
            )
        ),
        ('a: "\\UFFFFFFFF"', "gateau.yaml:1: not valid YAML: "),
        ("", "gateau.yaml:1: must hold sections (long_sft:, models:, ...), found an empty file."),
        ("- a", "gateau.yaml:1: must hold sections (long_sft:, models:, ...), found list."),
        ("just text", "gateau.yaml:1: must hold sections (long_sft:, models:, ...), found str."),
    ],
)
def test_what_is_no_yaml_mapping_is_named(text: str, message: str) -> None:
    assert message_of(text).startswith(message)


def test_no_message_shows_a_value_of_an_unknown_key() -> None:
    assert "secret-value" not in message_of(GOOD + "api_key: secret-value")


def test_an_alias_is_no_repeated_key() -> None:
    config = parse_project(GOOD.replace("{path: s}", "&m {path: s}").replace("{path: l}", "*m"), folder=Path())
    assert config.models["long"] == config.models["short"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: &a [*a]", "1: not valid YAML, at column 4"),
        ("&a {long_sft: *a}", "1: not valid YAML, at column 1"),
        ("long_sft:\n  path: &b [x, *b]", "2: not valid YAML, at column 9"),
        ("long_sft: &a {path: [[*a, 1], 2]}", "1: not valid YAML, at column 11"),
        ("long_sft: &a {path: x, <<: *a}", "1: not valid YAML, at column 11"),
        ("x: [&c [y, {z: &d [*c]}], *d]", "1: not valid YAML, at column 5"),
    ],
)
def test_what_holds_itself_is_told_in_one_line(text: str, place: str) -> None:
    expected = f"gateau.yaml:{place}: the value holds itself by its alias: write out what the alias stands for"
    assert message_of(text) == expected


def test_merged_aliases_that_multiply_end_before_they_are_copied() -> None:
    lines = ["a: &a {x: 1, y: 2}"]
    for above, name in pairwise("abcdefghi"):
        lines.append(f"{name}: &{name} {{<<: [{', '.join([f'*{above}'] * 9)}], z{name}: 1}}")
    assert message_of("\n".join(lines)) == (
        "gateau.yaml:1: its aliases stand for more than 1,000,000 values: write less of them."
    )


@pytest.mark.parametrize("number", ["010", "-010", "0_7", "1:30", "1:30.5"])
def test_a_number_that_yaml_takes_for_another_one_is_refused(number: str) -> None:
    """Octal, and of base 60."""
    (mistake,) = message_of(GOOD + f"selection:\n  alpha: 0.5\n  seed: {number}\n").splitlines()[1:2]
    assert mistake.startswith(f"  gateau.yaml:7: selection.seed: {number} is another number in YAML")
    (mistake,) = message_of(GOOD + f"selection:\n  segment_lengths: [128, {number}]\n").splitlines()[1:2]
    assert mistake.startswith(f"  gateau.yaml:6: selection.segment_lengths.1: {number} is another number in YAML")


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
