"""Generation of answers to a benchmark's questions: the prompts, and the engines in this process and on a server."""
