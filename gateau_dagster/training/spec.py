"""Store everything one training needs in one JSON file, because the training runs in separate processes."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gateau_dagster.config.models import Template
from gateau_dagster.config.training import OPERATIONAL, TrainingConfig
from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.storage.files import replace_text

# Raise it when the same mix and settings train another model.
CODE_VERSION = "3"

# Settings that change how often work is saved or shown, not the weights.
_OPERATIONAL = OPERATIONAL | {
    *{"enabled", "deepspeed", "preset"},
    *{"sequences_per_step", "tokens_per_step"},  # the resulting passes count
    *{"mix", "truncation"},  # the mix itself counts
}


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """One training. Paths are local; `fingerprint` identifies the result and decides what may be resumed."""

    mix: Path
    base_model: str
    output: Path
    work: Path
    training: TrainingConfig
    fingerprint: str
    template: Template = "gateau"
    revision: str | None = None
    rope_theta: float | None = None
    trust_remote_code: bool = False
    hostfile: Path | None = None
    deepspeed: dict[str, Any] | None = None
    """The resolved DeepSpeed configuration (`deepspeed_config`); `training.deepspeed` is not read again."""
    provenance: dict[str, str] = field(default_factory=dict)
    """The model card's lines on the data."""
    data: dict[str, Path] = field(default_factory=dict)
    """The files for trackers (`training.report_data`), by the names that they have there."""
    leases: str = ""
    """The store's leases, for ranks whose launcher does not pass on the environment; see `fence.exported`."""

    @property
    def log(self) -> Path:
        """Return the path of the metrics, one JSON object per line and step."""
        return self.work / "metrics.jsonl"

    @property
    def failure(self) -> Path:
        """Return the path of the reason why the last attempt ended, one line, written by the rank that failed."""
        return self.work / "failure.txt"

    @property
    def side_by_side(self) -> bool:
        """Return whether a batch is one row of documents without padding."""
        return self.training.side_by_side

    @property
    def resume_key(self) -> str:
        """Return the key of attempts that continue one another: same result requested, same number and kind of
        ranks.
        """
        training = self.training.model_dump(mode="json", exclude=_OPERATIONAL)
        passes = self.training.passes_per_step
        base = [self.base_model, self.revision, self.rope_theta, self.template, self.deepspeed, passes]
        return text_digest((self.fingerprint, json.dumps([training, base], sort_keys=True)))

    def save(self, path: Path) -> None:
        """Write the JSON file, in one step.

        Raises:
            GateauError: it cannot be written.
        """
        content = asdict(self) | {"training": self.training.model_dump(mode="json")}
        replace_text(path, json.dumps(content, indent=1, default=str))

    @classmethod
    def load(cls, path: Path) -> "TrainingSpec":
        """Read what `save` wrote.

        Raises:
            GateauError: there is no such file, or it is not a specification.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            paths = {name: Path(content.pop(name)) for name in ("mix", "output", "work")}
            data = {name: Path(path) for name, path in content.pop("data").items()}
            hostfile, training = content.pop("hostfile"), TrainingConfig.model_validate(content.pop("training"))
            return cls(training=training, hostfile=hostfile and Path(hostfile), data=data, **paths, **content)
        except OSError as error:
            raise GateauError(
                "training.file_damaged", f"the training specification {path} cannot be read: {error.strerror}"
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise GateauError(
                "training.file_damaged",
                f"{path} is not a training specification ({error}): `{gateau_command('run')}` writes one",
            ) from error
