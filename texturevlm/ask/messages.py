"""Conversations as chat templates take them: the question in one, its images, and one made from a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
IMAGE_KEYS = ("image", "url", "path", "base64", "image_url")  # where a block of content may hold its image


def is_conversation(prompt: Any) -> bool:
    """Whether a prompt is a list of messages."""
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], dict)


def question_of(conversation: Sequence[Message]) -> str:
    """The text of the user's last turn."""
    for message in reversed(conversation):
        if message.get("role") == "user":
            return " ".join(_texts(message.get("content"))).strip()
    return ""


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
                held = next((block[key] for key in IMAGE_KEYS if block.get(key) is not None), None)
                found.append(held.get("url") if isinstance(held, dict) else held)
    return found


def without_images(conversation: Sequence[Message]) -> list[Message]:
    """The same messages with blocks that only say that there is an image, as a template needs them."""
    return [
        {**message, "content": [_bare(block) for block in _blocks(message["content"])]}
        if isinstance(message.get("content"), (list, tuple))
        else dict(message)
        for message in conversation
    ]


def conversation_about(images: int, question: str, marks: Sequence[str]) -> list[Message]:
    """One turn of the user: the images, then the question.

    marks: texts that stand for an image in a prompt; in the question they are broken, because they mean nothing there
    """
    for mark in marks:
        question = question.replace(mark, f"{mark[:1]} {mark[1:]}")
    return [{"role": "user", "content": [*[{"type": "image"}] * images, {"type": "text", "text": question}]}]


def _blocks(content: Any) -> list[Message]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, (list, tuple)) else []


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, (list, tuple)) else []
    found = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in found if isinstance(text, str)]


def _bare(block: Message) -> Message:
    return {"type": "image"} if block.get("type") in ("image", "image_url") else block
