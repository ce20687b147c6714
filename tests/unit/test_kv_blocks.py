from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.blocks import (
    BLOCK_TOKENS,
    BlockSpace,
    block_hashes,
    shared_key,
    shared_tier_acl,
    tenant_salt,
)

SPACE = BlockSpace("abc", "f16", "f16", "0.3.36/3", b"salt")
TOKENS = list(range(3 * BLOCK_TOKENS + 5))


def test_only_full_blocks_have_hashes() -> None:
    assert len(block_hashes(SPACE, TOKENS)) == 3
    assert block_hashes(SPACE, TOKENS[: BLOCK_TOKENS - 1]) == ()
    assert block_hashes(SPACE, []) == ()


def test_a_token_changes_its_block_and_all_after_it() -> None:
    changed = list(TOKENS)
    changed[BLOCK_TOKENS + 3] += 1
    before, after = block_hashes(SPACE, TOKENS), block_hashes(SPACE, changed)
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert before[2] != after[2]


@pytest.mark.parametrize(
    "field", ["model_fingerprint", "key_type", "value_type", "state_version", "tenant_salt"]
)
def test_everything_that_decides_the_bytes_decides_the_hash(field: str) -> None:
    other = replace(SPACE, **{field: b"x" if field == "tenant_salt" else "x"})
    assert set(block_hashes(SPACE, TOKENS)).isdisjoint(block_hashes(other, TOKENS))


def test_neighbouring_fields_cannot_be_confused() -> None:
    one = replace(SPACE, key_type="f1", value_type="6f16")
    two = replace(SPACE, key_type="f16", value_type="f16")
    assert one.key() != two.key()


@given(st.integers(0, 4), st.lists(st.integers(0, 2**32 - 1), min_size=300, max_size=600))
def test_known_leading_hashes_give_the_same_answer(num_known: int, tokens: list[int]) -> None:
    whole = block_hashes(SPACE, tokens)
    assert block_hashes(SPACE, tokens, whole[:num_known]) == whole


def test_tenants_have_salts_of_their_own_and_none_without_the_secret() -> None:
    secret, other = b"s" * 32, b"t" * 32
    assert tenant_salt(secret, "a") == tenant_salt(secret, "a")
    assert len({tenant_salt(secret, "a"), tenant_salt(secret, "b"), tenant_salt(other, "a")}) == 3
    with pytest.raises(ValueError, match="fleet_secret"):
        tenant_salt(b"short", "a")


def test_the_hash_is_pinned_so_that_agents_of_different_versions_agree() -> None:
    assert block_hashes(SPACE, TOKENS)[0].hex() == (
        "b1988c198a482865a61099a8843836e4cc0a84b69901b2558bd3712fbfc00df0"
    )


def test_an_agents_acl_names_the_keyspace_that_keys_are_in() -> None:
    (first, *_rest) = block_hashes(SPACE, TOKENS)
    pattern = next(rule for rule in shared_tier_acl("agent", "00") if rule.startswith("~"))
    assert shared_key(first).startswith(pattern[1:-1])
