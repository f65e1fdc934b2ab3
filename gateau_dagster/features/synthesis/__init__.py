"""Write long samples about documents with a generator, and check that each needs its context."""

# The partition set of the documents, by a hash of their text, and its tables.
DOCUMENTS = "document_shard"
PASSAGES_TABLE, QUESTIONS_TABLE = "synthetic/passages", "synthetic/questions"
CONTEXTS_TABLE, CHECKS_TABLE = "synthetic/contexts", "synthetic/checks"
