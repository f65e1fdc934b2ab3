"""Each failure is one readable message with cause and cure, without a traceback; nothing that was computed is lost."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import BloomConfig, BloomForCausalLM

from gateau_dagster.features.demo.language import build_tokenizer
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from tests.kit.project import change_config, command_environment, copied, gateau, make_project, sample, write_model

pytestmark = pytest.mark.slow


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_project(tmp_path, samples=8, shards=2)


def failing(file: Path, *options: str, command: str = "run", **environment: str) -> str:
    """Standard error of a command that must fail readably."""
    done = gateau(command, "--config", str(file), *options, folder=file.parent, check=False, **environment)
    return readable(done)


def readable(done: subprocess.CompletedProcess[str]) -> str:
    """The one message on standard error."""
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("Loading weights")]
    assert lines
    assert lines[0].startswith("Error: "), done.stderr
    assert sum(line.startswith("Error: ") for line in lines) == 1
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"models": {"long": {"path": "nowhere"}}}, r"models\.long\.path: there is no folder .*FOLDER/nowhere"),
        pytest.param(
            {"scoring": {"segment_lenght": 64}},
            r"gateau\.yaml:LINE: scoring\.segment_lenght: .*mean segment_length\?",
            marks=pytest.mark.long,
        ),
        pytest.param({"long_sft": {"path": "cut.jsonl.gz"}}, r"cut\.jsonl\.gz.*truncated", marks=pytest.mark.long),
    ],
    ids=["a missing model folder", "a wrong key", "a truncated gzip"],
)
def test_what_is_wrong_from_the_start(file: Path, sections: dict[str, Any], said: str) -> None:
    whole = gzip.compress(json.dumps(sample(1)).encode())
    (file.parent / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    change_config(file, **sections)
    line = next((n for n, text in enumerate(file.read_text().splitlines(), start=1) if "lenght" in text), 0)
    assert re.search(said.replace("LINE", str(line)).replace("FOLDER", str(file.parent)), failing(file), re.DOTALL)
    assert not list(file.parent.glob("store/**/*.parquet"))


@pytest.mark.long
def test_a_model_without_the_attention_interface(file: Path) -> None:
    """Check the refusal: such a model gives perplexities, but not the attention that CAM reads."""
    change_config(file, selection={"preset": "paper"})  # the default reads no attention
    folder = file.parent / "long"
    shutil.rmtree(folder)
    tokenizer = build_tokenizer(512)
    config = BloomConfig(vocab_size=len(tokenizer), hidden_size=16, n_layer=1, n_head=2)
    BloomForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    message = failing(file)
    assert message.startswith("Error: models.long.path: ")
    assert all(part in message for part in ("attention", "loom", "Llama")), "name and cure"
    assert not list(file.parent.glob("store/**/*.parquet")), "it is said before anything is scored"

    write_model(folder, seed=2)
    assert "Done" in gateau("run", "--config", str(file), folder=file.parent).stdout
    assert not state_of(config=load_project(file)).plan()


SMALL_DISK = """
import subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "size={size}", "tmpfs", "{folder}"], check=True)
{fill}
done = subprocess.run([sys.executable, "-m", "gateau_dagster.cli", "run", "--config", "{file}"], cwd="{cwd}")
{after}
sys.exit(done.returncode)
"""


def can_mount() -> bool:
    """Whether a file system of our own can be mounted: as root, or where user namespaces are allowed."""
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return (
        shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="a small disk is a tmpfs: needs root or user namespaces")
@pytest.mark.parametrize(
    "everything",
    [
        pytest.param(False, id="the store's disk"),
        pytest.param(True, id="the disk of Dagster's home too"),
    ],
)
def test_a_full_disk(whole_run: Path, tmp_path: Path, everything: bool) -> None:
    """The disk fills up while scoring; the tables from before stay, and with more space the run goes on."""
    file = copied(whole_run, tmp_path / "project")
    change_config(file, training={"enabled": False})
    folder = file.parent
    shutil.copytree(whole_run.parent / "store" / "raw_long_sft", folder / "store" / "raw_long_sft")
    copy = folder.parent / f"{folder.name}_disk"
    disk = copy if everything else copy / "store"
    disk.mkdir(parents=True)
    # The disk gets the project, then so much ballast that little is left.
    fill = (
        f"shutil.copytree({str(folder)!r}, {str(copy)!r}, dirs_exist_ok=True)\n"
        f"free = shutil.disk_usage({str(disk)!r}).free\n"
        f"open({str(disk / 'ballast')!r}, 'wb').write(bytes(max(free - 4096, 0)))"
    )
    after = (
        f"import os; os.remove({str(disk / 'ballast')!r})\n"
        f"again = subprocess.run([sys.executable, '-m', 'gateau_dagster.cli', 'run', '--config', "
        f"{str(copy / file.name)!r}], cwd={str(copy)!r}, stdout=subprocess.PIPE, text=True)\n"
        "assert again.returncode == 0, again.stdout\n"
        "assert '✓ raw_long_sft' not in again.stdout, again.stdout"
    )
    script = SMALL_DISK.format(
        size="24m", folder=disk, fill=f"import shutil\n{fill}", file=copy / file.name, cwd=copy, after=after
    )
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", script],
        env=command_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    message = readable(done)
    assert "the disk is full. Free some space, then run again: all computed results are kept." in message
