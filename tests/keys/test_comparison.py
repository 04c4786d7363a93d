"""Comparison of a secret with its stored digest."""

import hmac

import pytest

from stoker.tenancy.keys.keyring import Keyring
from tests.keys.test_keyring import Counting, database, issue

__all__ = ["database"]


@pytest.mark.case(15)
async def test_secrets_are_compared_in_constant_time_alone(
    database: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the constant-time comparison decides: the keyring accepts the keys that it accepts,
    although `==` would not.
    """
    _, key = await issue(database)
    keyring = Keyring(database, 2.0)
    compared: list[int] = []

    def always(known: bytes, presented: bytes) -> bool:
        compared.append(len(presented))
        assert len(known) == len(presented) == 32, "digests have one length, whatever is given"
        return True

    monkeypatch.setattr(hmac, "compare_digest", always)
    for wrong in (key[:-1], f"{key}x", key[: key.rindex("-") + 1], f"{key[:-4]}AAAA"):
        await keyring.check(wrong)
    assert len(compared) >= 4
