"""The reader's tokenizer: one token per printable ASCII character, and a chat template with the question first.

The image stands after the question, so that visual tokens attend to it. Without a question the prompt asks to read.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable
from typing import Any

PAD, END, IMAGE, START, STOP, ANSWER, VIDEO, READ = range(8)
FIRST = 16  # the id of a blank; the other characters follow in the order of ASCII
VOCABULARY = 128
_NAMES = {
    PAD: "<|pad|>",
    END: "<|end|>",
    IMAGE: "<|image_pad|>",
    START: "<|vision_start|>",
    STOP: "<|vision_end|>",
    ANSWER: "<|answer|>",
    VIDEO: "<|video_pad|>",
    READ: "<|read|>",
}
ILLEGIBLE = "?"  # the answer where the true one cannot be read
_SPELLED = "I cannot read it"  # how it is shown
# What has no accent to drop and no equal in ASCII (by NFKD).
_PLAIN = {
    **dict.fromkeys("‘’‛′", "'"),
    **dict.fromkeys("“”„″", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    "\n": " ",
    "\t": " ",
    "×": "x",
    "ß": "ss",
    "æ": "ae",
    "Æ": "AE",
    "œ": "oe",
    "Œ": "OE",
    "½": "1/2",
    "¼": "1/4",
    "¾": "3/4",
    "ø": "o",
    "Ø": "O",
    "ł": "l",
    "Ł": "L",
    "đ": "d",
    "Đ": "D",
    "ı": "i",
}
_CODES = {ord(sign): plain for sign, plain in _PLAIN.items()}
_DIGITS_AND_LETTERS = string.digits + string.ascii_letters
# Text, then images: "question <|vision_start|><|image_pad|><|vision_end|> <|answer|> answer <|end|>". It learned one
# question at a time, so of a conversation it gets all images and the last question.
CHAT_TEMPLATE = (
    """
{%- set seen = namespace(last=-1, pictures="") -%}
{%- for message in messages -%}
{%- if message.role == "user" -%}
{%- set seen.last = loop.index0 -%}
{%- if message.content is not string -%}
{%- for part in message.content if part.type in ("image", "video") -%}
{%- set seen.pictures = seen.pictures ~ "<|vision_start|><|" ~ part.type ~ "_pad|><|vision_end|>" -%}
{%- endfor -%}
{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- set parts = [{"type": "text", "text": message.content}] if message.content is string else message.content -%}
{%- set text = parts | selectattr("type", "equalto", "text") | map(attribute="text") | join(" ") | trim -%}
{%- if loop.index0 == seen.last -%}
{{- text if text | select("in", "KNOWN") | first is defined else "<|read|>" -}}{{- seen.pictures -}}
{%- elif message.role == "assistant" and loop.index0 > seen.last -%}
<|answer|>{{- text -}}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|answer|>{%- endif -%}
""".strip()
    .replace("\n", "")
    .replace("KNOWN", _DIGITS_AND_LETTERS)
)


def encode_text(text: str) -> list[int]:
    """The ids of a text: accents are dropped, signs become their equals in ASCII, and what has none is dropped."""
    plain = unicodedata.normalize("NFKD", text.translate(_CODES))
    return [FIRST + ord(sign) - 32 for sign in plain if 32 <= ord(sign) < 127]


def decode_ids(ids: Iterable[int]) -> str:
    """The characters of ids up to the end; special tokens are dropped."""
    signs = []
    for one in ids:
        if one == END:
            break
        if FIRST <= one < FIRST + 95:
            signs.append(chr(one - FIRST + 32))
    return "".join(signs)


def training_ids(question: str, answer: str, longest: int) -> tuple[list[int], int] | None:
    """Question, <|vision_start|>, (the image), <|vision_end|>, <|answer|>, answer, <|end|>.

    question: "" to read everything
    returns   the ids without the image and how many stand before it; None if there are more than `longest`
    """
    before = [*(encode_text(question) or [READ]), START]
    ids = [*before, STOP, ANSWER, *encode_text(answer), END]
    return (ids, len(before)) if len(ids) <= longest and answer.strip() else None


def make_tokenizer() -> Any:
    """A fast tokenizer of transformers with the same ids and the chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    signs = {chr(32 + index): FIRST + index for index in range(95)}
    taken = {**{name: number for number, name in _NAMES.items()}, **signs}
    unused = {f"<|unused{number}|>": number for number in range(VOCABULARY) if number not in taken.values()}
    tokenizer = Tokenizer(models.WordLevel({**taken, **unused}, unk_token=_NAMES[PAD]))
    replaced = [normalizers.Replace(sign, plain) for sign, plain in _PLAIN.items()]
    dropped = normalizers.Replace(Regex("[^ -~]"), "")
    tokenizer.normalizer = normalizers.Sequence([*replaced, normalizers.NFKD(), dropped])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    # Whatever follows the sign is dropped: a stream that began with the sentence must not become another text.
    spelled = decoders.Replace(Regex(rf"^{re.escape(ILLEGIBLE)}.*"), _SPELLED)
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), spelled])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_NAMES[PAD],
        eos_token=_NAMES[END],
        extra_special_tokens=[_NAMES[number] for number in (IMAGE, START, STOP, ANSWER, VIDEO, READ)],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
