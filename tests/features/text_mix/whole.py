"""What tests of the whole product know of mixes of texts."""

NAME = "text_mix"
CODE_VERSIONS = {"features.text_mix.mix.CODE_VERSION": {"homologous_mix"}}
