"""One full pair for the tests that need a trained one: about a CPU minute, once for one state of the code behind it."""

import hashlib
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from filelock import FileLock

import gateau_dagster
from gateau_dagster.features.demo.pair import build_pair

# What a pair is made by: another byte of it, or another version of a library, and the pair is built again.
_CODE = (
    "features/demo/*.py",
    "features/text_mix/*.py",
    "models/*.py",
    "training/**/*.py",
    "config/training*.py",
    "config/made_models.py",
)
_LIBRARIES = ("accelerate", "numpy", "safetensors", "tokenizers", "torch", "transformers")


@pytest.fixture(scope="session")
def trained_pair(request: pytest.FixtureRequest) -> Path:
    """Folder of the demo's pair, seed 0; kept in pytest's cache (`--cache-clear` removes it). To be copied."""
    cache = request.config.cache
    assert cache is not None
    folder = cache.mkdir("demo_pair")
    with FileLock(folder / ".lock"):
        pair = folder / _digest()
        if not pair.is_dir():
            for old in folder.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            build_pair(folder / "building", seed=0)
            (folder / "building").rename(pair)
    return pair


def _digest() -> str:
    package = Path(gateau_dagster.__file__).parent
    digest = hashlib.sha256(" ".join(f"{name} {version(name)}" for name in _LIBRARIES).encode())
    for file in sorted(path for pattern in _CODE for path in package.glob(pattern)):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
