"""The demo's tokenizer: one token per word of the synthetic language."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from gateau_dagster.demo.language import BOS, EOS, PAD, UNK, VOCABULARY

# For `template: chat`: the words of the scoring prompt, so that the pair knows the form. A blank line in a user's turn
# separates document and instruction.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} ### Response: {{ message['content'] }}{{ ' ' + eos_token }}"
    "{% elif '\\n\\n' in message['content'] %}"
    " ### Input: {{ message['content'] | replace('\\n\\n', '\\n\\n### Instruction: ') }}"
    "{% else %} ### Instruction: {{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} ### Response:{% endif %}"
)


def build_tokenizer(model_max_length: int) -> PreTrainedTokenizerFast:
    """Word-level tokenizer, split at white space; ids are places in `VOCABULARY`, unknown words are `<unk>`.

    Special tokens are added as `<s> text` where they are asked for, which is the default of `tokenizer(text)`.
    """
    vocabulary = {word: index for index, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, vocabulary[BOS])]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
