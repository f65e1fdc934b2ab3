"""Versions of what computes each asset."""

from gateau_dagster.scoring.contextual_awareness import CAM_CODE_VERSION

# Raise a version when the code of an asset changes its result.
CODE_VERSIONS = {
    "raw_long_sft": "1",
    "short_chat_mix": "1",
    "perplexity": "2",
    "cam": CAM_CODE_VERSION,
    "combined_scores": "2",
    "method_scores": "1",
    "comparison": "2",
    "selected_subset": "1",
    "training_mix": "3",
    "checkpoint": "3",
    "report": "4",
}
# A model is made by the same code as the mix and the checkpoint, on other samples.
CODE_VERSIONS |= {
    "pre_experience_mix": f"1.{CODE_VERSIONS['training_mix']}",
    "pre_experienced": f"1.{CODE_VERSIONS['checkpoint']}",
    "homologous_mix": "1",
    "homologous_model": f"1.{CODE_VERSIONS['checkpoint']}",
}
