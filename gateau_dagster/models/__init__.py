"""Language models as the pipeline uses them: loading, prompts, attention, forward passes and their cost."""
