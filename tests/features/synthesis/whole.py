"""Tell tests of the whole product what `synthesis` adds."""

from typing import Any

NAME = "synthesis"
SECTION: dict[str, Any] = {
    "documents": "books/*.txt",
    "count": 8,
    "shards": 2,
    "generator": {"base_url": "http://judge/v1", "model": "m"},
}
CODE_VERSIONS = {
    "features.synthesis.passages.PASSAGES_CODE_VERSION": {"synthetic/passages"},
    "features.synthesis.questions.QUESTIONS_CODE_VERSION": {"synthetic/questions"},
    "features.synthesis.contexts.CONTEXTS_CODE_VERSION": {"synthetic/contexts"},
    "features.synthesis.candidate_checks.CHECKS_CODE_VERSION": {"synthetic/checks"},
    "features.synthesis.declarations.SYNTHESIS_CODE_VERSION": {"synthetic_long_sft"},
}
_OF_SERVER = {"concurrency": 2, "retries": 1, "token_limit": None, "timeout": 9.0}
_GENERATOR = {**_OF_SERVER, "base_url": "http://a/v1", "key": "K", "model": "m"}
CHANGES = [{"synthesis": {"documents": "b", "count": 8, "verify": "content", "generator": _GENERATOR}}]
NOT_SHOWN = {"verify": True, "generator": {*_OF_SERVER, "base_url", "key"}}
