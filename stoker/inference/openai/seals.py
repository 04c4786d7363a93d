"""Seals the texts that clients keep for the server, with keys of one account's responses."""

from stoker.base.errors import InvalidRequestError
from stoker.inference.openai.items import CompactionItem, Input, ReasoningItem, ReasoningText
from stoker.store.secret import ServerSecret
from stoker.wire.sealed_text import Kind, TextSeal, response_of


class AccountSeals:
    def __init__(self, secret: ServerSecret, account_id: str) -> None:
        self._secret = secret
        self._account_id = account_id

    def of(self, response_id: str) -> TextSeal:
        """Returns the seal of one response of the account."""
        key = self._secret.derive(f"response\0{self._account_id}\0{response_id}")
        return TextSeal(response_id, key)

    def open(self, sealed: str, kind: Kind) -> str | None:
        """Returns the text. None if it was not sealed for this account."""
        response_id = response_of(sealed)
        return None if response_id is None else self.of(response_id).open(sealed, kind)


def has_sealed(given: Input) -> bool:
    """Returns True if an input contains sealed text."""
    return not isinstance(given, str) and any(
        isinstance(item, CompactionItem | ReasoningItem) and item.encrypted_content
        for item in given
    )


def open_input(given: Input, seals: AccountSeals) -> None:
    """Replaces the sealed texts of an input by their content.

    Raises `InvalidRequestError` for a text that cannot be opened and has no readable form.
    """
    if isinstance(given, str):
        return
    for index, item in enumerate(given):
        if isinstance(item, CompactionItem):
            summary = seals.open(item.encrypted_content, "compaction")
            if summary is None:
                raise _unreadable(index, "Send the conversation itself.")
            item.open(summary)
        if not isinstance(item, ReasoningItem) or not item.encrypted_content:
            continue
        text = seals.open(item.encrypted_content, "reasoning")
        if text is not None:
            item.content = [ReasoningText(type="reasoning_text", text=text)]
        elif not item.text:
            raise _unreadable(index, "Leave the item out, or send its text in 'summary'.")


def _unreadable(index: int, way: str) -> InvalidRequestError:
    field = f"input[{index}].encrypted_content"
    return InvalidRequestError(
        f"'{field}' was changed, or was not sealed by this server for this account. {way}",
        param=field,
    )
