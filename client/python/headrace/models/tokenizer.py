"""Text to tokens and back, from a GGUF's own vocabulary.

Byte-level BPE ("gpt2" in the file, with its merges) runs on the tokenizers package; the sentence-
piece kind ("llama", with scores) is done here. Special tokens are found in the text first, then
the pieces between them are split by the model's pattern and merged.
"""

from __future__ import annotations

import codecs
import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# Patterns by the file's tokenizer.ggml.pre, applied one after the other.
PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
}


class UnsupportedTokenizer(ValueError):
    """The file's vocabulary is of a kind that is not known here."""


def byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in printable}
    for n, byte in enumerate(b for b in range(256) if b not in alphabet):
        alphabet[byte] = chr(256 + n)
    return alphabet


class Tokenizer:
    """A vocabulary. encode() and decode() are inverse to each other on text."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        types: Sequence[int] = metadata.get(
            "tokenizer.ggml.token_type", [NORMAL] * len(self.tokens)
        )
        self.types = [int(t) for t in types]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.bos = self._special(metadata, "bos")
        self.eos = self._special(metadata, "eos")
        self.template: str | None = metadata.get("tokenizer.chat_template")
        self.model = str(metadata.get("tokenizer.ggml.model", "?"))
        # Sentence-piece vocabularies put the first token in front unless the file says otherwise.
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", self.model == "llama"))
        self.space_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
        specials = [
            t
            for t, kind in zip(self.tokens, self.types, strict=True)
            if kind in (CONTROL, USER_DEFINED) and t
        ]
        specials.sort(key=len, reverse=True)
        self._specials = (
            re.compile("(" + "|".join(map(re.escape, specials)) + ")") if specials else None
        )
        if self.model == "gpt2":
            self._pieces: _Pieces = _BytePairs(self.tokens, metadata)
        elif self.model == "llama":
            self._pieces = _SentencePieces(self, metadata)
        else:
            raise UnsupportedTokenizer(f"tokenizer.ggml.model {self.model!r}")
        self.ends = {self.eos} | {
            self.ids[t]
            for t in (
                "<|im_end|>",
                "<|eot_id|>",
                "<|endoftext|>",
                "<|end|>",
                "<end_of_turn>",
                "</s>",
            )
            if t in self.ids and self.types[self.ids[t]] == CONTROL
        }

    @staticmethod
    def _special(metadata: Mapping[str, Any], name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return None if value is None else int(value)

    def encode(self, text: str, *, bos: bool | None = None, special: bool = True) -> list[int]:
        """Tokens of a text. bos: whether the first token goes in front (None: as the file says).
        special: whether special tokens in the text are taken as such.
        """
        ids: list[int] = []
        if self.bos is not None and (self.add_bos if bos is None else bos):
            ids.append(self.bos)
        parts = self._specials.split(text) if special and self._specials else [text]
        fresh = True
        for i, part in enumerate(parts):
            if i % 2:
                ids.append(self.ids[part])
                fresh = True
            elif part:
                ids += self._pieces.encode(part, fresh and self.space_prefix)
                fresh = False
        return ids

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that a token stands for; nothing for control tokens unless `special`."""
        kind = self.types[token]
        if kind in (CONTROL, USER_DEFINED, UNKNOWN):
            shown = special or kind == USER_DEFINED
            return self.tokens[token].encode() if shown else b""
        return self._pieces.token_bytes(token)

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens; what is no UTF-8 is replaced."""
        return b"".join(self.token_bytes(t, special=special) for t in tokens).decode(
            "utf-8", "replace"
        )

    def chat(self, messages: Sequence[Mapping[str, str]], *, prompt: bool = True) -> str:
        """Messages {"role", "content"} as text, by the file's own template."""
        if self.template is None:
            raise UnsupportedTokenizer("the file has no chat template")
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def raise_exception(words: str) -> None:
            raise ValueError(words)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        text = environment.from_string(self.template).render(
            messages=messages,
            add_generation_prompt=prompt,
            raise_exception=raise_exception,
            bos_token="" if self.add_bos or self.bos is None else self.tokens[self.bos],
            eos_token="" if self.eos is None else self.tokens[self.eos],
        )
        return str(text)


class TextStream:
    """Tokens to text as they come: a character is given out when its last byte is there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that has become complete with this token."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def close(self) -> str:
        """What was left incomplete."""
        return self._decoder.decode(b"", True)


class _Pieces:
    """A kind of vocabulary."""

    def encode(self, text: str, space_prefix: bool) -> list[int]:
        """Tokens of a text without special tokens."""
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        """Bytes of an ordinary token."""
        raise NotImplementedError


class _BytePairs(_Pieces):
    """Byte-level BPE with merges in order of rank."""

    def __init__(self, tokens: list[str], metadata: Mapping[str, Any]) -> None:
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers

        pre = str(metadata.get("tokenizer.ggml.pre", "default"))
        if pre not in PATTERNS:
            raise UnsupportedTokenizer(
                f"tokenizer.ggml.pre {pre!r}: known are {', '.join(PATTERNS)}"
            )
        self._tokens = tokens
        merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
        vocabulary: dict[str, int] = {}
        for i, token in enumerate(tokens):
            vocabulary.setdefault(token, i)
        usable = [
            m
            for m in merges
            if m[0] in vocabulary and m[1] in vocabulary and m[0] + m[1] in vocabulary
        ]
        # Of Llama 3's kind, a piece that is a token as a whole is taken without merging.
        whole = pre in ("llama-bpe", "llama3")
        self._tokenizer = Tokenizer(models.BPE(vocabulary, usable, ignore_merges=whole))
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[pre]]
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, level])
        self._bytes = {char: byte for byte, char in byte_alphabet().items()}

    def encode(self, text: str, space_prefix: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def token_bytes(self, token: int) -> bytes:
        text = self._tokens[token]
        try:
            return bytes(self._bytes[char] for char in text)
        except KeyError:
            return text.encode()


class _SentencePieces(_Pieces):
    """Characters merged pairwise, the pair with the best score first; unknown ones as bytes."""

    def __init__(self, tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> None:
        self._scores = [float(score) for score in metadata["tokenizer.ggml.scores"]]
        self._tokens, self._ids, self._types = tokenizer.tokens, tokenizer.ids, tokenizer.types
        unknown = metadata.get("tokenizer.ggml.unknown_token_id")
        self._unknown = None if unknown is None else int(unknown)

    def encode(self, text: str, space_prefix: bool) -> list[int]:
        text = (" " if space_prefix else "") + text
        pieces: list[str | None] = list(text.replace(" ", SPACE))
        before = list(range(-1, len(pieces) - 1))
        after = [*range(1, len(pieces)), -1]
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int) -> None:
            if left < 0 or after[left] < 0:
                return
            pair = f"{pieces[left]}{pieces[after[left]]}"
            token = self._ids.get(pair)
            if token is not None:
                heapq.heappush(queue, (-self._scores[token], left, after[left], pair))

        for i in range(len(pieces) - 1):
            offer(i)
        while queue:
            _, left, right, pair = heapq.heappop(queue)
            if (
                pieces[left] is None
                or pieces[right] is None
                or after[left] != right
                or f"{pieces[left]}{pieces[right]}" != pair
            ):
                continue
            pieces[left], pieces[right] = pair, None
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left])
            offer(left)
        return [token for piece in pieces if piece is not None for token in self._known(piece)]

    def _known(self, piece: str) -> list[int]:
        token = self._ids.get(piece)
        if token is not None:
            return [token]
        found = [self._ids.get(f"<0x{byte:02X}>", self._unknown) for byte in piece.encode()]
        return [token for token in found if token is not None]

    def token_bytes(self, token: int) -> bytes:
        text = self._tokens[token]
        if self._types[token] == BYTE:
            return bytes([int(text[3:5], 16)])
        return text.replace(SPACE, " ").encode()
