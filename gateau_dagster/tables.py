"""Define the promised tables: columns, types and contents. One row per sample unless stated otherwise."""

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a promised table."""

    name: str
    dtype: pl.DataType
    description: str
    nullable: bool = False


def column(name: str, dtype: pl.DataType | type[pl.DataType], description: str, nullable: bool = False) -> Column:
    """Return a column; `dtype` may be a class."""
    return Column(
        name=name,
        dtype=dtype if isinstance(dtype, pl.DataType) else dtype(),
        description=description,
        nullable=nullable,
    )


def schema(columns: tuple[Column, ...]) -> pl.Schema:
    """Return the Polars schema of a table."""
    return pl.Schema({column.name: column.dtype for column in columns})


def with_conversations(frame: pl.DataFrame, columns: tuple[Column, ...]) -> pl.DataFrame:
    """Return the `columns` of a table of samples, and CONVERSATION if one of the samples has a conversation."""
    name = CONVERSATION.name
    held = [name] if name in frame.columns and frame[name].count() else []
    return frame.select(*schema(columns).names(), *held)


def without_unread(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a table without UNREAD, unless a server read some prompt only in part."""
    return frame if frame[UNREAD.name].count() else frame.drop(UNREAD.name)


SAMPLE_ID = column("sample_id", pl.String, "Id of the sample: from the data, else from its content.")
DIGEST = column(
    "digest", pl.String, "SHA-256 of context, instruction and response, and of the conversation if there is one."
)
SCORE = column("score", pl.Float64, "Final score (Eq. 6); higher is chosen first.")
RANK = column("rank", pl.Int32, "1 is the best; ties break by sample_id.")

RAW_LONG_SFT = (
    SAMPLE_ID,
    column("source", pl.String, "Where the sample comes from: its `source` field, else the file's name."),
    column("context", pl.String, "The long document."),
    column("instruction", pl.String, "What is asked of it."),
    column("response", pl.String, "The target response."),
    DIGEST,
)
CONVERSATION = column(
    "conversation",
    pl.String,
    "Turns up to the response, as JSON in OpenAI's form; null for one exchange. A table without any lacks the column.",
    nullable=True,
)
DOCUMENT_SPLIT = (
    SAMPLE_ID,
    column("document", pl.String, "SHA-256 of its context, or the smallest of those of its near-duplicates."),
    column("reserved", pl.Boolean, "Whether it is kept for the held-out evaluation: no selection takes it."),
)
REJECTED = (SAMPLE_ID, column("reason", pl.String, "Why the sample is not in the table."))
MESSAGES = pl.List(pl.Struct({"role": pl.String(), "content": pl.String()}))
SHORT_CHAT_MIX = (
    SAMPLE_ID,
    column("source", pl.String, "The file's name."),
    column("messages", MESSAGES, "Turns of the conversation, roles user and assistant (and a leading system)."),
    column("digest", pl.String, "SHA-256 of the messages, and of which answers have no loss if some have none."),
    column("trained", pl.List(pl.Boolean()), "Of each turn whether it has loss: an answer that no flag leaves out."),
)
PERPLEXITY = (
    SAMPLE_ID,
    DIGEST,
    column("perplexity", pl.Float64, "PPL of the response given context and instruction (Eq. 1)."),
    column("mean_nll", pl.Float64, "Its natural logarithm: mean negative log-likelihood per response token."),
    column("context_tokens", pl.Int32, "Context tokens that the model saw."),
    column("response_tokens", pl.Int32, "Response tokens, all of them scored."),
    column("truncated_tokens", pl.Int32, "Tokens dropped from the left of the context."),
    column("token_probability", pl.List(pl.Float32()), "p of each response token, in order: exp(-NLL)."),
    column("mean_probability", pl.Float64, "Mean of token_probability."),
)
CAM = (
    SAMPLE_ID,
    DIGEST,
    column("segments", pl.Int32, "N, segments of the (truncated) context."),
    column(
        "segment_perplexity",
        pl.List(pl.Float64()),
        "Raw PPL of the response given each segment alone (Eq. 3); null for one that screening leaves out.",
    ),
    column("segment_attention", pl.List(pl.Float64()), "Raw mean attention to each segment's tokens (Eq. 4)."),
    column(
        "cas",
        pl.Float64,
        "CAS, the contextual awareness score (Eq. 5); null below two segments, and if segments are screened.",
        nullable=True,
    ),
    column("near_segments", pl.Int32, "How many of the last segments are near: theta_A saw of them."),
    column("no_context_probability", pl.List(pl.Float32()), "p of each response token given the instruction alone."),
    column("near_probability", pl.List(pl.Float32()), "Largest p of each response token given a near segment or none."),
    column("far_probability", pl.List(pl.Float32()), "Largest p of each given a far segment alone; 0 without any."),
    column(
        "far_segment",
        pl.List(pl.Int32()),
        "The far segment, from 0, that gives each the largest p; null where that is not above near_probability.",
    ),
    column(
        "segment_gain",
        pl.List(pl.Float64()),
        "What each segment gave, summed over tokens: a far one beyond near_probability, a near one beyond no context; "
        "null for one that screening leaves out.",
    ),
    column(
        "far_gain",
        pl.Float64,
        "Far-segment gain: mean of the largest gains, far less near probability; null below two segments.",
        nullable=True,
    ),
    column("context_tokens", pl.Int32, "Context tokens that theta_B saw; null in older rows.", nullable=True),
    column("tail_tokens", pl.Int32, "All other tokens of its prompt; null likewise.", nullable=True),
    column(
        "segment_probability",
        pl.Binary,
        "p of each response token given each segment alone, as scoring.segments.unpacked reads it, for other windows; "
        "null likewise, and if segments are screened.",
        nullable=True,
    ),
)
COMBINED_SCORES = (
    SAMPLE_ID,
    column("perplexity_short", pl.Float64, "PPL under theta_A."),
    column("perplexity_long", pl.Float64, "PPL under theta_B."),
    column("hmp", pl.Float64, "First term of the chosen preset: the long-model gain, or HMP (Eq. 2)."),
    column("cas", pl.Float64, "Second term of the chosen preset: the far-segment gain, or CAS (Eq. 5).", nullable=True),
    SCORE,
    RANK,
)
METHOD_SCORES = (
    SAMPLE_ID,
    column(
        "score", pl.Float64, "The method's score; higher is chosen first, null: it cannot score this.", nullable=True
    ),
)
SELECTED_SUBSET = (*RAW_LONG_SFT, SCORE, RANK)
SPANS = pl.List(pl.Struct({"start": pl.Int64(), "end": pl.Int64(), "gain": pl.Float64(), "tokens": pl.Int32()}))
DEPENDS = (
    column(
        "evidence",
        SPANS,
        "Segments that the response depends on: first and one-past-last character of the context, segment_gain of "
        "`cam`, context tokens; null if the tokenizer reports no offsets.",
        nullable=True,
    ),
    column(
        "dependency",
        pl.String,
        "What text the response depends on: closed_book, near, one_far, several_far or unpredictable; null for a "
        "sample without a row in `evidence`.",
        nullable=True,
    ),
)
FORECAST_SUMS = (
    column("response_tokens", pl.Int32, "Tokens of the response, as in `perplexity/long`."),
    column("far_tokens", pl.UInt32, "Response tokens that depend on far text: far_probability is 0.2 above near."),
    column(
        "far_sum",
        pl.Float64,
        "Sum over these tokens of far_probability less token_probability, which is given the whole context.",
    ),
    column(
        "near_tokens",
        pl.UInt32,
        "Response tokens that depend on near text: near_probability is 0.2 above far_probability and no context.",
    ),
    column("near_sum", pl.Float64, "Sum over these tokens of near_probability less token_probability."),
)
EVIDENCE = (SAMPLE_ID, DIGEST, *DEPENDS, *FORECAST_SUMS)
TRAINING_MIX = (
    column("position", pl.Int32, "Place in training order, over all epochs' common order."),
    SAMPLE_ID,
    column("origin", pl.String, "long or short."),
    column("source", pl.String, "Where the sample comes from, as in the long data; the file's name of a short one."),
    column("input_ids", pl.List(pl.Int32()), "Token ids of the whole sequence."),
    column("labels", pl.List(pl.Int32()), "The same ids where the loss counts, -100 elsewhere."),
    column(
        "block_tokens",
        pl.List(pl.Int32()),
        "Tokens of each block, instruction and response in turn; bos and context belong to the first instruction.",
    ),
    column("truncated_tokens", pl.Int32, "Tokens cut off: the left end of the context, or everything to the right."),
)
TRIMMED_TOKENS = column(
    "trimmed_tokens",
    pl.Int32,
    "With training.trim, tokens that the context lost because the response needs no far text.",
)
WEIGHTED_MIX = (
    *TRAINING_MIX,
    column(
        "weights",
        pl.List(pl.Float32()),
        "With loss: longce or far_gain, what the loss of each token is multiplied by, before any normalisation.",
    ),
)
VARIANT_CHECKPOINT = (
    column("model", pl.String, "Its path or hub name; a folder of the store begins with store:."),
    column("samples", pl.Int64, "Long samples that it was trained on; null for a model of others.", nullable=True),
    column("tokens", pl.Int64, "Tokens that it was trained on, over all steps; null likewise.", nullable=True),
    column("seconds", pl.Float64, "What its training took, all processes side by side.", nullable=True),
)
_QUESTION_ID = column("question_id", pl.String, "Id of the question, unique in its benchmark.")
ANSWERS = (
    _QUESTION_ID,
    column("turn", pl.Int32, "0 for the first turn of the question."),
    column("digest", pl.String, "Of what was asked: the question, and how its answer is generated."),
    column("prompt", pl.String, "The text that the model was shown, its template applied."),
    column("answer", pl.String, "What it answered, without special tokens."),
    column("prompt_tokens", pl.Int32, "Tokens that it was shown."),
    column("cut_tokens", pl.Int32, "Tokens that were cut out of the middle of the prompt."),
    column("answer_tokens", pl.Int32, "Tokens that it generated."),
    column("finish_reason", pl.String, "stop: the model ended its answer. length: the limit did."),
    column("seconds", pl.Float64, "Wall-clock time of the answer, its share of a batch's."),
)
UNREAD = column(
    "unread_tokens",
    pl.Int32,
    "Tokens of the prompt that the server did not read; null if it read all. A table without any lacks the column.",
    nullable=True,
)
JUDGMENTS = (
    _QUESTION_ID,
    column("turn", pl.Int32, "The turn that is judged."),
    column("repeat", pl.Int32, "0 for the first judgment of the answer."),
    column("digest", pl.String, "Of the request: judge, messages, settings and repeat."),
    column("score", pl.Float64, "On the benchmark's own scale; null where the reply holds none.", nullable=True),
    column("prompt", pl.String, "What the judge was asked: messages as JSON."),
    column("reply", pl.String, "What it said last; kept where no score is in it, too."),
    column("requests", pl.Int32, "Requests that it took: a reply without a score may be asked for again."),
    column("prompt_tokens", pl.Int32, "Of all of them, as the server counted them, or about."),
    column("reply_tokens", pl.Int32, "Of all of them, as the server counted them, or about."),
    column("seconds", pl.Float64, "Wall-clock time of the last one."),
)
SCORES = (
    _QUESTION_ID,
    column("group", pl.String, "Data set, category, length or cell that the question belongs to."),
    column("value", pl.Float64, "What the answer is worth in the benchmark's unit; several turns: their mean."),
)
EXPERIMENT = (
    column("variant", pl.String, "What was trained, or the model that was not."),
    column("benchmark", pl.String, "The benchmark."),
    column("value", pl.Float64, "The benchmark's total, in its unit."),
    column("low", pl.Float64, "Lower end of its 95 % interval.", nullable=True),
    column("high", pl.Float64, "Upper end.", nullable=True),
    column("difference", pl.Float64, "To the reference; null for the reference itself.", nullable=True),
    column("difference_low", pl.Float64, "Lower end of its 95 % interval.", nullable=True),
    column("difference_high", pl.Float64, "Upper end.", nullable=True),
    column("best", pl.Boolean, "Whether it is not told apart from the best."),
    column("probability_best", pl.Float64, "Share of the bootstrap's draws in which it is the best."),
    column("questions", pl.Int32, "Questions that all variants answered."),
    column("seeds", pl.Int32, "Training runs that differ only in their seed; value and costs are their mean."),
    column("samples", pl.Int64, "Long samples that it was trained on.", nullable=True),
    column("tokens", pl.Int64, "Tokens that it was trained on.", nullable=True),
    column("scoring_hours", pl.Float64, "Hours of the device that its selection took.", nullable=True),
    column("training_hours", pl.Float64, "Hours of the device that its training took.", nullable=True),
    column("judge_cost", pl.Float64, "What its judgments cost, in the currency of the judge's prices.", nullable=True),
    column(
        "hours_per_point",
        pl.Float64,
        "Hours of scoring and training for each unit that it is better than the reference; null where it is not.",
        nullable=True,
    ),
    column(
        "judge_cost_per_point", pl.Float64, "What its judgments cost for each such unit; null likewise.", nullable=True
    ),
)
