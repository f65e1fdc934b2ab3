"""The assets as the planner sees them: who reads what, and which settings change which result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gateau_dagster.config import Config
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.pipeline.code_versions import CODE_VERSIONS
from gateau_dagster.pipeline.made_models import embedding_asset, made_model_nodes, made_upstream
from gateau_dagster.pipeline.node import Node
from gateau_dagster.pipeline.required_assets import required_assets
from gateau_dagster.pipeline.scored_nodes import OPERATIONAL_SCORING, cam_node, perplexity_node, sample_table_node
from gateau_dagster.pipeline.selection_nodes import selection_nodes, tables_read
from gateau_dagster.storage.stamp import By, fingerprint
from gateau_dagster.training.deepspeed_agreement import agreed_deepspeed_config

# Settings of training that decide how it runs, not what comes out.
_OPERATIONAL_TRAINING = {
    *("enabled", "save_steps", "gradient_checkpointing", "launcher", "hostfile", "report_to"),
    *("preset", "sequences_per_step", "tokens_per_step"),  # what they come to stands in other fields
}
# They decide what is in the mix, whose content the checkpoint is made from.
_OF_THE_MIX = {"mix", "truncation"}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The nodes in topological order."""

    nodes: Sequence[Node]

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by asset name."""
        return {node.asset: node for node in self.nodes}

    @cached_property
    def unwanted(self) -> list[str]:
        """The assets that this configuration does not ask for; they are made when they are named."""
        return [node.asset for node in self.nodes if not node.wanted]

    @cached_property
    def partitioned(self) -> Mapping[str, bool]:
        """Whether each asset is partitioned by shard."""
        return {node.asset: node.partitioned for node in self.nodes}


def pipeline_of(
    config: Config,
    model_digests: Mapping[str, str],
    short_chat_signature: str | None,
    text_signatures: Mapping[str, str] | None = None,
) -> Pipeline:
    """The pipeline that a configuration asks for.

    Args:
        model_digests: see `model_digest`, for every configured model.
        short_chat_signature: changes when the short conversations' files change; None without short chat.
        text_signatures: see `homologous_texts.text_signatures`; None without homologous models.

    Raises:
        GateauError: the file that training.deepspeed names cannot be read, or contradicts `training`.
    """
    nodes = [Node(asset="raw_long_sft", partitioned=True, code_version=CODE_VERSIONS["raw_long_sft"])]
    nodes += _short_chat(config, short_chat_signature)
    own = {
        asset: sample_table_node(config, table, model_digests[table.model])
        for asset, table in sample_tables(config).items()
    }
    first = dict.fromkeys(embedding_asset(config, name) for name in config.pre_experienced_models)
    nodes += [own.pop(asset) for asset in first]
    nodes += made_model_nodes(config, model_digests, text_signatures)
    nodes += [perplexity_node(config, name, model_digests[name]) for name in config.causal_models]
    nodes += [*([cam_node(config, model_digests["long"])] if config.has_pair else []), *own.values()]
    nodes += selection_nodes(config)
    if config.training.enabled:
        nodes += [*_training(config, model_digests[config.training.model]), *_evaluation(config)]
    wanted = required_assets(config, {node.asset: node.upstream.keys() for node in nodes})
    nodes = [replace(node, wanted=node.asset in wanted) for node in nodes]
    return Pipeline(nodes=[*nodes, _report(config, nodes)])


def _short_chat(config: Config, signature: str | None) -> list[Node]:
    if config.short_chat is None:
        return []
    settings = {"short_chat.fraction": config.short_chat.fraction, "short_chat files": signature}
    return [
        Node(
            asset="short_chat_mix",
            partitioned=False,
            settings=settings,
            code_version=CODE_VERSIONS["short_chat_mix"],
        )
    ]


def _training(config: Config, digest: str) -> list[Node]:
    training = config.training
    chat: Mapping[str, Any] = {"short_chat_mix": "content"} if config.short_chat else {}
    # An equal selection is an equal mix, unless the mix goes by the samples' ranks or sources.
    chosen: By = "fingerprint" if training.mix.long_fraction < 1 or training.mix.weights else "content"
    section = f"models.{training.model}"
    weights = {f"{section} weights": digest}
    options = {
        f"training.{name}": value
        for name, value in training.model_dump(mode="json").items()
        if name not in _OPERATIONAL_TRAINING | _OF_THE_MIX and not (name == "epochs" and training.max_steps is not None)
    }
    options["training.gradient_accumulation"] = training.passes_per_step
    # What a preset or a file comes to counts, not what it is called.
    options["training.deepspeed"] = agreed_deepspeed_config(training, folder=config.folder)
    return [
        Node(
            asset="training_mix",
            partitioned=False,
            upstream={"selected_subset": chosen, **chat},
            settings={
                **weights,
                "scoring.template": config.scoring.template,
                "training.max_length": training.max_length,
                "training.truncation": training.truncation,
                "training.seed": training.seed,
                **{f"training.mix.{name}": value for name, value in training.mix.model_dump(mode="json").items()},
            },
            code_version=CODE_VERSIONS["training_mix"],
        ),
        Node(
            asset="checkpoint",
            partitioned=False,
            upstream={"training_mix": "content", **made_upstream(config, training.model)},
            settings={**weights, f"{section}.rope_theta": config.models[training.model].rope_theta, **options},
            code_version=CODE_VERSIONS["checkpoint"],
        ),
    ]


def _evaluation(config: Config) -> list[Node]:
    evaluation, scoring = config.evaluation, config.scoring
    # Gives the lengths, and which samples can be measured; where nothing else reads it, the evaluation counts itself.
    counted: dict[str, By] = {"perplexity/long": "fingerprint"} if "perplexity/long" in tables_read(config) else {}
    if not evaluation.enabled:
        return []
    common = {
        "scoring.max_length": scoring.max_length,
        "scoring.template": scoring.template,
        "scoring.dtype": scoring.dtype,
    }
    nodes = {
        "heldout": Node(
            asset="evaluation/heldout",
            partitioned=False,
            upstream={
                "raw_long_sft": "fingerprint",
                **counted,
                "selected_subset": "content",
                "checkpoint": "content",
            },
            settings={**common, "evaluation.heldout": evaluation.heldout.model_dump(mode="json")},
            code_version=CODE_VERSIONS["evaluation/heldout"],
        ),
        "needle": Node(
            asset="evaluation/needle",
            partitioned=False,
            upstream={"raw_long_sft": "fingerprint", "checkpoint": "content"},
            settings={
                **common,
                "evaluation.needle": evaluation.needle.model_dump(mode="json"),
                "training.seed": config.training.seed,
            },
            code_version=CODE_VERSIONS["evaluation/needle"],
        ),
    }
    return [nodes[name] for name in nodes if name in evaluation.benchmarks]


def _report(config: Config, nodes: Sequence[Node]) -> Node:
    """The page shows everything that is wanted, so all of that is upstream of it."""
    return Node(
        asset="report",
        partitioned=False,
        upstream={node.asset: "fingerprint" for node in nodes if node.wanted},
        settings={"configuration": shown_configuration(config)},
        code_version=CODE_VERSIONS["report"],
    )


def shown_configuration(config: Config) -> str:
    """Digest of the configuration that the report prints: what only says how the pipeline runs is left out."""
    shown = config.model_dump(
        mode="json",
        exclude={
            "storage": True,
            "execution": True,
            "demo": True,
            "scoring": OPERATIONAL_SCORING,
            "training": _OPERATIONAL_TRAINING - {"enabled"},
        },
    )
    return fingerprint(shown)
