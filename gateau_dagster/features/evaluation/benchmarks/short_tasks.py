"""Short tasks by lm-eval, in the Open LLM Leaderboard's settings: does long training lose what a model knew?"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import AnyPath, InputAddress
from gateau_dagster.data.folder_copy import folder_copy
from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.features.evaluation.benchmark import Materials, Measured, MeasuredBenchmark
from gateau_dagster.features.evaluation.question_files import QuestionFiles
from gateau_dagster.storage.content import folder_content, tree_digests
from gateau_dagster.storage.remote import is_remote

if TYPE_CHECKING:
    from gateau_dagster.config import Config
    from gateau_dagster.models.loaded import LoadedModel


DATA, INCLUDE = "evaluation.short_tasks.data", "evaluation.short_tasks.include"


class ShortTask(Section):
    """One of lm-eval's tasks, and the metric that counts."""

    task: str = Field(min_length=1, description="Name of the task or group in lm-eval.", examples=["hellaswag"])
    metric: str = Field(default="acc", description="Metric of a question, from 0 to 1; more is better.")
    filter: str = Field(default="none", description="Filter that reads the answer; gsm8k has strict-match.")
    shots: int | None = Field(
        default=None, ge=0, description="Examples in the prompt; default: the task's own.", examples=[10]
    )
    data: str | None = Field(
        default=None, description="Its data set's name on the Hugging Face hub.", examples=["Rowan/hellaswag"]
    )


PUBLISHED = (
    ShortTask(task="hellaswag", metric="acc_norm", shots=10, data="Rowan/hellaswag"),
    ShortTask(task="mmlu", shots=5, data="cais/mmlu"),
    ShortTask(task="arc_challenge", metric="acc_norm", shots=25, data="allenai/ai2_arc"),
    ShortTask(task="winogrande", shots=5, data="allenai/winogrande"),
    ShortTask(task="gsm8k", metric="exact_match", filter="strict-match", shots=5, data="openai/gsm8k"),
    ShortTask(task="truthfulqa_mc2", shots=0, data="truthfulqa/truthful_qa"),
)


class ShortTasksOptions(Section):
    """The tasks, the number of questions, and the location of their data."""

    tasks: list[ShortTask] = Field(default=[*PUBLISHED], min_length=1, description="Tasks of lm-eval to run.")
    rows: int | None = Field(
        default=None, ge=1, description="Number of first questions of each task; default: all.", examples=[200]
    )
    batch_size: int = Field(default=1, ge=1, le=4096, description="Requests a pass; changes no result but by rounding.")
    data: InputAddress | None = Field(
        default=None,
        description="Folder of copies of the data sets, by their names on the hub, here or on S3; default: the hub "
        "itself.",
        examples=["data_sets"],
    )
    include: AnyPath | None = Field(
        default=None, description="Folder of lm-eval task files of your own.", examples=["own_tasks"]
    )


def cure(task: ShortTask) -> str:
    """Return how to get the task's data."""
    name = task.data or "<its name>"
    return (
        f"on a machine with a network: hf download {name} --repo-type dataset --local-dir FOLDER/{name}; then give "
        "FOLDER as evaluation.short_tasks.data"
    )


def short_task_values(
    loaded: LoadedModel, task: ShortTask, options: ShortTasksOptions, config: Config
) -> Iterator[tuple[str, str, float]]:
    """Yield question id, task and value in per cent of every question of a task.

    Raises GateauError for missing data, and for a task, metric or filter that lm-eval does not know.
    """
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = _known_tasks(_placed(options.include, config.folder))
    if task.task not in manager.task_index:
        raise GateauError(
            "evaluation.task",
            f"evaluation.short_tasks.tasks: lm-eval has no task {task.task!r}: `lm-eval ls tasks` lists all",
        )
    tasks = _loaded_tasks(manager, task, options, config)
    model: Any = HFLM(
        pretrained=loaded.model,
        tokenizer=loaded.tokenizer,  # pyright: ignore[reportArgumentType]
        batch_size=options.batch_size,
        max_length=loaded.window,
    )
    for kind in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
        setattr(model, kind, partial(getattr(model, kind), disable_tqdm=True))
    found = simple_evaluate(model, tasks=tasks, limit=options.rows, bootstrap_iters=0, task_manager=manager)
    assert found is not None, "this process is the only one"
    yield from _values(found["samples"], task)


@cache
def _known_tasks(include: str | None) -> Any:
    # Cached, because the index of lm-eval reads thousands of files, in about 15 s.
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    return TaskManager(include_path=include)


def _placed(path: str | None, folder: Path) -> str | None:
    return None if path is None else str((folder / Path(path).expanduser()).absolute())


def local_data(task: ShortTask, options: ShortTasksOptions, config: Config) -> str | None:
    """Return the local folder of the task's data; remote copies are fetched once. None: use the hub."""
    if options.data is None or task.data is None:
        return None
    if not is_remote(options.data):
        return f"{_placed(options.data, config.folder)}/{task.data}"
    try:
        return str(folder_copy(f"{options.data}/{task.data}", config.work_folder / "cache" / "short_tasks"))
    except GateauError as error:
        raise error.reworded(f"{DATA}: {error}; {cure(task)}") from error


def _loaded_tasks(manager: Any, task: ShortTask, options: ShortTasksOptions, config: Config) -> list[Any]:
    """Return lm-eval's tasks, with their data from the local folder or the hub."""
    changes: dict[str, Any] = {} if task.shots is None else {"num_fewshot": task.shots}
    data = local_data(task, options, config)
    if data is not None:
        changes["dataset_path"] = data
    kind = "group" if task.task in manager.all_groups else "task"
    try:  # a change of a group applies to every task in it
        return [*manager.load({"group": "asked", "task": [{kind: task.task, **changes}]})["tasks"].values()]
    except (OSError, ValueError, RuntimeError) as error:
        failed = TransientError if isinstance(error, ConnectionError) else GateauError
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"{DATA}: the data of {task.task} cannot be loaded ({reason}): {cure(task)}"
        raise failed("evaluation.benchmark_files", message) from error


def _values(samples: Mapping[str, Sequence[Mapping[str, Any]]], task: ShortTask) -> Iterator[tuple[str, str, float]]:
    """Yield the values from the samples that lm-eval logs by its own tasks; a group has several."""
    for name, logged in samples.items():
        filtered = [each for each in logged if each["filter"] == task.filter]
        if not filtered:
            known = ", ".join(sorted({str(each["filter"]) for each in logged}))
            raise GateauError(
                "evaluation.task", f"evaluation.short_tasks.tasks: {name} has no filter {task.filter!r}, but {known}"
            )
        for each in filtered:
            if task.metric not in each:
                known = ", ".join(each["metrics"])
                raise GateauError(
                    "evaluation.task",
                    f"evaluation.short_tasks.tasks: {name} has no metric {task.metric!r}, but {known}",
                )
            yield f"{name}/{each['doc_id']}", task.task, 100 * float(each[task.metric])


class ShortTasks(MeasuredBenchmark):
    """Short tasks by lm-eval."""

    name = "short_tasks"
    title = "Short tasks"
    description = "HellaSwag, MMLU, ARC, WinoGrande, GSM8K and TruthfulQA by lm-eval: what a model knew before."
    options: ShortTasksOptions
    unit = "%"
    groups = "task"

    def measure(self, materials: Materials, variant: str) -> Measured:
        loaded, rows = materials.model(variant), []
        for done, task in enumerate(self.options.tasks, start=1):
            rows += short_task_values(loaded, task, self.options, self.config)
            materials.progress(done, len(self.options.tasks), "tasks", task.task)
        return Measured.of(rows)

    def settings(self) -> Mapping[str, Any]:
        """Return the library's version, and digests of the data copies and the task files."""
        options, found = self.options, dict[str, Any]({"lm-eval": version("lm-eval")})
        if options.data is not None:
            paths = [f"{options.data}/{name}" for name in sorted({task.data for task in options.tasks if task.data})]
            data = QuestionFiles(config=self.config, place=DATA, path=paths, cure=cure(options.tasks[0]))
            found[DATA] = data.digest()
        include = _placed(options.include, self.config.folder)
        if include is not None:  # lm-eval imports code from this folder, which creates __pycache__
            files = tree_digests(Path(include))
            known = {name: files[name] for name in files if "__pycache__" not in name.split("/")}
            found[INCLUDE] = folder_content(known)
        return found

    def check(self) -> None:
        """Raise GateauError if lm-eval is not installed, or a configured folder does not exist."""
        if find_spec("lm_eval") is None:
            raise GateauError(
                "evaluation.package",
                "evaluation.short_tasks: lm-eval is not installed: pip install 'gateau-dagster[evaluation]', "
                "or remove short_tasks from evaluation.benchmarks",
            )
        include = _placed(self.options.include, self.config.folder)
        if include is not None and not Path(include).is_dir():
            raise GateauError(
                "evaluation.benchmark_files",
                f"{INCLUDE}: the folder {include} does not exist: give the one with the task files",
            )
        if self.options.data is None or is_remote(self.options.data):
            return
        for task in self.options.tasks:
            folder = self.config.folder / Path(self.options.data).expanduser() / (task.data or "")
            if not folder.is_dir():
                raise GateauError(
                    "evaluation.benchmark_files",
                    f"{DATA}: the folder {folder} with the data of {task.task} does not exist: {cure(task)}",
                )
