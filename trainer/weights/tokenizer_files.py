"""A tokenizer as files that the libraries `tokenizers` and `transformers` load: the same ids as the trainer feeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.trainer.data.tokens import SEPARATOR, ByteTokenizer, Tokenizer

_NUL = "\0"


def write(folder: Path, tokenizer: Tokenizer, seq_len: int) -> None:
    """tokenizer.json and tokenizer_config.json. Raises OSError."""
    text = _of_bytes() if isinstance(tokenizer, ByteTokenizer) else tokenizer.describe()
    end = _token(json.loads(text), SEPARATOR)
    settings = {
        # A generic one: the architecture's own would replace parts of tokenizer.json.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _of_bytes() -> str:
    """Byte-pair encoding without pairs: each byte is a token, and its number the id."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    vocab = {character: byte for byte, character in enumerate(_characters())}
    library = Library(models.BPE(vocab=vocab, merges=[]))
    # A NUL is the separator wherever it stands, and no character that text may contain.
    library.add_special_tokens([AddedToken(_NUL, normalized=False, special=True)])
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    return str(library.to_str())


def _characters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies, since GPT-2; for 0 itself."""
    shown = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    found = [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]
    return [_NUL, *found[1:]]


def _token(described: dict[str, Any], number: int) -> str:
    (found,) = (text for text, id_ in described["model"]["vocab"].items() if id_ == number)
    return str(found)
