"""Format and tokenize dialogues for the tiny model."""

from __future__ import annotations

from typing import Any, Final

EOS: Final = "<|im_end|>"
PAD: Final = "<|endoftext|>"
SPECIAL_TOKENS: Final = (PAD, "<|im_start|>", EOS)
GENERATION_PROMPT: Final = "<|im_start|>assistant\n"

#: Makes the same text as `message_text`, for users who load the tokenizer from the model's folder.
CHAT_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def message_text(role: str, content: str) -> str:
    """Return one message as text, its closing newline included."""
    return f"<|im_start|>{role}\n{content}{EOS}\n"


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a text, without special tokens added by the tokenizer."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
