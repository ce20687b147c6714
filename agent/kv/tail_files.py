"""Partial blocks on disk: their names, and the search for the one that goes on like a prompt.

A partial block's name begins with a tag of what is before it, so that the names alone
tell which ones could continue a prefix; nothing else of it is readable without the
tenant's key. Its file has two sealed parts, the tokens and the rows: the tokens of all
candidates are read and compared before the rows of the best one are.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from agent.kv.codec import Block
from agent.kv.disk import DiskTier
from agent.kv.seal import Sealer, SealError
from shoal.blocks import HASH_BYTES, BlockHash

# What is shorter is not worth the call that restores it, nor the copy that keeps it.
MIN_TAIL_TOKENS = 16
# Continuations of one prefix that are remembered, the newest ones.
MAX_BRANCHES = 16
_TAG_BYTES = 8
_TAG_PERSON = b"shoal-kv-tag---1"
_TAIL_PERSON = b"shoal-kv-tail--1"
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WantedTail:
    """A prompt's tokens behind its whole blocks, and the files that may begin like them."""

    parent: BlockHash
    tokens: Sequence[int]
    names: tuple[BlockHash, ...]  # the newest first
    num_held: int  # of the tokens that the host covers: fewer are of no use
    tenant_salt: bytes


@dataclass(frozen=True, slots=True)
class FoundTail:
    """A partial block, proved to be behind `parent`."""

    parent: BlockHash
    name: BlockHash
    tokens: array.array[int]
    data: Block


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found, and the files that are damaged."""

    found: FoundTail | None
    refused: tuple[BlockHash, ...] = ()


def parent_tag(parent: BlockHash) -> bytes:
    """How the names of all partial blocks behind `parent` begin."""
    return hashlib.blake2b(parent, digest_size=_TAG_BYTES, person=_TAG_PERSON).digest()


def tag_of(name: BlockHash) -> bytes:
    """The tag in a partial block's name."""
    return name[:_TAG_BYTES]


def tail_name(parent: BlockHash, tokens: Sequence[int]) -> BlockHash:
    """The name of the partial block with these tokens behind `parent`."""
    digest = hashlib.blake2b(parent, digest_size=HASH_BYTES - _TAG_BYTES, person=_TAIL_PERSON)
    digest.update(array.array("I", tokens).tobytes())
    return BlockHash(parent_tag(parent) + digest.digest())


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Leading tokens that both have."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


def read_longest(disk: DiskTier, sealer: Sealer, wanted: WantedTail) -> Search:
    """Look for the partial block that shares most leading tokens with the wanted ones. Blocking.

    Found is one that shares 16, and as many more than the host covers. A file that is
    not there may be in the writer's queue still: it is passed over, not refused.
    """
    refused: list[BlockHash] = []
    best, num_best = None, wanted.num_held + MIN_TAIL_TOKENS - 1
    for name in wanted.names:
        if not disk.size(name):
            continue
        tokens = _read_tokens(disk, sealer, wanted, name)
        if tokens is None:
            refused.append(name)
        # Tags may collide; whole names do not.
        elif (
            num_common(tokens, wanted.tokens) > num_best
            and tail_name(wanted.parent, tokens) == name
        ):
            best, num_best = (name, tokens), num_common(tokens, wanted.tokens)
    if best is None:
        return Search(None, tuple(refused))
    name, tokens = best
    data = _read_rows(disk, sealer, wanted, name)
    if data is None:
        return Search(None, (*refused, name))
    return Search(FoundTail(wanted.parent, name, tokens, data), tuple(refused))


def _read_tokens(
    disk: DiskTier, sealer: Sealer, wanted: WantedTail, name: BlockHash
) -> array.array[int] | None:
    """The file's tokens; None when they are damaged."""
    num_tokens = sealer.tail_tokens(disk.size(name))
    if num_tokens is None:
        return None
    head = disk.read_head(name, sealer.head_bytes(num_tokens))
    try:
        return None if head is None else sealer.open_tokens(wanted.tenant_salt, name, head)
    except SealError as error:
        log.warning("kv_disk_tail_refused", part="tokens", reason=str(error))
        return None


def _read_rows(disk: DiskTier, sealer: Sealer, wanted: WantedTail, name: BlockHash) -> Block | None:
    sealed = disk.read(name)
    try:
        return None if sealed is None else sealer.open_rows(wanted.tenant_salt, name, sealed)
    except SealError as error:
        log.warning("kv_disk_tail_refused", part="rows", reason=str(error))
        return None
