"""Text to token numbers. Token 0 separates documents in every vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

SEPARATOR = 0
Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint8]


class Tokenizer(Protocol):
    """One vocabulary."""

    vocab: int

    def encode(self, text: bytes) -> Tokens:
        """Tokens of one document, without separator."""

    def describe(self) -> str:
        """All that is needed to decode again; empty when the name says it."""


class ByteTokenizer:
    """Each byte is a token. A NUL inside a document reads as the separator."""

    vocab = 256

    def encode(self, text: bytes) -> Tokens:
        return np.frombuffer(text, dtype=np.uint8)

    def describe(self) -> str:
        return ""


class BpeTokenizer:
    """Byte-level byte-pair encoding, trained on the text that it encodes."""

    def __init__(self, documents: Iterable[bytes], vocab: int) -> None:
        # Imported here: the library is only needed for this choice, and starts threads of its own.
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, pre_tokenizers, trainers

        self._library = Library(models.BPE())
        self._library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=["<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        self._library.train_from_iterator(_texts(documents), trainer)
        # Short text yields fewer merges than asked for; the model keeps the size that was asked for.
        self.vocab = vocab

    def encode(self, text: bytes) -> Tokens:
        return np.array(self._library.encode(text.decode(errors="replace")).ids, dtype=np.uint16)

    def describe(self) -> str:
        return str(self._library.to_str())


def make(name: str, documents: Iterable[bytes]) -> Tokenizer:
    """The tokenizer `name`: `bytes`, or `bpe:N`, which is trained on `documents`."""
    if name == "bytes":
        return ByteTokenizer()
    return BpeTokenizer(documents, vocab_of(name))


def vocab_of(name: str) -> int:
    """Size of the vocabulary of tokenizer `name`."""
    return 256 if name == "bytes" else int(name.partition(":")[2])


def _texts(documents: Iterable[bytes]) -> Iterator[str]:
    for document in documents:
        yield document.decode(errors="replace")
