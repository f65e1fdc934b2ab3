"""The embedded demo's inputs on disk: the data at once, the pair when a model is first needed."""

from gateau_dagster.config import Config
from gateau_dagster.config.demo import PAIR_FOLDER, demo_folder
from gateau_dagster.progress import Progress, silent


def ensure_demo_data(config: Config) -> None:
    """Writes the demo's samples and conversations if they are missing; does nothing for another configuration."""
    if config.demo is None:
        return
    from gateau_dagster.synthetic.samples import write_demo_samples
    from gateau_dagster.synthetic.short_chat import write_demo_short_chat

    demo, folder = config.demo, demo_folder(config.work_folder, config.demo)
    if not (folder / "samples.jsonl").exists():
        write_demo_samples(folder / "samples.jsonl", demo.samples, demo.seed)
    if not (folder / "conversations.jsonl").exists():
        write_demo_short_chat(folder / "conversations.jsonl", demo.conversations, demo.seed)


def ensure_demo_pair(config: Config, progress: Progress = silent) -> None:
    """Builds the demo's homologous pair if it is missing, about a minute; does nothing for another configuration."""
    if config.demo is None:
        return
    from gateau_dagster.synthetic.pair import build_pair, pair_is_current

    folder = demo_folder(config.work_folder, config.demo) / PAIR_FOLDER
    if not pair_is_current(folder, seed=config.demo.seed):

        def building(done: float, total: float | None, unit: str, note: str = "") -> None:
            progress(done, total, unit, f"building the demo's pair: {note}")

        build_pair(folder, seed=config.demo.seed, progress=building)
