"""Writes the table of docs/reference/secrets.md: which kinds of secrets are found in which surroundings.

The secrets are made, and so are the surroundings, which are those of real traces. No key is in this file: each is drawn
when it is asked for, so that scanners of this repository are quiet.
"""

import base64
import json
import random
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gateau_dagster.data import secret_scan

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "secrets.md"
LETTERS = string.ascii_letters + string.digits
Row = dict[str, str]
"""Texts of a sample by the column of the long data."""


def _drawn(rng: random.Random, size: int, letters: str = LETTERS) -> str:
    """Return random letters: of every kind of the alphabet at least one, as in nearly every key."""
    while True:
        text = "".join(rng.choices(letters, k=size))
        kinds = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
        if size < 16 or all(set(kind).isdisjoint(letters) or not set(kind).isdisjoint(text) for kind in kinds):
            return text


def _key(start: str, size: int, letters: str = LETTERS, end: str = "") -> Callable[[random.Random], str]:
    return lambda rng: start + _drawn(rng, size, letters) + end


_HEX, _WEB = "0123456789abcdef", LETTERS + "-_"


def _jwt(rng: random.Random) -> str:
    def part(content: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    head, body = (
        part({"alg": "HS256", "typ": "JWT"}),
        part({"sub": _drawn(rng, 10), "iat": rng.randrange(10**9, 2 * 10**9)}),
    )
    return f"{head}.{body}.{_drawn(rng, 43, _WEB)}"


def _private_key(kind: str, start: str) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        body = start + _drawn(rng, 400, LETTERS + "+/")
        lines = [body[at : at + 64] for at in range(0, len(body), 64)]
        return "\n".join([f"-----BEGIN {kind}PRIVATE KEY-----", *lines, f"-----END {kind}PRIVATE KEY-----"])

    return make


def _openai(start: str, size: int, letters: str = _WEB) -> Callable[[random.Random], str]:
    return lambda rng: f"{start}{_drawn(rng, size, letters)}T3BlbkFJ{_drawn(rng, size, letters)}"


def _slack(rng: random.Random) -> str:
    return f"xoxb-{rng.randrange(10**11, 10**12)}-{rng.randrange(10**12, 10**13)}-{_drawn(rng, 24)}"


def _slack_hook(rng: random.Random) -> str:
    place = f"T{_drawn(rng, 10, string.ascii_uppercase)}/B{_drawn(rng, 10, string.ascii_uppercase)}/{_drawn(rng, 24)}"
    return f"https://hooks.slack.com/services/{place}"


def _address(scheme: str, user: str = "svc") -> Callable[[random.Random], str]:
    return lambda rng: f"{scheme}://{user}:{_drawn(rng, 18)}@db-{rng.randrange(9)}.internal.net:5432/prod"


KINDS: dict[str, tuple[Callable[[random.Random], str], ...]] = {
    "Hugging Face": (_key("hf_", 34, string.ascii_letters),),
    "Anthropic": (_key("sk-ant-api03-", 93, _WEB, "AA"), _key("sk-ant-oat01-", 93, _WEB, "AA")),
    "OpenAI": (_openai("sk-", 20, LETTERS), _openai("sk-proj-", 74), _openai("sk-svcacct-", 58)),
    "AWS access key id": (
        _key("AKIA", 16, string.ascii_uppercase + "234567"),
        _key("ASIA", 16, string.ascii_uppercase + "234567"),
    ),
    "AWS secret key": (
        _key("aws_secret_access_key = ", 40, LETTERS + "/+"),
        _key('"SecretAccessKey": "', 40, LETTERS + "/+", '"'),
    ),
    "Google API key": (_key("AIza", 35, _WEB),),
    "GitHub": (
        _key("ghp_", 36),
        _key("gho_", 36),
        _key("ghs_", 36),
        lambda rng: f"github_pat_{_drawn(rng, 22)}_{_drawn(rng, 59)}",
    ),
    "GitLab": (_key("glpat-", 20, _WEB), _key("gldt-", 20, _WEB), _key("glrt-", 20, _WEB)),
    "xAI": (_key("xai-", 80),),
    "Slack": (
        _slack,
        _slack_hook,
        lambda rng: f"xapp-1-A{_drawn(rng, 10)}-{rng.randrange(10**12, 10**13)}-{_drawn(rng, 64, _HEX)}",
    ),
    "Stripe": (_key("sk_live_", 24), _key("rk_live_", 99), _key("whsec_", 32)),
    "NVIDIA, Groq": (_key("nvapi-", 64, _WEB), _key("gsk_", 52)),
    "private key": (
        _private_key("RSA ", "MIIEpAIBAAKCAQEA"),
        _private_key("OPENSSH ", "b3BlbnNzaC1rZXktdjEAAAAA"),
        _private_key("EC ", "MHcCAQEEI"),
        _private_key("", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"),
    ),
    "JWT, npm, PyPI": (_jwt, _key("npm_", 36), _key("pypi-AgEIcHlwaS5vcmcC", 140, _WEB)),
    "password in an address": (_address("postgresql"), _address("https", "ci-bot"), _address("mongodb+srv", "app")),
}
"""Makers of secrets, by the name of their kind."""


def _call(arguments: str, result: str = "done") -> Row:
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Look around."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result, "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is done."},
    ]
    return {"conversation": json.dumps({"messages": messages, "tools": []})}


def _result(text: str) -> Row:
    return _call('{"command": "cat .env"}', text)


def _tool(description: str) -> Row:
    function = {"name": "bash", "description": description, "parameters": {"type": "object", "properties": {}}}
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "Gone."}]
    tools = [{"type": "function", "function": function}]
    return {"conversation": json.dumps({"messages": messages, "tools": tools})}


def _lines(secret: str) -> list[str]:
    return ["# settings", "[default]", *secret.split("\n"), "timeout = 30"]


def _numbered(secret: str, form: str) -> str:
    return "\n".join(form.format(number, line) for number, line in enumerate(_lines(secret), start=7))


def _escaped(secret: str) -> str:
    return secret.replace("\n", "\\n")


SURROUNDINGS: dict[str, Callable[[str], Row]] = {
    "plain sentence": lambda key: {"context": f"The service runs with {key} since Monday."},
    "after `=`": lambda key: {"context": f"export TOKEN={key}\nmake deploy"},
    "in quotes": lambda key: {"response": f"client = Client('{key}')"},
    "after a letter": lambda key: {"context": f"set X{key}"},
    "after `_`": lambda key: {"context": f"MY_{key}"},
    "escaped newline": lambda key: _result(f'out: "first\\n{_escaped(key)}\\nlast"'),
    "escaped tab": lambda key: _result(f"name\\t{_escaped(key)}\\tend"),
    "arguments of a call": lambda key: _call(json.dumps({"command": f"cat > .env <<E\n{key}\nE"})),
    "JSON in JSON in JSON": lambda key: _call(
        json.dumps({"body": json.dumps({"file": json.dumps({"text": f"first\n{key}\tlast"})})})
    ),
    "tool definition": lambda key: _tool(f"Runs a command.\nUses\t{key}"),
    "Read, `1→`": lambda key: _result(_numbered(key, "{:>6}→{}")),
    "`cat -n`": lambda key: _result(_numbered(key, "{:>6}\t{}")),
    "`grep -n`": lambda key: _result(_numbered(key, "{}:{}")),
    "indented": lambda key: {"context": "block:\n" + "".join(f"        {line}\n" for line in _lines(key))},
    "CRLF": lambda key: {"context": "\r\n".join(_lines(key))},
    "diff": lambda key: {"context": "@@ -1,2 +1,9 @@\n" + "".join(f"+{line}\n" for line in _lines(key))},
    "quoted mail": lambda key: {"context": "He wrote:\n" + "".join(f"> > {line}\n" for line in _lines(key))},
    "`sample_id`": lambda key: {"sample_id": f"run-{key}"},
    "`source`": lambda key: {"source": f"traces/{key}.jsonl"},
}
"""Functions that put a secret into the texts of a sample, by the name of the surrounding."""


def row_with(secret: str, surrounding: str) -> Row:
    """Return a sample's texts with the secret in this surrounding."""
    plain = {"sample_id": "s", "source": "far", "context": "A document.", "instruction": "Read it.", "response": "Yes."}
    return {**plain, **SURROUNDINGS[surrounding](secret)}


def harmless_row(number: int) -> Row:
    """Return a made trace without a secret: digests, ids, pictures, styles, code, placeholders."""
    rng = random.Random(number)
    uuid = "-".join(_drawn(rng, size, _HEX) for size in (8, 4, 4, 4, 12))
    shas = "\n".join(f"{_drawn(rng, 40, _HEX)} Correct the border of page {line}" for line in range(20))
    picture = base64.b64encode(rng.randbytes(20_000)).decode()
    web_picture = base64.urlsafe_b64encode(rng.randbytes(20_000)).decode()
    minified = "".join(
        f"function {_drawn(rng, 2)}(t,e){{return t[{_drawn(rng, 1)}]||e.{_drawn(rng, 6)}}}" for _ in range(200)
    )
    styles = "".join(
        f".sk-container-id-{at} div.sk-parallel-item::after,.sk-toggleable__label-{at}{{color:red}}" for at in range(40)
    )
    names = f"""task-{_drawn(rng, 32, _HEX)} disk-{uuid} ask-me-anything-{number}-about-risk-adjusted-returns-2026
highs_model_status_to_string gsk_gl_renderer_new_for_display hf_hub_download_with_retries npm_config_user_agent_string
SLOVAKIANAMBASSADORSHIPS xai-explainability-methods sha256:{_drawn(rng, 64, _HEX)} integrity sha512-{picture[:86]}==
docker://ubuntu:20.04-slim@sha256:{_drawn(rng, 64, _HEX)} git@github.com:owner/project.git flask-sqlalchemy-{uuid}
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{_drawn(rng, 43)} me@host"""
    placeholders = """HF_TOKEN=hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
OPENAI_API_KEY=sk-your-api-key-goes-here-123 ANTHROPIC_API_KEY=sk-ant-api03-XXXXXXXXXXXXXXXXXXXXXXXXXXXXXXXX
aws_access_key_id = AKIAIOSFODNN7EXAMPLE
aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
postgresql://user:password@localhost/db redis://:${REDIS_PASSWORD}@cache https://user:changeme@example.com/x
if "-----BEGIN RSA PRIVATE KEY-----" in text: load_pem_private_key(text)
-----BEGIN PRIVATE KEY-----
...
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIDXTCCAkWgAwIBAgIJAJC1HiIAZAiIMA0GCSqGSIb3DQEBCwUAMEUxCzAJBgNV
-----END CERTIFICATE-----"""
    texts = (shas, picture, web_picture, minified, styles, names, placeholders)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"Session {uuid}."},
        {"role": "user", "content": names},
    ]
    for place, text in enumerate(texts):
        arguments = json.dumps({"command": f"cat out-{place}.txt", "edit": json.dumps({"text": text[:2000]})})
        call = {
            "id": f"toolu_{_drawn(rng, 24)}",
            "type": "function",
            "function": {"name": "bash", "arguments": arguments},
        }
        printed = "\n".join(f"{line:>6}→{part}" for line, part in enumerate(text.split("\n"), start=1))
        messages += [
            {"role": "assistant", "content": f"chatcmpl-{_drawn(rng, 29)}", "tool_calls": [call]},
            {"role": "tool", "content": printed, "tool_call_id": call["id"]},
        ]
    messages.append({"role": "assistant", "content": "Nothing of this is secret."})
    plain = {
        "sample_id": uuid,
        "source": f"traces/{uuid}.jsonl",
        "context": "A document.",
        "instruction": "?",
        "response": ".",
    }
    return {**plain, "conversation": json.dumps({"messages": messages, "tools": []})}


_DRAWS = 2
_BEGIN, _END = "<!-- secret_table.py writes this table -->\n", "<!-- end -->\n"


def is_found(kind: str, surrounding: str) -> bool:
    """Return whether each secret of a kind is found in a surrounding."""
    secrets = [make(random.Random(f"{kind}{number}")) for make in KINDS[kind] for number in range(_DRAWS)]
    return all([*secret_scan.secrets_of_rows([row_with(secret, surrounding)])] for secret in secrets)


def page() -> str:
    """Return the page with a new table."""
    lines = [["surrounding", *KINDS], ["---"] * (1 + len(KINDS))]
    lines += [[name, *("found" if is_found(kind, name) else "missed" for kind in KINDS)] for name in SURROUNDINGS]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{_BEGIN}\n{table}\n\n{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    secret_scan.SCANNER = "none"  # the table is for the product's own patterns
    PAGE.write_text(page(), encoding="utf-8")
