"""Forms that plain technical English replaces, in documentation and in the texts of Python code."""

import ast
import re

# A noun after "training" makes it an adjective: "a training run".
_NOUNS = (
    "run step process mix data set sequence loss token sample job batch row text task example specification section "
    "log file folder loop script recipe setting time library framework"
)
_AMOUNT = r"(?:one|two|three|four|six|eight|ten|a|an|a few|(?<!how )(?<!How )many|\d[\d.,]*)"
_THING = (
    r"(?:bytes?|tokens?|samples?|rows?|seconds?|minutes?|hours?|[GMK]i?B|FLOPs|pass|passes|prompts?|requests?|words?|"
    r"lines?|characters?|segments?|texts?|concepts?|files?|workers?|processes|documents?|cores?|tables?|keys?|vectors?)"
)
_UNIT = (
    r"(?:second|minute|hour|day|sample|token|rank|GPU|worker|step|row|shard|document|question|model|pass|seed|layer|"
    r"number|parameter|element|line|file|table|run|page|sentence|method|benchmark|variant|piece|prompt|request|Ray)"
)
FORMS = (
    rf"\b[Tt]rainings\b|\b[Aa] (?:\w+(?:er|ed) )?training\b(?! (?:{'|'.join(_NOUNS.split())})s?\b)(?![`_])",
    r"\bof (?:its|their|our) own\b",
    r"\b[Ff]urther (?!(?:apart|away|back|behind|below|down|from|on|out|than|up|ahead|in|and|or|until|by)\b)(?=[a-z`])",
    rf"\b{_AMOUNT} (?:\w+ )?{_THING} an? {_UNIT}\b",
)
# Lines of `Raises` that name no subject, such as "GateauError: one is."
NO_SUBJECT = r"Error: (?:one(?! of)|it|they|none|there is none)\b"


def forbidden(text: str, *forms: str) -> list[str]:
    """Return the matches of the regular expressions in a text, with the words around them."""
    text = " ".join(text.split()).replace("an input that provides further context", "")  # Alpaca's prompt
    return [text[max(0, match.start() - 30) : match.end() + 20] for form in forms for match in re.finditer(form, text)]


def texts(source: str) -> str:
    """Return docstrings, other strings and comments of Python source, with `code` for code in backticks."""
    strings = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]
    comments = re.findall(r"(?:^|\s)#\s(.*)$", source, re.MULTILINE)
    return re.sub(r"`[^`\n]+`", "`code`", " .\n".join([*strings, "\n".join(comments)]))
