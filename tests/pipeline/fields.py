"""A line for every field of the configuration: another value, and the assets that must run again for it."""

from typing import Any

from gateau_dagster.features.evaluation.registry import all_benchmarks, asset_of
from tests.kit.project import ROOT
from tests.pipeline.configured import BASE

REPORT = {"report"}
EVALUATED = {*(asset_of(name) for name, each in all_benchmarks().items() if each.default), *REPORT}
TRAINED = {"checkpoint", *EVALUATED}
MIXED = {"training_mix", *TRAINED}
CHOSEN = {"selected_subset", *MIXED}
SCORED = {"combined_scores", *CHOSEN}
SHORT = {"perplexity/short", *SCORED}
LONG = {"perplexity/long", "cam", *SCORED}
EVERY_SCORE = {*SHORT, *LONG}
NOTHING: set[str] = set()
NO_TRAINING = {"selected_subset", *REPORT}  # nothing is held out
PAIR_ONLY = {"models.short.task", "models.long.task"}  # the pair has to be causal
MODELS = {**BASE["models"], **{name: {"path": f"a/{name}", "task": "embedding"} for name in ("enc", "enc2")}}
# Fields that only some rules read: the selection without and with another value.
OF_RULES: dict[str, tuple[dict[str, Any], Any]] = {
    "budget": ({"rule": "token_budget", "budget": 5000}, 6000),
    "shares": ({"rule": "per_source"}, {"a": 1.0}),
    "short_source": ({"rule": "per_source"}, "share"),
    "encoder": ({"rule": "diverse", "encoder": "enc"}, "enc2"),
    "clusters": ({"rule": "diverse", "encoder": "enc"}, 3),
    "per_cluster": ({"rule": "diverse", "encoder": "enc"}, 2),
    "cluster_from": ({"rule": "diverse", "encoder": "enc"}, "rest"),
    "variance": ({"rule": "diverse", "encoder": "enc"}, 0.5),
    "seed": ({"rule": "diverse", "encoder": "enc"}, 1),
    "tau": ({"rule": "mix"}, 1.0),
    "use": ({"rule": "mix"}, {"far": 0.4}),
}
# Fields of training that go with others only: the section without and with another value.
_PACKED = {"batching": "packed", "max_length": 64}
_NTK = {"method": "ntk", "target_length": 9000}
OF_TRAINING: dict[str, tuple[dict[str, Any], Any]] = {
    "tokens_per_step": (_PACKED, 640),
    "pack_length": (_PACKED, 128),
    "every_n_layers": ({"gradient_checkpointing": True}, 2),
    "min_learning_rate_ratio": ({"scheduler": "cosine"}, 0.1),
    "sequence_parallel": ({"processes": 2, "deepspeed": "zero3"}, 2),
    "positions.method": ({"positions": _NTK}, "linear"),
    "positions.target_length": ({"positions": _NTK}, 9001),
    "positions.theta": ({"positions": {"method": "theta", "theta": 2e4}}, 3e4),
    "skip.strategy": ({"skip": {}}, "all"),
    "skip.length": ({"skip": {}}, 5000),
    "skip.probability": ({"skip": {}}, 0.1),
    "lora.rank": ({"lora": {}}, 2),
    "lora.alpha": ({"lora": {}}, 2),
    "lora.dropout": ({"lora": {}}, 0.1),
    "lora.modules": ({"lora": {}}, ["q_proj"]),
}
# The gate's fields, which go together: each with another value. They change what a check says, and the page shows them.
# Its benchmark is asked for by it; see tests/features/evaluation/test_experiment.py.
GATE: dict[str, Any] = {"benchmark": "needle", "margin": 1.0}
OF_GATE: dict[str, Any] = {"margin": 2.0, "variant": "base"}
# Every table that a model computes beside the pair, for methods, rule, segment lengths and a pre-experienced model.
WITH_TABLES: dict[str, Any] = {
    "models.enc": {"path": "a/enc", "task": "embedding"},
    "models.reward": {"path": "a/reward", "task": "reward"},
    "models.cherry": {"path": "pre_experienced:long"},
    "selection": {
        "method": "car",
        "compare": ["ifd", "ladm", "delta_perplexity"],
        "rule": "diverse",
        "encoder": "enc",
        "segment_lengths": [64],
    },
}
READERS = {"quality/reward", "embedding/enc"}  # of instruction and response as one text
PROMPTED = {"span_attention/long", "segment_pairs/long", "cam_at/64"}
OF_LONG = {"response_alone/long", "instruction_embedding/long", *PROMPTED}
TABLES = READERS | OF_LONG
# Field: (another value, the tables that must run again).
OF_TABLES: dict[str, tuple[Any, set[str]]] = {
    "models.reward.path": ("a/other", {"quality/reward"}),
    "models.reward.window": (64, {"quality/reward"}),  # read whatever `context` says
    "models.reward.context": ("window", NOTHING),
    "models.reward.rope_theta": (5.0, {"quality/reward"}),
    "models.reward.preamble": ("Be helpful.", NOTHING),
    "models.enc.window": (64, {"embedding/enc"}),
    "models.long.path": ("a/other", OF_LONG),
    "models.long.window": (128, NOTHING),  # unused while context is full
    "models.long.context": ("window", OF_LONG),
    "models.long.rope_theta": (5.0, OF_LONG),
    "models.long.preamble": ("Be helpful.", {"cam_at/64"}),
    "models.long.demonstrations": ([{"instruction": "a", "response": "b"}], {"cam_at/64"}),
    "models.short.window": (128, {"cam_at/64"}),  # what is far for theta_A
    "scoring.max_length": (4096, TABLES),
    "scoring.dtype": ("float32", TABLES),
    "scoring.template": ("chat", PROMPTED),
    "scoring.segment_length": (32, NOTHING),
    "scoring.segments": ("screened", {"cam_at/64"}),
    "selection.options.car": ({"as_pair": True}, {"quality/reward"}),
    "selection.options.ladm": ({"span_length": 64}, {"span_attention/long"}),
    "selection.options.delta_perplexity": ({"pairs": 9}, {"segment_pairs/long"}),
}
# A selection, options of methods, and the assets that must run again for them.
OF_METHODS: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = [
    ({"method": "random"}, {"random": {"seed": 1}}, {"method_scores/random", *CHOSEN}),
    ({"compare": ["random"]}, {"random": {"seed": 1}}, {"method_scores/random", "comparison", *REPORT}),
    ({"method": "ladm"}, {"ladm": {"deviation_weight": False}}, {"method_scores/ladm", *CHOSEN}),
    (
        {"method": "ladm"},
        {"ladm": {"variant": "program"}},
        {"span_attention/long", "method_scores/ladm", *CHOSEN},
    ),
]

# Field: (another value, the assets that must run again; by content more may follow, see `stale`).
FIELDS: dict[str, tuple[Any, set[str]]] = {
    "storage.root": ("./elsewhere", NOTHING),
    "long_sft.path": ("other.jsonl", REPORT),  # its content counts, shard by shard; the page shows the path
    "long_sft.verify": ("content", NOTHING),
    "long_sft.shards": (3, {"raw_long_sft", "document_split", *EVERY_SCORE}),
    "long_sft.max_rejected": (0.5, NOTHING),
    "long_sft.allow_empty_context": (True, REPORT),
    "long_sft.ignore": (["notes"], REPORT),  # the samples that come of it count, shard by shard
    "short_chat.path": ("other.json", REPORT),
    "short_chat.verify": ("content", NOTHING),
    "short_chat.ignore": (["notes"], {"short_chat_mix", *MIXED}),
    "short_chat.fraction": (0.5, {"short_chat_mix", *MIXED}),
    "models.short.path": ("a/other", SHORT),
    "models.short.revision": ("v2", SHORT),
    "models.short.rope_theta": (5.0, SHORT),
    "models.short.context": ("full", {"cam", *SHORT}),  # what is far for theta_A
    "models.short.window": (128, {"cam", *SHORT}),
    "models.short.preamble": ("Be helpful.", SHORT),
    "models.short.demonstrations": ([{"instruction": "a", "response": "b"}], SHORT),
    "models.long.preamble": ("Be helpful.", LONG),
    "models.long.demonstrations": ([{"instruction": "a", "response": "b"}], LONG),
    "models.short.verify": ("content", NOTHING),
    "models.short.trust_remote_code": (True, REPORT),
    "models.long.path": ("a/other", {*LONG}),
    "models.long.revision": ("v2", {*LONG}),
    "models.long.rope_theta": (5.0, LONG),
    "models.long.context": ("window", LONG),
    "models.long.window": (128, REPORT),  # unused while context is full
    "models.long.verify": ("content", NOTHING),
    "models.long.trust_remote_code": (True, REPORT),
    "scoring.max_length": (1024, EVERY_SCORE),
    "scoring.segment_length": (64, {"cam", *SCORED}),
    "scoring.segments": ("screened", {"cam", *SCORED}),
    "scoring.template": ("chat", EVERY_SCORE),
    "scoring.dtype": ("float32", EVERY_SCORE),
    "scoring.device": ("cpu", NOTHING),
    "scoring.batch_tokens": (7, NOTHING),
    "selection.method": ("hmg", {"method_scores/hmg", *CHOSEN}),
    "selection.segment_lengths": (
        [64, 256],
        {"cam_at/64", "cam_at/256", "method_scores/gateau", "comparison", *REPORT},
    ),
    "selection.compare": (["hmg"], {"method_scores/gateau", "method_scores/hmg", "comparison", *REPORT}),
    "selection.options": ({"hmg": {"preset": "paper"}}, REPORT),  # of a method that is not chosen
    "selection.plugins": ([str(ROOT / "tests" / "methods" / "letters.py")], REPORT),  # of methods that are not chosen
    "selection.rule": ("per_source", CHOSEN),
    "selection.preset": ("paper", SCORED),
    "selection.alpha": (0.1, SCORED),
    "selection.fraction": (0.5, CHOSEN),
    "selection.per_document": (2, CHOSEN),  # the documents are there for the held-out evaluation
    "selection.duplicates": ("keep", CHOSEN),
    "selection.evidence": (True, {"evidence", *SCORED}),
    "selection.drop": (["near"], {"evidence", *SCORED}),
    "selection.count": (3, CHOSEN),
    "selection.ground_truth": (["far"], REPORT),
    "long_sft.turns": ("each", MIXED),  # the default of training.trained_turns follows it; samples by their content
    "long_sft.parts": ("drop", REPORT),
    "training.enabled": (False, NO_TRAINING),
    "training.model": ("short", MIXED),
    "training.max_length": (64, MIXED),
    "training.truncation": ("right", MIXED),
    "training.trained_turns": ("last", MIXED),
    "training.mix.long_fraction": (0.5, MIXED),
    "training.mix.without_long": (True, MIXED),
    "training.mix.weights": ({"long": 2.0}, MIXED),
    "training.seed": (1, MIXED),
    "training.epochs": (1.0, TRAINED),
    "training.max_steps": (5, TRAINED),
    "training.learning_rate": (1e-3, TRAINED),
    "training.adam_betas": ((0.8, 0.9), TRAINED),
    "training.weight_decay": (0.1, TRAINED),
    "training.max_grad_norm": (2.0, TRAINED),
    "training.scheduler": ("cosine", TRAINED),
    "training.warmup_ratio": (0.2, TRAINED),
    "training.batch_size": (2, TRAINED),
    "training.gradient_accumulation": (1, TRAINED),
    "training.dtype": ("float32", TRAINED),
    "training.processes": (2, TRAINED),
    "training.deepspeed": ("zero2", TRAINED),
    "training.preset": ("skipalign", MIXED),
    "training.batching": ("sorted", TRAINED),
    "training.sequences_per_step": (24, TRAINED),
    "training.balanced": (False, TRAINED),
    "training.loss": ("sequence", TRAINED),
    "training.longce_gamma": (4.0, REPORT),  # without loss: longce or far_gain; see test_token_weights
    "training.trim": (True, MIXED),
    "training.chunked_loss": (False, TRAINED),
    "training.liger": (True, TRAINED),
    "training.report_to": (["tensorboard"], NOTHING),
    "training.report_data": (True, NOTHING),
    "training.launcher": (["srun"], NOTHING),
    "training.hostfile": ("hosts", NOTHING),
    "training.gradient_checkpointing": (True, NOTHING),
    "training.offload_activations": ("off", NOTHING),
    "training.tiled_mlp": (4096, NOTHING),
    "training.gpu_memory": (80, NOTHING),
    "training.attention": ("fa3", NOTHING),
    "training.save_steps": (7, NOTHING),
    # Without the held-out evaluation no sample is reserved.
    "evaluation.enabled": (False, CHOSEN - EVALUATED | REPORT),
    "evaluation.benchmarks": (("needle",), CHOSEN - {"evaluation/heldout"}),
    "evaluation.reference": ("checkpoint", REPORT),
    "evaluation.heldout.share": (0.2, {"document_split", *CHOSEN}),
    "evaluation.heldout.similarity": (0.7, {"document_split", *CHOSEN}),
    "evaluation.heldout.samples": (5, {"evaluation/heldout", *REPORT}),
    "evaluation.heldout.buckets": ([64], {"evaluation/heldout", *REPORT}),
    # They decide the answers to a benchmark's questions, of which there are none here.
    "evaluation.template": ("chat", REPORT),
    "evaluation.input_length": (100, REPORT),
    "evaluation.thoughts": ("keep", REPORT),  # see test_answers
    "evaluation.needle.lengths": ([64], {"evaluation/needle", *REPORT}),
    "evaluation.needle.depths": ([0.0], {"evaluation/needle", *REPORT}),
    "evaluation.needle.repeats": (1, {"evaluation/needle", *REPORT}),
    "evaluation.needle.fact": ("{key} {value}", {"evaluation/needle", *REPORT}),
    "evaluation.needle.question": ("{key}", {"evaluation/needle", *REPORT}),
    "evaluation.needle.answer": ("{value}!", {"evaluation/needle", *REPORT}),
    "evaluation.needle.pairs": ([{"key": "a", "values": ["x", "y"]}], {"evaluation/needle", *REPORT}),
    "scoring.device_map": ("auto", NOTHING),
    "scoring.workers": (2, NOTHING),
    "scoring.compile": (True, NOTHING),
    "scoring.attention": ("fa3", NOTHING),
    "execution.executor": ("multiprocess", NOTHING),
    "execution.max_concurrent": (3, NOTHING),
    "execution.shards_per_run": (3, NOTHING),
    "execution.pool": ("cluster", NOTHING),
    "execution.retries": (0, NOTHING),
    "execution.schedule": ("0 4 * * *", NOTHING),
    "execution.timezone": ("Europe/Berlin", NOTHING),
    "execution.postgres": ("DAGSTER_POSTGRES_URL", NOTHING),
    "execution.catalogue.owners": ({"*": ["team:data"]}, NOTHING),
    "execution.catalogue.tags": ({"domain": "alignment"}, NOTHING),
    "execution.catalogue.code": ("https://example.org/blob/main", NOTHING),
    "execution.catalogue.fresh_within_hours": ({"report": 48.0}, NOTHING),
    # They change the data that the demo builds: `located` leads to another file, and its content counts.
    "demo.seed": (5, NOTHING),
    "demo.samples": (20, NOTHING),
    "demo.conversations": (5, NOTHING),
}
