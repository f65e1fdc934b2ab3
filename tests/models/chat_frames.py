"""Chat templates in the forms of forty families of models, each from the texts around its turns."""

from dataclasses import dataclass

# Before the conversation, a user's turn, an answer, and what asks for one if not its beginning; {} is the text.
_FRAMES: dict[str, tuple[str, ...]] = {
    "alpaca": ("", "### Instruction:\n{}\n\n", "### Response:\n{}</s>\n\n"),
    "apertus": ("<s>", "<|user_start|>{}<|user_end|>", "<|assistant_start|>{}<|assistant_end|>"),
    "baichuan": ("", "<reserved_106>{}", "<reserved_107>{}</s>"),
    "bloomz": ("", "{}</s>", "{}</s>"),
    "chatml": ("", "<|im_start|>user\n{}<|im_end|>\n", "<|im_start|>assistant\n{}<|im_end|>\n"),
    "command a": (
        "<BOS_TOKEN>",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>{}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    ),
    "command r": (
        "<BOS_TOKEN>",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{}<|END_OF_TURN_TOKEN|>",
    ),
    "deepseek v2": ("", "User: {}\n\n", "Assistant: {}<｜end▁of▁sentence｜>"),
    "deepseek v3": ("<｜begin▁of▁sentence｜>", "<｜User｜>{}", "<｜Assistant｜>{}<｜end▁of▁sentence｜>"),
    "ernie": ("<|begin_of_sentence|>", "User: {}\n", "Assistant: {}<|end_of_sentence|>"),
    "exaone": ("", "[|user|]{}\n", "[|assistant|]{}[|endofturn|]\n"),
    "falcon": ("", "User: {}\n", "Falcon: {}<|endoftext|>\n"),
    "gemma": ("<bos>", "<start_of_turn>user\n{}<end_of_turn>\n", "<start_of_turn>model\n{}<end_of_turn>\n"),
    "gemma 4": ("<bos>", "<|turn>user\n{}<turn|>\n", "<|turn>model\n{}<turn|>\n"),
    "glm": ("[gMASK]<sop>", "<|user|>\n{}", "<|assistant|>\n{}<|endoftext|>"),
    "gpt-oss": (
        "",
        "<|start|>user<|message|>{}<|end|>",
        "<|start|>assistant<|channel|>final<|message|>{}<|return|>",
        "<|start|>assistant",
    ),
    "granite": (
        "",
        "<|start_of_role|>user<|end_of_role|>{}<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|>{}<|end_of_text|>\n",
    ),
    "hunyuan": ("<｜hy_begin｜>", "<｜hy_User｜>{}", "<｜hy_Assistant｜>{}<｜hy_end｜>"),
    "internlm": ("<s>", "<|im_start|>user\n{}<|im_end|>\n", "<|im_start|>assistant\n{}<|im_end|>\n"),
    "jamba": ("<|startoftext|>", "<|bom|><|user|> {}<|eom|>", "<|bom|><|assistant|> {}<|eom|>", "<|bom|><|assistant|>"),
    "kimi": ("", "<|im_user|>user<|im_middle|>{}<|im_end|>", "<|im_assistant|>assistant<|im_middle|>{}<|im_end|>"),
    "lfm": ("<|startoftext|>", "<|im_start|>user\n{}<|im_end|>\n", "<|im_start|>assistant\n{}<|im_end|>\n"),
    "llama 2": ("", "<s>[INST] {} [/INST]", " {} </s>", ""),
    "llama 3": (
        "<|begin_of_text|>",
        "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n{}<|eot_id|>",
    ),
    "llama 4": (
        "<|begin_of_text|>",
        "<|header_start|>user<|header_end|>\n\n{}<|eot|>",
        "<|header_start|>assistant<|header_end|>\n\n{}<|eot|>",
    ),
    "metharme": ("<s>", "<|user|>{}", "<|model|>{}</s>"),
    "minimax": ("", "]~b]user\n{}[e~[\n", "]~b]ai\n{}[e~[\n"),
    "mistral 1": ("<s>", "[INST] {} [/INST]", " {}</s> ", ""),
    "mistral 3": ("<s>", "[INST] {}[/INST]", " {}</s>", ""),
    "mistral tekken": ("<s>", "[INST]{}[/INST]", "{}</s>"),
    "nemotron": ("", "<extra_id_1>User\n{}\n", "<extra_id_1>Assistant\n{}<extra_id_2>\n"),
    "olmo": ("<|endoftext|>", "<|user|>\n{}\n", "<|assistant|>\n{}<|endoftext|>\n"),
    "openchat": (
        "<s>",
        "GPT4 Correct User: {}<|end_of_turn|>",
        "GPT4 Correct Assistant: {}<|end_of_turn|>",
        "GPT4 Correct Assistant:",
    ),
    "phi 3": ("<s>", "<|user|>\n{}<|end|>\n", "<|assistant|>\n{}<|end|>\n"),
    "phi 4": ("", "<|im_start|>user<|im_sep|>{}<|im_end|>", "<|im_start|>assistant<|im_sep|>{}<|im_end|>"),
    "reka": ("", " human: {} <sep>", " assistant: {} <sep>", " assistant:"),
    "seed": ("", "<seed:bos>user\n{}<seed:eos>", "<seed:bos>assistant\n{}<seed:eos>"),
    "solar": ("", "### User:\n{}\n\n", "### Assistant:\n{}</s>\n"),
    "vicuna": ("", "USER: {} ", "ASSISTANT: {}</s>", "ASSISTANT:"),
    "zephyr": ("", "<|user|>\n{}</s>\n", "<|assistant|>\n{}</s>\n"),
}
# What templates do with a text and a system turn; each family has one of these.
_WAYS = (
    ("{{ m.content }}", "place"),
    ("{{ m.content | trim }}", "first turn"),
    ("{{ m['content'].strip() }}", "refused"),
    ("{% if m.role == 'assistant' and '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
     "{% else %}{{ m.content + '' }}{% endif %}", "dropped"),
)  # fmt: skip


def _literal(text: str) -> str:
    return "{{ " + repr(text) + " }}" if text else ""


def _framed(frame: str, content: str) -> str:
    before, _, after = frame.partition("{}")
    return _literal(before) + content + _literal(after)


@dataclass(frozen=True)
class ChatFrame:
    """A chat template in the form of a family of models."""

    name: str
    template: str


def _frame(name: str, number: int) -> ChatFrame:
    begin, user, answer, *asks = _FRAMES[name]
    asking = asks[0] if asks else answer.partition("{}")[0]
    content, system = _WAYS[number % len(_WAYS)]
    turn = "{% if m.role == 'assistant' %}" + _framed(answer, content) + "{% else %}"
    first = {
        "place": _framed(user.replace("user", "system"), content),
        "first turn": "",
        "refused": "{{ raise_exception('no system turn') }}",
        "dropped": "",
    }[system]
    turn += "{% if m.role == 'system' %}" + first + "{% else %}"
    told = "{% if messages[0].role == 'system' and loop.index0 == 1 %}{{ messages[0].content ~ '\n\n' }}{% endif %}"
    turn += _framed(user, (told if system == "first turn" else "") + content) + "{% endif %}{% endif %}"
    called = "{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}"
    tools = "{% if tools %}{{ tools | tojson }}{% endif %}" if number % 2 else ""
    calls = called if number % 2 else ""
    every = "{% for m in messages %}" + turn + calls + "{% endfor %}"
    return ChatFrame(
        name, _literal(begin) + tools + every + "{% if add_generation_prompt %}" + _literal(asking) + "{% endif %}"
    )


FRAMES = [_frame(name, number) for number, name in enumerate(_FRAMES)]
