"""Conversations as chat templates take them: the question in one, its images, and one made from a question.

Which question a rendered prompt asks is known from the messages that it was rendered from (`Questions`), never read out
of its text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from texturevlm.vlm.prompts import is_conversation

Message = dict[str, Any]
IMAGE: Message = {"type": "image"}
VIDEO: Message = {"type": "video"}
IMAGE_KEYS = ("image", "url", "path", "base64", "image_url")  # where a block of content may hold its image
VIDEO_KEYS = ("video", "url", "path")


def question_of(conversation: Sequence[Message]) -> str:
    """The text of the user's last turn."""
    for message in reversed(conversation):
        if message.get("role") == "user":
            return " ".join(_texts(message.get("content"))).strip()
    return ""


def are_messages(given: Any) -> bool:
    """Whether this is a conversation or a list of conversations; images may also be dicts, which have no role."""
    if is_conversation(given):
        return "role" in given[0]
    nested = isinstance(given, (list, tuple)) and bool(given)
    return nested and all(is_conversation(part) and "role" in part[0] for part in given)


def question_in(function: str, prompt: Any) -> str:
    """The question in a text or in messages, which are checked."""
    if isinstance(prompt, str):
        return prompt
    if not is_conversation(prompt):
        got = "an empty list" if isinstance(prompt, (list, tuple)) and not prompt else type(prompt).__name__
        raise TypeError(f"{function}: question must be text or messages, got {got}")
    _check(function, prompt)
    return question_of(prompt)


def without_marks(question: str, marks: Sequence[str]) -> str:
    """A question without the texts that stand for an image, which some data has inside the text."""
    for mark in sorted(marks, key=len, reverse=True):
        question = question.replace(mark, " ")
    return question.strip()


def images_of(conversation: Sequence[Message]) -> list[Any]:
    """The images inside the messages, in order; None for a block that only says that there is one."""
    found = []
    for message in conversation:
        for block in _blocks(message.get("content")):
            if block.get("type") in ("image", "image_url"):
                key = next((key for key in IMAGE_KEYS if block.get(key) is not None), None)
                held = None if key is None else block[key]
                held = held.get("url", held) if isinstance(held, dict) else held
                found.append(f"data:;base64,{held}" if key == "base64" else held)
    return found


def videos_of(conversation: Sequence[Message]) -> list[Any]:
    """The videos inside the messages, in order; None for a block that only says that there is one."""
    blocks = [block for message in conversation for block in _blocks(message.get("content"))]
    return [
        next((block[key] for key in VIDEO_KEYS if block.get(key) is not None), None)
        for block in blocks
        if block.get("type") == "video"
    ]


def conversation_about(
    images: int, question: str, marks: Sequence[str], block: Message = IMAGE, names: Sequence[str] = ()
) -> list[Message]:
    """One turn of the user: the images, each after its name if it has one, then the question.

    marks: texts that stand for an image in a prompt; in the question they are broken, because they mean nothing there
    block: of each image
    """
    return [
        {
            "role": "user",
            "content": [*_named([block] * images, names), {"type": "text", "text": _broken(question, marks)}],
        }
    ]


def conversation_with(
    prompt: Any, images: int, marks: Sequence[str], *, apart: bool, block: Message = IMAGE, names: Sequence[str] = ()
) -> list[Message]:
    """A prompt as every chat template takes it: blocks of text, and one block per image.

    prompt: a text or messages
    marks:  as in `conversation_about`
    apart:  whether the images were given apart from the messages
    names:  of the images, if they have names
    block:  of each image; of a video, or of an image per moment for a model without videos
    """
    if isinstance(prompt, str):
        return conversation_about(images, prompt, marks, block, names)
    pictures, films = images_of(prompt), videos_of(prompt)
    held = pictures + films
    if held and apart and any(image is not None for image in held):
        raise ValueError("ask: images must be given apart or inside the messages, got both")
    found = [{**message, "content": _plain_blocks(message["content"], marks)} for message in prompt]
    if films and not pictures:
        return _in_place_of_video(found, [block] * images)
    if held and (len(held) != images or films):
        raise ValueError(f"ask: messages must have one image block per image ({images}), got {len(held)}")
    if not held:  # the images belong to the first turn of the user
        turn = next(message for message in found if message["role"] == "user")
        turn["content"] = [*_named([block] * images, names), *turn["content"]]
    return found


def _named(blocks: list[Message], names: Sequence[str]) -> list[Message]:
    """Blocks, each after its name if there are names."""
    if not names:
        return blocks
    return [part for name, block in zip(names, blocks) for part in ({"type": "text", "text": name}, block)]


def _in_place_of_video(messages: list[Message], blocks: list[Message]) -> list[Message]:
    """The messages with these blocks where their video stands."""
    return [
        {
            **message,
            "content": [part for block in message["content"] for part in (blocks if block == VIDEO else [block])],
        }
        for message in messages
    ]


def _check(function: str, conversation: Sequence[Message]) -> None:
    """Each message must have a role and content; one must be the user's."""
    for message in conversation:
        content = message.get("content") if isinstance(message, dict) else None
        blocks = isinstance(content, (list, tuple)) and all(
            isinstance(block, dict) and "type" in block for block in content
        )
        if not (isinstance(content, str) or blocks) or "role" not in message:
            wanted = "a dict with a role and with content, which is text or a list of blocks with a type"
            raise ValueError(f"{function}: each message must be {wanted}, got {message!r:.80}")
        for block in _blocks(content):
            if block["type"] not in ("image", "image_url", "video") and not isinstance(block.get("text"), str):
                known = "text, image, image_url or video"
                raise ValueError(f"{function}: each block of content must be {known}, got {block!r:.80}")
    if not any(message["role"] == "user" for message in conversation):
        roles = ", ".join(sorted({str(message["role"]) for message in conversation}))
        raise ValueError(f"{function}: messages must have one with the role user, got the roles {roles}")


def _broken(text: str, marks: Sequence[str]) -> str:
    for mark in marks:
        text = text.replace(mark, f"{mark[:1]} {mark[1:]}")
    return text


def _blocks(content: Any) -> list[Message]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, (list, tuple)) else []


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, (list, tuple)) else []
    found = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in found if isinstance(text, str)]


def _plain_blocks(content: Any, marks: Sequence[str]) -> list[Message]:
    if isinstance(content, str):
        return [{"type": "text", "text": _broken(content, marks)}]
    return [
        IMAGE
        if block["type"] in ("image", "image_url")
        else VIDEO
        if block["type"] == "video"
        else {**block, "text": _broken(str(block["text"]), marks)}
        if "text" in block
        else block
        for block in content
    ]


REMEMBERED = 4096  # rendered prompts whose questions are known
_RENDERING: ContextVar[list[str] | None] = ContextVar("rendering", default=None)


class Questions:
    """The questions of prompts that one processor has rendered."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, tuple[str, Any]] = OrderedDict()  # rendered prompt → its question, its template

    @contextmanager
    def rendering(self, questions: list[str]) -> Iterator[None]:
        """Inside, prompts are rendered from messages with these questions, and may be processed at once."""
        token = _RENDERING.set(questions)
        try:
            yield
        finally:
            _RENDERING.reset(token)

    def remember(self, rendered: Any, questions: Sequence[str], template: Any = None) -> None:
        """Keep the questions of what a chat template gave, if that is text. template: None: the processor's own"""
        texts = [rendered] if isinstance(rendered, str) else rendered
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return
        for text, question in zip(texts, questions):
            self._asked[text] = question, template
            self._asked.move_to_end(text)
        while len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)

    def of(
        self, texts: Sequence[str], given: str | Sequence[str] | None, user_begins: Callable[[Any], str]
    ) -> list[str | None]:
        """The question of each text; None where it is not known.

        given:       by the caller, one per text
        user_begins: what a template writes before the words of a user
        """
        if given is not None:
            return list(_checked(texts, given))
        if (known := _RENDERING.get()) is not None and len(known) == len(texts):
            return list(known)
        return [self._known(text, user_begins) for text in texts]

    def _known(self, text: str, user_begins: Callable[[Any], str]) -> str | None:
        """Of a text that was rendered, also if an answer was appended, as for training; not if a user goes on."""
        begins = [text] if text in self._asked else [known for known in list(self._asked) if text.startswith(known)]
        if not begins:
            return None
        longest = max(begins, key=len)
        question, template = self._asked[longest]
        more = text[len(longest) :]
        return None if more and (mark := user_begins(template)) and mark in more else question


def _checked(texts: Sequence[str], question: str | Sequence[str]) -> list[str]:
    given = [question] if isinstance(question, str) else list(question)
    if len(given) != len(texts):
        raise ValueError(f"processor: question must be one per text ({len(texts)}), got {len(given)}")
    if wrong := [text for text in given if not isinstance(text, str)]:
        raise TypeError(f"processor: question must be a text or a list of texts, got {type(wrong[0]).__name__}")
    return given
