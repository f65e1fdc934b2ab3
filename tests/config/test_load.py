"""The configuration's file: which one is read, what its paths mean, and mistakes that name file, line and cure."""

import os
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from gateau_dagster.config import Config
from gateau_dagster.config.load import line_of, misread_numbers, repeated_keys
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.project import load_project, parse_project
from tests.kit.error_codes import refused

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
        "  g:4: a.b: is given twice, first in line 2: remove one",
        "  g:5: a: is given twice, first in line 1: remove one",
        "  g:6: a: is given twice, first in line 1: remove one",
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
    with refused("config.too_many_values", match=r"^gateau\.yaml:1: "):
        parse_project("\n".join(lines), folder=Path("/project"), name="gateau.yaml")


@pytest.mark.parametrize("number", ["0", "0.5", "0x10", "1_0"])
def test_other_numbers_are_what_they_look_like(number: str) -> None:
    assert not [*misread_numbers(yaml.compose(f"a: {number}"), "gateau.yaml")]


def test_of_very_many_mistakes_the_first_are_named() -> None:
    """Each of 20,000 took as long as the file is."""
    found = message_of(GOOD + "".join(f"key{number}: 1\n" for number in range(20_000))).splitlines()
    assert len(found) == 52 and found[-1] == "  gateau.yaml: and 19,950 more"
    assert "key0: unknown key" in found[1] and "key49: unknown key" in found[50]


LENGTH = "long_sft: {%s}\nselection: {method: length}\n"


@pytest.mark.parametrize("number", ["1e-5", "1E-5", "1.0e-5", "1.e-5", "0.00001"])
def test_a_number_may_be_written_with_an_exponent(number: str) -> None:
    config = parse_project(GOOD + f"training: {{learning_rate: {number}}}", folder=Path())
    assert config.training.learning_rate == 1e-5


@pytest.mark.parametrize(
    "path",
    [
        *(".", "~/a", "a" * 250 + ".gz", "s3://bucket/" + "a" * 900, "hf://datasets/a/b", " a "),
        *("a$b.jsonl", "price$/x.jsonl", "a/$b.jsonl"),
    ],
)
def test_a_path_stays_as_it_is(path: str) -> None:
    apart = "storage: {root: ../store}\n"
    assert parse_project(LENGTH % f"path: '{path}'" + apart, folder=Path()).long_sft.path == path


def test_what_aliases_make_endless_is_refused_and_what_is_long_is_shown_in_short() -> None:
    def nested(levels: int) -> str:
        inner = [f"  - &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]\n" for level in range(1, levels)]
        return f"{LENGTH % 'path: a'}models:\n  - &l0 [x]\n{''.join(inner)}"

    with refused("config.too_many_values", r"gateau\.yaml:1.*1,000,000"):
        parse_project(nested(30), folder=Path())
    (mistake,) = lines_of(nested(5))
    assert len(mistake) < 200


@pytest.mark.parametrize(
    ("lengths", "refused"), [("lengths: [128, 1024]", "1024"), ("lengths: [128]", ""), ("repeats: 2", "1024, 2048")]
)
def test_a_needle_is_asked_for_in_prompts_that_can_be_made(lengths: str, refused: str) -> None:
    text = GOOD + f"scoring: {{max_length: 512}}\nevaluation: {{needle: {{{lengths}}}}}"
    if not refused:
        parse_project(text, folder=Path())
        return
    (mistake,) = lines_of(text)
    assert f"6: evaluation.needle.lengths: no prompt has {refused}" in mistake
    parse_project(text + "\ntraining: {enabled: false}", folder=Path())


@pytest.mark.parametrize("given", ["postgresql://u:s3cret@h/d", "DAGSTER PG", "1ST", "$DAGSTER_PG", "''"])
def test_a_variable_is_named_and_no_url_shown(given: str) -> None:
    (mistake,) = lines_of(GOOD + f"execution:\n  postgres: {given}")
    assert "execution.postgres" in mistake and "DAGSTER_POSTGRES_URL" in mistake and "s3cret" not in mistake
    found = parse_project(GOOD + "execution: {postgres: DAGSTER_PG}", folder=Path())
    assert found.execution.postgres == "DAGSTER_PG"


def test_a_path_that_no_system_takes_is_refused() -> None:
    with refused("config.path", "5,999 bytes"):
        parse_project(LENGTH % f"path: {'/'.join(['ab'] * 2000)}", folder=Path())


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "g.yaml").write_text(GOOD + "storage: {root: ./store}")
    monkeypatch.chdir(tmp_path)
    config = load_project("sub/g.yaml")
    assert config.folder == tmp_path / "sub"
    assert config.located_root == str(tmp_path / "sub" / "store")
    assert config.work_folder == tmp_path / "sub" / ".gateau" / "g"
    (tmp_path / "sub" / "g.yaml").rename(tmp_path / "sub" / "gateau.yaml")
    assert load_project(tmp_path / "sub" / "gateau.yaml").work_folder == tmp_path / "sub" / ".gateau"


@pytest.mark.parametrize("root", ["s3://bucket/prefix", "/absolute/store", "~/store"])
def test_addresses_and_absolute_paths_stay_as_they_are(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = parse_project(GOOD + f"storage: {{root: '{root}'}}", folder=Path("/project"))
    assert config.located_root == root.replace("~", "/home/someone")


def test_the_environment_names_the_file_and_an_argument_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(GOOD.replace("long.jsonl", f"{name}.jsonl"))
    monkeypatch.setenv("GATEAU_CONFIG", str(tmp_path / "one.yaml"))
    assert load_project().long_sft.path == "one.jsonl"
    assert load_project(tmp_path / "two.yaml").long_sft.path == "two.jsonl"
    monkeypatch.setenv("GATEAU_CONFIG", "demo")
    assert load_project().demo is not None
    assert load_project(tmp_path / "two.yaml").long_sft.path == "two.jsonl"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    latin, pipe = tmp_path / "latin.yaml", tmp_path / "pipe.yaml"
    latin.write_bytes(b"a: \xe9\n")
    os.mkfifo(pipe)  # which is not waited for
    causes = {tmp_path / "no.yaml": "No such file", tmp_path: "Is a directory", latin: "not UTF-8", pipe: None}
    for file, cause in {**causes, "/dev/zero": None, "~nobody-of-this-name/a.yaml": None}.items():
        with refused("config.unreadable", cause) as failure:
            load_project(file)
        assert str(file) in str(failure.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_named(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(GOOD)
    file.chmod(0)
    with pytest.raises(GateauError, match="Permission denied"):
        load_project(file)


def test_the_design_page_s_own_example_is_valid() -> None:
    example = textwrap.dedent("""\
        storage: {root: ./gateau_store}
        long_sft: {path: data/long*.jsonl, shards: 16}
        short_chat: {path: data/sharegpt.json, fraction: 1.0}
        models:
          short: {path: meta-llama/Llama-2-7b-hf, rope_theta: 2000000, context: full}
          long: {path: THUDM/LongAlign-7B-64k-base}
        scoring: {max_length: 65536, segment_length: 128, dtype: bfloat16, device: auto}
        selection: {method: gateau, preset: robust, alpha: 0.8, fraction: 0.1}
        training: {enabled: true}
        evaluation: {}
        """)
    config = parse_project(example, folder=Path())
    assert isinstance(config, Config) and config.models["short"].rope_theta == 2_000_000
