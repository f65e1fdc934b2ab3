"""Answers to a benchmark's questions: what a model is shown, how it answers in this process, or on a server."""
