"""For all tests: no time limit an example, since the cores are shared, and the long modules begin first; a real S3
server on this machine, one for each test process; runs that are expensive, made once for all of them."""

import asyncio
import gc
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from _pytest.assertion import rewrite  # what it does at an import has no public name
from filelock import FileLock
from hypothesis import settings

from gateau_dagster import errors
from gateau_dagster.execution import collect_rarely

if TYPE_CHECKING:
    from tests.kit.postgres_server import PostgresServer

# Processes that tests start have one thread, and figures are compared with theirs to the last bit. Before torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

PROJECT = ("DAGSTER_HOME", "GATEAU_CONFIG")
for name in PROJECT:
    os.environ.pop(name, None)

Shared = Callable[[str, Callable[[Path], None]], Path]

settings.register_profile("shared-cores", deadline=None)
settings.load_profile("shared-cores")


collect_rarely()
ROOT, _CORES = Path(__file__).parent, os.cpu_count() or 1
_GARBAGE_BYTES = psutil.virtual_memory().total // 16  # a collection looks at all that is imported, for seconds
_memory = [0]  # after the last collection


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tests but those of `make test-cuda`: the others expect what a CPU does."""
    if config.option.markexpr != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Rewrite the assertions of the test files once and on all cores, where the files are new: otherwise every test
    process would do so for itself at the same time, a third of the time until the first test.
    """
    state = config.stash[rewrite.assertstate_key]
    files = [*ROOT.rglob("test_*.py"), *ROOT.rglob("conftest.py")]
    places = {file: rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}" for file in files}
    new = [file for file, place in places.items() if rewrite._read_pyc(file, place) is None]

    def write(number: int) -> None:
        for file in new[number::_CORES]:
            source, code = rewrite._rewrite_test(file, config)
            if rewrite.try_makedirs(places[file].parent):
                rewrite._write_pyc(state, code, source, places[file])

    if not sys.dont_write_bytecode and len(new) > _CORES:
        writers = [get_context("fork").Process(target=write, args=(number,)) for number in range(_CORES)]
        for each in writers:
            each.start()
        for each in writers:
            each.join()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Let collections of garbage within a test look at its own objects only: libraries ask for them, and all that is
    imported takes a second. What the tests leave is collected when it is much.
    """
    gc.freeze()
    try:
        return (yield)
    finally:
        gc.unfreeze()
        if psutil.Process().memory_info().rss > _memory[0] + _GARBAGE_BYTES:
            gc.collect()
            _memory[0] = psutil.Process().memory_info().rss


def pytest_sessionfinish() -> None:
    """Spare the process the collections of its end: pytest asks for five, the interpreter for more."""
    gc.freeze()


@pytest.hookimpl(trylast=True)  # without those that the command leaves out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow modules first: one that began last would keep one process busy while the others have nothing to do.

    The first of them makes the whole run. The others that need it come when it is there.
    """
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "hidden"):
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU: make test-cuda"))
    slow = dict.fromkeys(item.path for item in items if item.get_closest_marker("slow"))
    whole = dict.fromkeys(item.path for item in items if "whole_run" in getattr(item, "fixturenames", ()))
    first = next((path for path in slow if path in whole), None)
    items.sort(key=lambda item: item.path != first and 1 + (item.path in whole) if item.path in slow else 3)


@pytest.fixture(autouse=True)
def project_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo after each test what `open_instance`, a code location and a pasted key set for their whole process."""
    for name in PROJECT:
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(errors, "_values", {*errors._values})


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """`shared(name, make)`: a folder that `make` filled, once for all test processes. To be copied, not changed."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder(name: str, make: Callable[[Path], None]) -> Path:
        found, done = base / "shared" / name, base / "shared" / f"{name}.done"
        found.parent.mkdir(exist_ok=True)
        with FileLock(f"{found}.lock"):
            if not done.exists():
                make(found)
                done.touch()
        return found

    return folder


@pytest.fixture(scope="session")
def whole_run(shared: Shared) -> Path:
    """The configuration file of a project whose only run ended well: 36 samples, 4 shards, a training."""
    from tests.assets.harness import pipeline_on
    from tests.kit.project import change_config, make_project

    def make(folder: Path) -> None:
        file = make_project(folder, samples=36, shards=4, training=True)
        change_config(file, training={"max_steps": 12, "epochs": 1.0})
        with pipeline_on(file) as pipeline:  # in this process, which has loaded the libraries
            pipeline.refresh()

    return shared("whole_run", make) / "gateau.yaml"


@pytest.fixture(scope="session")
def whole_demo(shared: Shared) -> Path:
    """The configuration file of the demo after its only `gateau run`, of minutes."""
    from tests.kit.project import gateau, make_demo

    def make(folder: Path) -> None:
        gateau("run", "--config", str(make_demo(folder)), folder=folder)

    return shared("whole_demo", make) / "gateau.yaml"


@pytest.fixture(scope="session")
def postgres() -> Iterator["PostgresServer"]:
    """A running PostgreSQL server."""
    from tests.kit.postgres_server import WITHOUT, installed_binaries, postgres_server

    if installed_binaries() is None:
        pytest.skip(WITHOUT)
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Its address."""
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def s3_environment(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The process's S3 settings lead to the server."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    for name, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield s3_server
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries of a request s3fs waits a hundredth of its time."""
    import s3fs

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 100)

    monkeypatch.setattr(s3fs.core, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))


@pytest.fixture
def bucket(s3_environment: str) -> str:
    """A new bucket's name."""
    import boto3

    name = f"bucket-{uuid.uuid4().hex[:12]}"
    client: Any = boto3.client("s3")
    client.create_bucket(Bucket=name)
    return name
