"""A stranger's path: the README's commands, copied, lead from own samples to a file that a trainer reads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.methods.registry import all_methods
from tests.kit.project import ROOT, command_environment, sample, write_model, write_samples

README = (ROOT / "README.md").read_text(encoding="utf-8")
MODEL = "HuggingFaceTB/SmolLM2-360M-Instruct"


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 8000


def test_it_counts_all_methods() -> None:
    assert f"[{len(all_methods())} selection methods]" in README


@pytest.mark.long
def test_five_steps_from_own_samples_to_the_chosen_ones(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    records = [sample(number, sentences=30) for number in range(60)]
    write_samples(tmp_path / "data" / "long.jsonl", records)
    write_model(tmp_path / "model", seed=1)
    steps = README.split("## Your data in five steps")[1]
    block = re.search(r"```bash\n(.*?)```", steps, re.DOTALL)
    assert block is not None and block[1].count("\n") == 5 and MODEL in block[1]
    environment = {
        **command_environment(),
        "GATEAU_CONFIG": "",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    script = block[1].replace(MODEL, "model")
    done = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    chosen = pl.read_parquet(tmp_path / "selected.parquet").to_dicts()
    ranks = [line["rank"] for line in chosen]
    assert len(ranks) == 6 and ranks == sorted({*ranks})
    texts = {record["id"]: record for record in records}
    for line in chosen:
        record = texts[line["sample_id"]]
        user = f"{record['context']}\n\n{record['instruction']}"
        assert line["messages"] == [
            {"role": "user", "content": user},
            {"role": "assistant", "content": record["response"]},
        ]
