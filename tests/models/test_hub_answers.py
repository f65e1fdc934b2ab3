"""What the Hugging Face hub may answer about a model, each with its own cause and cure, before anything is scored."""

import re
import subprocess
import sys
from http.server import ThreadingHTTPServer

import pytest

from tests.local_server import QuietHandler, served
from tests.project import change_config, command_environment, make_project

Answer = tuple[int, dict[str, str]]
INFO = b'{"id": "lab/model", "sha": "%s", "siblings": [], "tags": []}' % (b"1" * 40)


def code(status: int, name: str) -> Answer:
    return status, {"X-Error-Code": name}


OPEN: Answer = (200, {})
DISABLED: Answer = (403, {"X-Error-Message": "Access to this resource is disabled."})
ENTRY = code(404, "EntryNotFound")
CASES: dict[str, tuple[Answer, Answer, str]] = {
    "files gated, no token": (OPEN, code(401, "GatedRepo"), r"gated .*HUB/lab/model-., accept its terms.*HF_TOKEN"),
    "files gated, no consent": (OPEN, code(403, "GatedRepo"), r"gated .*HUB/lab/model-., accept its terms.*HF_TOKEN"),
    "all gated": (
        code(403, "GatedRepo"),
        code(403, "GatedRepo"),
        r"gated .*HUB/lab/model-., accept its terms.*HF_TOKEN",
    ),
    "unknown": (
        code(404, "RepoNotFound"),
        ENTRY,
        r"neither a folder on this machine nor a model on the hub.*private.*HF_TOKEN",
    ),
    "revision": (code(404, "RevisionNotFound"), ENTRY, r"short\.revision: .*no branch, tag or commit main"),
    "no config.json": (OPEN, ENTRY, r"has no config\.json"),
    "disabled": (DISABLED, DISABLED, r"has disabled lab/model"),
    "bad token": (
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
        ENTRY,
        r"refuses lab/model.*401.*HF_TOKEN",
    ),
    "rate limit": ((429, {}), (429, {}), r"limits requests.*429.*later"),
    "fails": ((503, {}), (503, {}), r"hub fails .*503.*later"),
}


class Hub(QuietHandler):
    """Answers about the model lab/model-N as the case N says, of the model itself and of its files."""

    def do_GET(self) -> None:
        info, files, _ = list(CASES.values())[int(re.findall(r"lab/model-(\d+)", self.path)[0])]
        status, headers = info if self.path.startswith("/api/") else files
        body = INFO if status == 200 else b"{}"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET


PROGRAM = """
import sys, time
import huggingface_hub.utils._http as client
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
time.sleep = lambda seconds: None
for file in sys.argv[1:]:
    try:
        State(config=load_project(file)).check_models()
    except GateauError as error:
        print(" ".join(str(error).split()), flush=True)
    else:
        print("nothing was said", flush=True)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the check of the models says in each case, with HUB for the address of the hub.

    One process of its own for all of them, since huggingface_hub reads its end point when it is imported.
    """
    folder = tmp_path_factory.mktemp("hub")
    project = make_project(folder / "project", samples=2, shards=1)
    files: list[str] = []
    for number in range(len(CASES)):
        file = project.with_name(f"case{number}.yaml")
        file.write_bytes(project.read_bytes())
        model = {"path": f"lab/model-{number}", "context": "window", "window": 64}
        change_config(file, models={"short": model})
        files.append(str(file))
    with served(ThreadingHTTPServer(("127.0.0.1", 0), Hub)) as port:
        address = f"http://127.0.0.1:{port}"
        environment = command_environment(HF_ENDPOINT=address, HF_HOME=str(folder / "home"), HF_HUB_OFFLINE="0")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *files], env=environment, capture_output=True, text=True, check=True
        )
    lines = done.stdout.replace(address, "HUB").splitlines()
    return dict(zip(CASES, lines, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_each_answer_is_told_before_anything_is_scored(told: dict[str, str], case: str) -> None:
    assert re.search(CASES[case][2], told[case]), told[case]
    assert "models.short." in told[case]
