"""Write long samples about documents with a generator, and check that each needs its context."""

# The tables by shard of documents.
PASSAGES_TABLE, QUESTIONS_TABLE = "synthetic/passages", "synthetic/questions"
CONTEXTS_TABLE, CHECKS_TABLE = "synthetic/contexts", "synthetic/checks"
