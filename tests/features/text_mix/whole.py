"""Tell tests of the whole product what mixes of texts add."""

NAME = "text_mix"
CODE_VERSIONS = {"features.text_mix.mix.CODE_VERSION": {"homologous_mix"}}
