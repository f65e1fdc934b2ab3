"""Build the prompt that Cherry Selection's program embeds: a task in Alpaca's format, up to the response."""

from gateau_dagster.data.sample import Sample

# The program's --max_length: a longer prompt is cut at the end.
PROMPT_TOKENS = 512

_TASK, _COMPLETE = (
    "Below is an instruction that describes a task",
    "Write a response that appropriately completes the request.",
)
_FURTHER = f"{_TASK}, paired with an input that provides further context. {_COMPLETE}\n\n"


def cherry_prompt(sample: Sample) -> str:
    """Return the prompt of instruction and context, whatever the scoring template is.

    Source: tianyi-lab/Cherry_LLM, data_analysis.py, prompt `alpaca`.
    """
    asked = f"### Instruction:\n{sample.instruction}\n\n"
    if not sample.context:
        return f"{_TASK}. {_COMPLETE}\n\n{asked}### Response:"
    return f"{_FURTHER}{asked}### Input:\n{sample.context}\n\n### Response:"
