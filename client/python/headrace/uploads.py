"""Contents of a weight set on their way to the daemon: pieces, digests, and the requests that send them.

Contents are known by their digest, which is that of the digests of leaves of 4 MiB. The daemon asks
for what it lacks, by offset; what is there already is not sent, and what came before a connection
broke is not sent again. No I/O here.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace import handles
from headrace import headrace_pb2 as pb
from headrace.types import TensorInfo, TypeLike, as_bytes, as_type
from headrace.wire import Buffer

PADDING = 64
LEAF_BYTES = 4 << 20
HASHERS = 4

# Who may find a set.
Share = Literal["all", "principal"]
Content = npt.ArrayLike | tuple[TypeLike, Sequence[int], Buffer]


def content(name: str, value: Content) -> tuple[TensorInfo, memoryview]:
    """Type, shape and bytes of something to upload."""
    if isinstance(value, tuple) and len(value) == 3:
        number, shape = as_type(value[0]), tuple(value[1])
        raw = np.frombuffer(value[2], np.uint8)
        info = TensorInfo(name, number, shape)
        if raw.nbytes != info.nbytes:
            raise ValueError(f"{name}: {raw.nbytes} bytes, {info.nbytes} expected")
        return info, raw.data
    array = np.asarray(value)
    info = TensorInfo(name, as_type(array.dtype), array.shape)
    return info, as_bytes(array, info.type, info.shape, name)


class Pieces:
    """Buffers one behind the other, read at any offset without a copy."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._views = [memoryview(part) for part in parts if len(part)]
        self._ends = list(accumulate(map(len, self._views)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def slice(self, offset: int, size: int) -> list[memoryview]:
        """The `size` bytes from `offset` on, which must be there."""
        found = []
        index = bisect_right(self._ends, offset)
        while size:
            view = self._views[index]
            start = offset - (self._ends[index] - len(view))
            piece = view[start : start + size]
            found.append(piece)
            offset += len(piece)
            size -= len(piece)
            index += 1
        return found


def leaf_digests(pieces: Pieces) -> list[bytes]:
    """SHA-256 of each leaf, by several threads."""

    def digest(start: int) -> bytes:
        leaf = hashlib.sha256()
        for piece in pieces.slice(start, min(LEAF_BYTES, len(pieces) - start)):
            leaf.update(piece)
        return leaf.digest()

    starts = range(0, len(pieces), LEAF_BYTES)
    if len(starts) < 2:
        return [digest(start) for start in starts]
    with ThreadPoolExecutor(min(HASHERS, os.cpu_count() or 1)) as pool:
        return list(pool.map(digest, starts))


@dataclass(frozen=True)
class Upload:
    """A set to be made of contents of ours. digest: empty for one that cannot be resumed."""

    name: str
    infos: list[TensorInfo]
    pieces: Pieces
    digest: bytes
    manifest: bytes
    share: Share = "all"

    def message(self, rules: Sequence[pb.PlacementRule], body_max: int) -> bytes:
        """WeightsPut."""
        return pb.WeightsPut(
            name=self.name,
            total_bytes=len(self.pieces),
            placement=rules,
            digest=self.digest,
            manifest_bytes=len(self.manifest) if len(self.manifest) > body_max else 0,
            resume=bool(self.digest),
            share=shares(self.share),
        ).SerializeToString()


def shares(share: Share) -> str:
    """By its name: ValueError for another."""
    if share not in ("all", "principal"):
        raise ValueError(f"share {share!r}: all or principal")
    return "SHARE_PRINCIPAL" if share == "principal" else "SHARE_ALL"


def prepare(
    name: str, tensors: Mapping[str, Content], digest: bool | bytes, share: Share = "all"
) -> Upload:
    """digest: True to compute it; the digest itself where it is known, which saves reading the
    contents when the daemon has them; False for none.
    """
    pairs = [content(key, value) for key, value in tensors.items()]
    infos = [info for info, _ in pairs]
    parts: list[Buffer] = []
    for _, data in pairs:
        parts.append(data)
        if len(data) % PADDING:
            parts.append(bytes(PADDING - len(data) % PADDING))
    pieces = Pieces(parts)
    manifest = handles.manifest_of_infos(infos)
    if digest is True:
        leaves = leaf_digests(pieces)
        manifest.leaf_digests = b"".join(leaves)
        digest = hashlib.sha256(manifest.leaf_digests).digest()
    return Upload(name, infos, pieces, digest or b"", manifest.SerializeToString(), share)
