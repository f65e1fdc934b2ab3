"""Make `homologous_mix/<model>`."""

from collections.abc import Callable

from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.assets.training_mix import mix_statistics, mix_tokenizer
from gateau_dagster.config.made_models import homologous_options
from gateau_dagster.errors import GateauError
from gateau_dagster.features.text_mix.mix import TextSource, build_text_mix, text_files
from gateau_dagster.progress import Progress
from gateau_dagster.storage.content import frame_digest


@makes_asset
def homologous_mix(step: Step) -> None:
    """Mix long and short texts by their shares of tokens."""
    for output in step.in_turn():
        config, model = output.state.config, output.name
        options, files = homologous_options(config.models[model]), text_files(config, model)
        read = _bytes_read(sum(file.size for found in files.values() for file in found), output.progress)
        sources = {
            key: TextSource(
                origin="long" if key == "texts" else "short",
                files=found,
                text_field=options.text_field,
                join_by=options.join_by if key == "texts" else None,
                least_tokens=options.least_tokens if key == "texts" else 0,
                on_bytes=read,
            )
            for key, found in files.items()
        }
        try:
            made = build_text_mix(
                sources["texts"],
                sources.get("short_texts"),
                mix_tokenizer(output.state, model, output.progress),
                options=options,
            )
        except GateauError as error:
            raise error.reworded(f"models.{model}.homologous.{error}") from error
        # The digest covers what training reads: renamed files must not retrain.
        content = frame_digest(made.mix.select("position", "input_ids", "labels"))
        output.write(made.mix, made.rejected, content=content, given=made.given)
        epochs = {f"epochs_of_{origin}_texts": times for origin, times in made.epochs.items()}
        output.metadata |= mix_statistics(made.mix) | epochs


def _bytes_read(total: int, progress: Progress) -> Callable[[int], None]:
    """Return a callback that reports bytes read. Files are read once for their texts, and again for drawn ones."""
    done = 0

    def note(count: int) -> None:
        nonlocal done
        done += count
        progress(done, None if done > total else total, "bytes", "reading texts")

    return note
