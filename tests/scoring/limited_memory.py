"""Run as a process of its own: scores samples without and with a limit on the address space, and prints what came."""

import dataclasses
import gc
import json
import resource
from pathlib import Path

from tests.kit.tiny_models import loaded_model, samples, text
from tests.scoring.builders import outcomes

BATCH_TOKENS = 16_000
FURTHER = 48 * 2**20  # bytes; a layer takes three times 12 kB a token: 30 MB for all prompts but the long one


def limit_memory() -> None:
    """Let the process take no more than FURTHER on top of what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + FURTHER, resource.RLIM_INFINITY))


def main() -> None:
    """The outcomes of five samples; those of the same ones, twice and with a long one between, within the limit."""
    loaded = loaded_model("llama", intermediate_size=3000)
    long = dataclasses.replace(samples()[0], sample_id="long", context=text(7, 1000))
    for chosen in (samples(), [*samples(), long, *samples()]):
        made = outcomes(loaded, chosen, cam=False, batch_tokens=BATCH_TOKENS)
        print(json.dumps([dataclasses.asdict(one)["perplexity"] for one in made]))  # noqa: T201
        gc.collect()
        limit_memory()


if __name__ == "__main__":
    main()
