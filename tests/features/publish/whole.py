"""Tell tests of the whole product what `publish` adds."""

NAME = "publish"
SECTION = {"repository": "me/mine", "license": "other", "variants": {"random-s1": "me/random"}}
CODE_VERSIONS = {"features.publish.feature.CODE_VERSION": {"published/main", "published/random-s1"}}
CHANGES = [
    {
        "long_sft.max_rejected": 0.3,
        "long_sft.verify": "content",
        "publish": {"repository": "a/b", "license": "other"},
        "execution.ray": {"workers": 2},
    }
]
NOT_SHOWN = True
