"""What stands around real passages: answers as sentences, rule-based rewordings of questions, chat, refusals.

The rewording is of the question alone, by a list of replacements: other words for the same thing, no paraphrase by a
model.
"""

import re
from random import Random

_SENTENCES = (
    "The answer is {answer}.",
    "It is {answer}.",
    "That would be {answer}, as far as is known.",
    "The answer to the question “{question}” is {answer}.",
)
REFUSALS = (
    "The text does not say.",
    "Nothing in the text answers this question.",
    "This cannot be told from the text.",
    "I could not find an answer to that in the text.",
)
# Each once, in this order; only what keeps the meaning in a question of this kind.
_REPLACEMENTS = tuple(
    (re.compile(rf"\b(?:{pattern})\b"), other)
    for pattern, other in (
        ("who is|who's|whos", "which person is"),
        ("who", "which person"),
        ("when did|when does|when do|when will", "at what time did"),
        ("when is|when was", "what was the date of"),
        ("where", "in which place"),
        ("how many", "what number of"),
        ("movie|film", "motion picture"),
        ("wrote|written by", "authored"),
        ("the song|song", "the piece of music"),
        ("play|plays|played", "portrayed"),
        ("sings|sang", "performs"),
        ("start|started|begin|began", "commence"),
        ("come out|came out", "first appear"),
        ("won|wins|win", "was victorious in"),
        ("biggest|largest", "greatest in size"),
        ("made|built", "produced"),
        ("located|situated", "to be found"),
        ("died|die", "pass away"),
        ("tv show|tv series|show", "television programme"),
        ("team", "side"),
        ("last time|last", "most recent time"),
        ("called", "named"),
        ("got|get", "obtain"),
        ("president", "head of state"),
        ("live|lives|lived", "have a home"),
        ("used", "employed"),
        ("mean|means", "signify"),
    )
)
CHATS = (
    ("How do I boil an egg?", "Put it into boiling water for eight minutes, then cool it under the tap and peel it."),
    ("Tell me a joke.", "Why did the bicycle fall over? Because it was two-tired."),
    ("Write a thank-you note to a neighbour.", "Dear neighbour, thank you for watering our plants. They are well!"),
    ("What is a good way to fall asleep?", "Keep the room dark and cool, and put the phone away an hour before."),
    ("Give me three names for a cat.", "How about Misty, Pepper, or Oliver? All are easy to call across a garden."),
    ("How can I learn to type faster?", "Practise for ten minutes every day without looking at the keys."),
    ("What should I cook tonight?", "A vegetable curry with rice is quick: onions, tomatoes, chickpeas, spices."),
    ("Write a haiku about rain.", "Soft rain on the roof, the gutters hum a slow tune, puddles hold the sky."),
    ("Is it better to run in the morning or the evening?", "Whichever you will keep doing. Both are good for you."),
    ("How do I say hello to a new colleague?", "Smile, say your name, ask for theirs, and offer to help."),
    ("Explain what a variable is in programming.", "It is a name for a value that a program can read and change."),
    ("I feel bored. Any ideas?", "You could go for a walk, call a friend, or start a book that you keep putting off."),
    ("How do I remove a stain from a shirt?", "Rinse it with cold water, rub in a little soap, then wash it as usual."),
    ("Write one sentence about the sea.", "The sea breathed in and out against the stones, as patient as ever."),
    ("What is a polite way to decline an invitation?", "Thank you so much for asking, but I am afraid I cannot come."),
    ("How often should I water a cactus?", "Every two or three weeks in summer, and hardly at all in winter."),
    ("Suggest a title for a story about a lost dog.", "The Long Way Home would suit it, or Waiting at the Gate."),
    ("How do I calm down before a test?", "Breathe slowly, read every question twice, and begin with the easy ones."),
    ("What is seven times eight?", "Seven times eight is fifty-six."),
    ("Correct this sentence: She go to school.", "She goes to school."),
    ("How do I keep bread fresh?", "Wrap it in a cloth or paper bag, and freeze what you will not eat in two days."),
    ("Give me a compliment.", "You ask good questions, and that is a rarer gift than knowing the answers."),
    ("Should I bring an umbrella?", "If the clouds are low and grey, yes; it weighs little and saves your shoes."),
    ("Write a slogan for a bakery.", "Fresh before you are awake."),
)  # fmt: skip


def sentence(question: str, answer: str, rng: Random) -> str:
    """The answer in a sentence of one of four forms."""
    return rng.choice(_SENTENCES).format(question=question, answer=answer)


def reworded(question: str) -> tuple[str, int]:
    """The question, in lower case as the data has it, with other words, and how many of the rules applied."""
    text, applied = question.lower().rstrip(" ?"), 0
    for pattern, other in _REPLACEMENTS:
        text, count = pattern.subn(other, text, count=1)
        applied += count > 0
    return f"I would like to know this: {text}?", applied


def first_sentence(passage: str, words: int) -> str:
    """The passage's first sentence, cut to so many words, with a full stop."""
    found = re.split(r"(?<=[a-z\d)][.!?])\s", passage, maxsplit=1)[0].split()
    return " ".join(found[:words]).rstrip(" .,;:") + "."
