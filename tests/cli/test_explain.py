"""Every error has a code of the catalogue, and every code has its error."""

import json
import pickle

import pytest

from gateau_dagster.cli.commands import error_codes
from gateau_dagster.errors import SEVERAL, GateauError, TransientError, UnforeseenError, together
from gateau_dagster.resources.pools.worker import portable
from gateau_dagster.storage.fence import LeaseLostError
from tests.cli.command import Command
from tests.kit.error_codes import CODE, raised_in, texts_in
from tests.kit.project import ROOT

FILES = [file for folder in ("gateau_dagster", "assets", "resources") for file in sorted((ROOT / folder).rglob("*.py"))]


def test_every_error_has_a_code_of_the_catalogue() -> None:
    codes = {code for file in FILES for _, code in raised_in(file) if code is not None}
    assert codes - error_codes().keys() == set() and len(codes) > 100


def test_no_error_lacks_a_code() -> None:
    assert [f"{file}:{line}" for file in FILES for line, code in raised_in(file) if code is None] == []


def test_every_code_of_the_catalogue_is_in_use() -> None:
    assert error_codes().keys() - {text for file in FILES for text in texts_in(file)} == set()


def test_the_catalogue_is_in_order_and_in_plain_sentences() -> None:
    known = error_codes()
    assert list(known) == sorted(known) and all(CODE.fullmatch(code) for code in known)
    for code, entry in known.items():
        assert list(entry) == ["cause", "cure"], code
        for text in entry.values():
            assert text.endswith("."), text
            assert max(len(sentence.split()) for sentence in text.split(". ")) <= 25, text


def test_a_code_is_explained_and_a_wrong_one_gets_the_nearest(command: Command) -> None:
    status, out, _ = command("explain", "config.unknown_key")
    assert status == 0 and out.startswith("config.unknown_key\nCause: The section has no such key.") and "Cure: " in out
    assert command("explain", "[config.unknown_key]")[1] == out
    status, _, err = command("explain", "config.unknown_kex")
    assert status == 1 and "did you mean config.unknown_key, " in err and "lists all [explain.code]" in err
    assert len(command("explain", "WRONG")[2].splitlines()) == 1 and len(command("explain", "WRONG")[2]) < 100
    status, out, _ = command("explain")
    assert status == 0 and len(out.splitlines()) == len(error_codes())


def test_a_failure_of_json_output_has_its_code(command: Command) -> None:
    status, out, err = command("plan", "--json", "--config", "none.yaml")
    assert status == 1 and err.rstrip().endswith("[config.unreadable]")
    assert json.loads(out)["error"]["code"] == "config.unreadable"


@pytest.mark.parametrize("kind", [GateauError, TransientError, LeaseLostError])
def test_an_error_keeps_kind_code_and_message_in_another_process(kind: type[GateauError]) -> None:
    error = pickle.loads(pickle.dumps(kind("storage.damaged", "the file x is damaged")))
    assert (type(error), error.code, str(error)) == (kind, "storage.damaged", "the file x is damaged")


def test_an_error_that_cannot_be_pickled_keeps_its_code() -> None:
    error = portable(UnforeseenError("a defect", kind="KeyError", trace=""))
    assert isinstance(error, GateauError) and (error.code, str(error)) == ("gateau.defect", "a defect")


def test_several_errors_share_a_code_or_have_one_each() -> None:
    one, other = GateauError("config.value", "a"), GateauError("config.path", "b")
    assert together("both:", [one, one]).with_code() == "both:\na\na [config.value]"
    several = together("both:", [one, other])
    assert several.code == SEVERAL and several.with_code() == "both:\na [config.value]\nb [config.path]"
