"""Text to token numbers. Token 0 separates documents in every vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from holdfast.trainer.settings.layout import vocab_of

SEPARATOR = 0
Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint8]


class Tokenizer(Protocol):
    """One vocabulary."""

    vocab: int

    def encode(self, text: bytes) -> Tokens:
        """Tokens of one document, without separator."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens; bytes that are not text become a replacement character."""

    def describe(self) -> str:
        """All that `restored` needs; empty when the name says it."""


class ByteTokenizer:
    """Each byte is a token. A NUL inside a document reads as the separator."""

    vocab = 256

    def encode(self, text: bytes) -> Tokens:
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    def describe(self) -> str:
        return ""


class BpeTokenizer:
    """Byte-level byte-pair encoding, trained on the text that it encodes."""

    def __init__(self, library: Any, vocab: int) -> None:
        # Short text yields fewer merges than asked for; the model keeps the size that was asked for.
        self._library, self.vocab = library, vocab

    @classmethod
    def train(cls, documents: Iterable[bytes], vocab: int) -> BpeTokenizer:
        # Imported here: the library is only needed for this choice, and starts threads of its own.
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, pre_tokenizers, trainers

        library = Library(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=["<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        library.train_from_iterator(_texts(documents), trainer)
        return cls(library, vocab)

    def encode(self, text: bytes) -> Tokens:
        return np.array(self._library.encode(text.decode(errors="replace")).ids, dtype=np.uint16)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._library.decode(list(tokens)))

    def describe(self) -> str:
        return str(self._library.to_str())


def make(name: str, documents: Iterable[bytes]) -> Tokenizer:
    """The tokenizer `name`: `bytes`, or `bpe:N`, which is trained on `documents`."""
    if name == "bytes":
        return ByteTokenizer()
    return BpeTokenizer.train(documents, vocab_of(name))


def restored(name: str, description: str) -> Tokenizer:
    """The tokenizer `name` that described itself so."""
    if name == "bytes":
        return ByteTokenizer()
    from tokenizers import Tokenizer as Library

    return BpeTokenizer(Library.from_str(description), vocab_of(name))


def _texts(documents: Iterable[bytes]) -> Iterator[str]:
    for document in documents:
        yield document.decode(errors="replace")
