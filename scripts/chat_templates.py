"""Writes docs/chat_templates.md: what each chat template of a folder does, by the trial that every run makes.

`python scripts/chat_templates.py FOLDER` reads every `*.jinja` below FOLDER, such as models' `chat_template.jinja`.
Only what a template does is written, not its text. Templates of equal text have one row.
"""

import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.chat_template import Trial, trial_of
from gateau_dagster.models.control_tokens import control_tokens
from gateau_dagster.training.encode import IGNORED, encode_conversation

PAGE = Path(__file__).parents[1] / "docs" / "chat_templates.md"
_SECONDS = 20.0
CONTROL = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<bos>", "<unk>", "[INST]"),
    *("<start_of_turn>", "<|eot_id|>", "<｜User｜>", "<|end|>"),
)
_WORD = "GATEAUWORD"
# What looks like a special token in a template: such tokens are in its model's vocabulary.
_TOKENS = re.compile(
    r"<\|[\w.-]+\|?>|<[\w.-]+\|>|<｜[^<>]+｜>|\[\|\w+\|\]|\[/?[A-Z_]{3,}\]|</?s>|<[be]os>|<(?:start|end)_of_\w+>"
    r"|<extra_id_\d+>"
)
_INTRODUCTION = """# What real chat templates do

`scoring.template: chat` shows models everything through the chat template of their tokenizer. Templates differ in
what they do with a conversation. So `gateau validate`, `gateau plan` and `gateau run` try each model's template before
any model runs, in a separate process with limits. This table has the result for {count} templates, {trainable} of
which can be trained with. They are from the repositories `chujiezheng/chat_templates` (`chat_templates/`, without
indentation and line ends, as its README reads them), `axolotl-ai-cloud/axolotl` (`axolotl/`) and `huggingface/trl`
(`trl/`). Some templates of models for images refuse turns of text.

`python scripts/chat_templates.py FOLDER` writes this page from the `*.jinja` files below a folder. Each template has a
small tokenizer that knows the tokens which the template names.

| column | meaning |
|---|---|
| system | what becomes of a system turn. After `refused` and `dropped`, its text is put before the first user turn |
| empty system | a system turn without text is `refused`, `printed`, or the same `as none` |
| own system | `added`: the template begins a conversation with its own text |
| two exchanges | `earlier answers rewritten`: the first answer is another one once a second follows; it has no loss |
| user twice, answer twice | two consecutive turns of one role |
| last thoughts, earlier thoughts | `<think>…</think>` in the last answer and in earlier ones. The last are put back |
| before an answer | what a finished answer has before it beyond the generation prompt (+), or lacks of it (-) |
| end | the tokens that end an answer. Without one the template is refused for training |
| trained | whether a model can be trained with it |
| as text | how many of twelve control tokens stay text that a text of the data spells: {control} |

"""
_COLUMNS = {
    "system": "system",
    "empty system": "empty system",
    "own system": "own system",
    "two exchanges": "two exchanges",
    "user twice": "consecutive user turns",
    "answer twice": "consecutive answers",
    "last thoughts": "thoughts of the last answer",
    "earlier thoughts": "thoughts of earlier answers",
}


def tokenizer_for(template: str, others: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes, and of the tokens that a template names; `others`: more control tokens."""
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    named = {*_TOKENS.findall(template), *others} - {"<s>", "</s>"}
    backend.add_special_tokens(["<s>", "</s>", *sorted(named)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    return fast


def not_kept(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str] = CONTROL) -> list[str] | None:
    """The control tokens that do not stay text in a conversation whose texts all spell them.

    With the token, the conversation must have the same control tokens with the same loss as with a plain word, and its
    answers must be learned as they are written. None for a template that refuses the conversation without its system
    text, too.
    """
    for first in (0, 1):
        try:
            control, plain = _learned(tokenizer, _WORD, first)
            shown = {token: _learned(tokenizer, token, first) for token in tokens}
        except UnscorableSampleError:
            continue
        return [token for token, found in shown.items() if found != (control, plain.replace(_WORD, token))]
    return None


def _learned(tokenizer: PreTrainedTokenizerBase, text: str, first: int) -> tuple[list[tuple[int, bool]], str]:
    """The control tokens of a conversation that has `text` everywhere, with whether they are learned; the answers."""
    turns = [
        {"role": role, "content": f"This is {text} as a text,{text} or so."}
        for role in ("system", "user", "assistant", "user", "assistant")
    ]
    made = encode_conversation(tokenizer, turns[first:], template="chat", max_length=100_000)
    ids, learned = made.input_ids.tolist(), made.labels != IGNORED
    typed: Any = tokenizer
    control = {typed.convert_tokens_to_ids(token) for token in control_tokens(tokenizer)}
    runs = [(token, bool(loss)) for token, loss in zip(ids, learned, strict=True) if token in control]
    said = [token for token, loss in zip(ids, learned, strict=True) if loss and token not in control]
    return runs, str(tokenizer.decode(said))


def tried(template: str) -> Trial:
    """The trial of a template; one that does not come to an end is stopped."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it was stopped after {_SECONDS:g} s")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
    try:
        return trial_of(tokenizer_for(template))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def row(name: str, trial: Trial, lost: Sequence[str] | None) -> list[str]:
    """The cells of a template's row. lost: see not_kept."""
    if trial.reason:
        return [name, f"unusable: {trial.reason}", *[""] * (len(_COLUMNS) + 1), "no", ""]
    lacks, has = trial.change
    before = " ".join([*([f"- {_code(lacks)}"] if lacks else []), *([f"+ {_code(has)}"] if has else [])])
    ends = " ".join(map(_code, trial.ends)) or f"none{': ' + _code(trial.ending) if trial.ending else ''}"
    cells = [trial.behaviour.get(kind, "") for kind in _COLUMNS.values()]
    not_text = "".join(f", not {_code(token)}" for token in lost or ())
    kept = "refused" if lost is None else f"{len(CONTROL) - len(lost)}{not_text}"
    return [name, *cells, before, ends, "yes" if trial.trainable else "no", kept]


def _code(text: str) -> str:
    shown = repr(text)[1:-1].replace("|", "\\|")
    return f"`{shown[:60]}{'…' if len(shown) > 60 else ''}`"


def page(folder: Path) -> str:
    """The page for the templates below a folder."""
    rows = list(_rows(folder))
    trainable = sum(each[-2] == "yes" for each in rows)
    introduction = _INTRODUCTION.format(count=len(rows), trainable=trainable, control=", ".join(map(_code, CONTROL)))
    header = ["template", *_COLUMNS, "before an answer", "end", "trained", "as text"]
    lines = [header, ["---"] * len(header), *rows]
    return introduction + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rows(folder: Path) -> Iterator[list[str]]:
    seen: set[str] = set()
    for file in sorted(folder.rglob("*.jinja")):
        template = file.read_text(encoding="utf-8")
        if template.strip() not in seen:
            seen.add(template.strip())
            trial = tried(template)
            lost = None if trial.reason else not_kept(tokenizer_for(template, CONTROL))
            yield row(file.relative_to(folder).with_suffix("").as_posix(), trial, lost)


if __name__ == "__main__":
    PAGE.write_text(page(Path(sys.argv[1])), encoding="utf-8")
