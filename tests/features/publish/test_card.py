"""Check the card of a published data set."""

import polars as pl
import yaml

from gateau_dagster.features.publish.card import CardFacts, data_card
from gateau_dagster.features.publish.config import PublishConfig
from tests.kit.project import configured

LENGTHS = {"context_tokens": [1, 2, 3, None], "response_tokens": [9, 8, 7, None]}
SOURCES = ["a | b", "/r/<script>", None, "a | b"]


def card(*, is_whole: bool = True, **sections: object) -> tuple[dict[str, object], str]:
    """Return the front matter and the text of a card."""
    facts = CardFacts(
        config=configured(**sections),
        options=PublishConfig(repository="team/selection", license="mit"),
        sizes={"selected": 2000, "scores": 4000},
        lengths=pl.DataFrame({"source": SOURCES, "selected": [True, False, False, False], **LENGTHS}),
        unit="tokens",
        losses=["cam: 1 of 4 samples rejected: [link](x)"],
        checks=["Secrets: none"],
        fingerprint="f" * 32,
        is_whole=is_whole,
    )
    _, header, text = data_card(facts).split("---\n", 2)
    return yaml.safe_load(header), text


def test_the_front_matter_is_what_the_hub_reads() -> None:
    header, _ = card()
    assert header["license"] == "mit" and header["size_categories"] == ["1K<n<10K"]
    files = [{"split": "train", "path": f"data/{name}.parquet"} for name in ("selected", "scores")]
    assert header["configs"] == [
        {"config_name": "selected", "data_files": files[:1], "default": True},
        {"config_name": "scores", "data_files": files[1:]},
    ]


def test_texts_of_the_data_are_no_markup() -> None:
    text = card()[1]
    assert r"| a \| b | 2 | 1 | 50 % |" in text and r"| /r/\<script\> | 1 | 0 | 0 % |" in text
    assert r"\[link\](x)" in text and "| (unknown) | 1 | 0 |" in text
    assert "| context, all samples | 1 | 2 | 3 | 3 |" in text and "| response, chosen | 9 | 9 | 9 | 9 |" in text


def test_the_configuration_loads_and_names_no_folder_of_the_machine() -> None:
    models = {"short": {"path": "/home/jane doe/models/a"}, "long": {"path": "~/private/b"}}
    long_sft = {"path": ["/data/secret/x.jsonl", "s3://bucket/y.jsonl", "own/z.jsonl"], "verify": "content"}
    text = card(models=models, long_sft=long_sft)[1]
    shown = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert shown["long_sft"] == {"path": ["x.jsonl", "s3://bucket/y.jsonl", "own/z.jsonl"]}
    assert {name: each["path"] for name, each in shown["models"].items()} == {"short": "a", "long": "b"}
    assert "/home" not in text and "private" not in text and "secret/" not in text


def test_only_a_configuration_that_decides_the_fingerprint_promises_it() -> None:
    assert "The same files give the fingerprint" in card()[1]
    assert "fingerprint above" not in card(is_whole=False)[1]
