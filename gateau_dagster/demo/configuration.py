"""Define the configuration that is used when the user gives none."""

from pathlib import Path

from gateau_dagster.config.evaluation import EvaluationConfig
from gateau_dagster.config.inputs import DemoConfig, LongSftConfig, ShortChatConfig
from gateau_dagster.config.models import ModelConfig, ScoringConfig
from gateau_dagster.config.schema import Config
from gateau_dagster.config.selection import SelectionConfig
from gateau_dagster.config.training import TrainingConfig
from gateau_dagster.config.training_sections import PositionExtension


def embedded_demo(folder: Path, demo: DemoConfig | None = None) -> Config:
    """Return the demo's configuration: a tiny homologous pair, and samples with known dependencies."""
    from gateau_dagster.demo.language import ATTRIBUTES, VALUES
    from gateau_dagster.demo.long_samples import FAR_KINDS

    return Config(
        folder=folder,
        demo=demo or DemoConfig(),
        long_sft=LongSftConfig(path="demo:samples", shards=4),
        short_chat=ShortChatConfig(path="demo:conversations"),
        models={
            "short": ModelConfig(path="demo:short", context="window"),
            "long": ModelConfig(path="demo:long"),
        },
        scoring=ScoringConfig(max_length=2048, segment_length=128, dtype="float32"),
        # GATEAU's halves and the plain baselines: they load no model, and read tables that the pair computes anyway.
        selection=SelectionConfig(
            fraction=0.3,
            compare=["hmg", "cam", "perplexity", "length", "random"],
            ground_truth=list(FAR_KINDS),
            evidence=True,
        ),
        # theta_A, since theta_B finds every fact already: nothing could be seen to improve.
        training=TrainingConfig(
            model="short",
            positions=PositionExtension(method="theta", theta=1e6, target_length=2048),
            max_length=2048,
            epochs=3,
            learning_rate=1e-3,
            batch_size=2,
            gradient_accumulation=2,
            dtype="float32",
        ),
        evaluation=EvaluationConfig.model_validate(
            {
                "heldout": {"samples": 40, "buckets": [768, 1024, 1280]},
                "needle": {
                    "lengths": [256, 512, 1024, 1536],
                    "depths": [0.0, 0.25, 0.5, 0.75, 1.0],
                    "repeats": 4,
                    # The sentences of the demo's language.
                    "fact": " note {key} {value} . ",
                    "question": "recall {key}",
                    "answer": "{key} {value} .",
                    "pairs": [{"key": name, "values": list(VALUES[name])} for name in ATTRIBUTES],
                },
            }
        ),
    )
