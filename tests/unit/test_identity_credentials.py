import hashlib

import pytest

from orchestrator.identity.api_keys import (
    Principal,
    Role,
    check_key,
    check_label,
    key_id_of,
    new_key,
)
from orchestrator.identity.join_tokens import JoinToken
from shoal.errors import Reason, ShoalError

CA = hashlib.sha256(b"ca").hexdigest()
OTHER_CA = hashlib.sha256(b"other").hexdigest()


def stored(token: JoinToken, **changes: str) -> dict[str, str]:
    fields = {"secret_sha256": token.secret_sha256, "expires_unix_ms": "1000", "used_by": ""}
    return fields | changes


def denied(call) -> str:
    with pytest.raises(ShoalError) as caught:
        call()
    assert caught.value.reason is Reason.UNAUTHENTICATED
    return caught.value.message


def test_token_text_reads_back():
    token = JoinToken.new(CA)
    assert JoinToken.parse(f" {token.text}\n") == token
    assert token.text == f"shoal-join.{token.token_id}.{token.secret}.{CA}"


def test_tokens_differ_and_their_secret_is_not_in_their_repr():
    token, other = JoinToken.new(CA), JoinToken.new(CA)
    assert token.secret != other.secret
    assert token.secret not in repr(token)


def test_good_token_passes_until_the_very_end():
    token = JoinToken.new(CA)
    token.check(stored(token), CA, 999)
    assert "expired" in denied(lambda: token.check(stored(token), CA, 1000))


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_empty_token_is_denied_as_empty(text):
    assert "empty" in denied(lambda: JoinToken.parse(text))


@pytest.mark.parametrize(
    "text", ["x", "shoal-join", "shoal-join...", f"shoal-join.a.b.{CA}", "shoal-join.*.*.*"]
)
def test_malformed_token_is_denied_as_malformed(text):
    assert "malformed" in denied(lambda: JoinToken.parse(text))


def test_each_fault_has_a_message_of_its_own():
    token = JoinToken.new(CA)
    wrong_secret = JoinToken(token.token_id, JoinToken.new(CA).secret, CA)
    unknown = denied(lambda: token.check({}, CA, 0))
    used = denied(lambda: token.check(stored(token, used_by="d1"), CA, 0))
    expired = denied(lambda: token.check(stored(token), CA, 5000))
    foreign = denied(lambda: token.check(stored(token), OTHER_CA, 0))
    assert len({unknown, used, expired, denied(lambda: JoinToken.parse(""))}) == 4
    assert unknown == foreign == denied(lambda: wrong_secret.check(stored(token), CA, 0))


def test_state_of_a_token_is_not_told_without_its_secret():
    token = JoinToken.new(CA)
    wrong = JoinToken(token.token_id, JoinToken.new(CA).secret, CA)
    message = denied(lambda: wrong.check(stored(token, used_by="d1"), CA, 5000))
    assert "used" not in message
    assert "expired" not in message


def test_record_without_a_secret_fails_closed():
    token = JoinToken.new(CA)
    assert "not one of this fleet" in denied(lambda: token.check({"used_by": ""}, CA, 0))


def test_new_keys_have_the_documented_form():
    key = new_key()
    assert key.startswith("sk-shoal-")
    assert len(key) == len("sk-shoal-") + 43
    assert check_key(key) == key
    assert key_id_of(key) not in key
    assert len(key_id_of(key)) == 12


@pytest.mark.parametrize("key", [None, "", "sk-shoal-", "sk-proj-abc", "sk-shoal-" + "é" * 43])
def test_key_that_cannot_be_one_is_denied(key):
    denied(lambda: check_key(key))


def test_only_admins_pass_the_admin_check():
    Principal("t", "n", Role.ADMIN, "k").require_admin()
    with pytest.raises(ShoalError) as caught:
        Principal("t", "n", Role.USER, "k").require_admin()
    assert caught.value.reason is Reason.PERMISSION_DENIED


@pytest.mark.parametrize("value", ["", "-a", "a b", "a\n", "x" * 64, "a:b"])
def test_bad_tenant_name_is_an_invalid_argument(value):
    with pytest.raises(ShoalError) as caught:
        check_label("tenant", value)
    assert caught.value.param == "tenant"
