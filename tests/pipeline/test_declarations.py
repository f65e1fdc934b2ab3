"""The nodes: their order, their upstreams, and what counts by content."""

from pathlib import Path

from gateau_dagster.models.model_digest import model_digest
from gateau_dagster.pipeline.declarations import pipeline_of
from gateau_dagster.pipeline.plan import make_plan
from tests.pipeline.configured import configured, stale, versions
from tests.pipeline.fields import FIELDS, LONG, MIXED, NOTHING, SHORT, TRAINED


def test_the_model_of_training_counts_with_its_weights(tmp_path: Path) -> None:
    config = configured(tmp_path)
    digests = {"short": "x", "long": "y"}
    found = stale(versions(config, digests), versions(config, {**digests, "long": "z"}))
    assert found == LONG
    assert stale(versions(config, digests), versions(config, {**digests, "short": "z"})) == SHORT


def test_new_short_conversations_reach_the_mix(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert stale(versions(config), versions(config, signature="t")) == {"short_chat_mix", *MIXED}


def test_a_deepspeed_file_counts_by_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 1}}')
    config = configured(tmp_path, **{"training.deepspeed": "ds.json"})
    before = versions(config)
    file.write_text('{"zero_optimization": {"stage": 1}}\n')
    assert stale(before, versions(config)) == NOTHING
    file.write_text('{"zero_optimization": {"stage": 2}}')
    assert stale(before, versions(config)) == TRAINED


def test_demo_fields_change_data_or_models(tmp_path: Path) -> None:
    base = configured(tmp_path, **{"long_sft.path": "demo:samples", "models.short.path": "demo:short"})
    for field in ("demo.seed", "demo.samples", "demo.conversations"):
        changed = configured(
            tmp_path, **{"long_sft.path": "demo:samples", "models.short.path": "demo:short", field: FIELDS[field][0]}
        )
        assert changed.located_long_sft.path != base.located_long_sft.path
        assert (model_digest(changed, "short") != model_digest(base, "short")) == (field == "demo.seed")


def test_the_nodes_stand_in_topological_order_and_name_known_upstreams(tmp_path: Path) -> None:
    pipeline = pipeline_of(configured(tmp_path), {"short": "x", "long": "y"}, "s")
    seen: set[str] = set()
    for node in pipeline.nodes:
        assert set(node.upstream) <= seen
        seen.add(node.asset)
    assert set(pipeline.by_name["report"].upstream) == seen - {"report"}
    assert [name for name, partitioned in pipeline.partitioned.items() if partitioned] == [
        "raw_long_sft",
        "perplexity/short",
        "perplexity/long",
        "cam",
    ]
    assert make_plan(pipeline.nodes, ["0"], {"0": "i"}, {}).of("report") is not None


def test_training_works_downstream_by_content_only(tmp_path: Path) -> None:
    """An equal selection must not cost a GPU week."""
    pipeline = pipeline_of(configured(tmp_path), {"short": "x", "long": "y"}, "s")
    assert set(pipeline.by_name["training_mix"].upstream.values()) == {"content"}
    assert set(pipeline.by_name["checkpoint"].upstream.values()) == {"content"}


def test_a_mix_by_rank_or_source_counts_where_the_choice_comes_from(tmp_path: Path) -> None:
    """Its content does not: an equal mix is not trained again."""
    for changes in ({"training.mix.long_fraction": 0.5}, {"training.mix.weights": {"long": 2.0}}):
        nodes = pipeline_of(configured(tmp_path, **changes), {"short": "x", "long": "y"}, "s").by_name
        assert nodes["training_mix"].upstream == {"selected_subset": "fingerprint", "short_chat_mix": "content"}
        assert nodes["checkpoint"].upstream == {"training_mix": "content"}


def test_further_models_have_a_perplexity_and_reach_the_report(tmp_path: Path) -> None:
    config = configured(tmp_path, **{"models.third": {"path": "t"}})
    pipeline = pipeline_of(config, {"short": "x", "long": "y", "third": "z"}, "s")
    assert "perplexity/third" in pipeline.by_name["report"].upstream
    assert "perplexity/third" not in pipeline.by_name["combined_scores"].upstream
