"""Claims on one budget of bytes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """Bytes that one replica needs of a budget."""

    deployment_id: str
    size: int
    """Size in bytes."""
    account: str = ""


@dataclass(eq=False)
class _Claim:
    deployment_id: str
    size: int
    account: str
    is_ending: bool = False


class MemoryClaims:
    """Bytes that each replica has claimed, whether or not they fit."""

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}

    def enter(self, replica_id: str, need: Need) -> None:
        self._claims[replica_id] = _Claim(need.deployment_id, need.size, need.account)

    def resize(self, replica_id: str, size: int) -> bool:
        """Sets the measured size of a replica. Returns True if it has a claim here and the size
        changed.
        """
        claim = self._claims.get(replica_id)
        if claim is None or claim.size == size:
            return False
        claim.size = size
        return True

    def ending(self, replica_id: str) -> None:
        """Marks a replica that is about to end: its memory will be free."""
        if claim := self._claims.get(replica_id):
            claim.is_ending = True

    def strike(self, replica_id: str) -> bool:
        """Removes a replica's claim. Returns True if it existed."""
        return self._claims.pop(replica_id, None) is not None

    def sizes(self) -> dict[str, int]:
        """Maps each replica with a claim to its bytes."""
        return {replica_id: claim.size for replica_id, claim in self._claims.items()}

    def has(self, replica_id: str) -> bool:
        return replica_id in self._claims

    def size(self, replica_id: str) -> int:
        """Returns the bytes that a replica has claimed. 0 means no claim."""
        claim = self._claims.get(replica_id)
        return claim.size if claim else 0

    @property
    def held(self) -> int:
        return sum(claim.size for claim in self._claims.values())

    @property
    def leaving(self) -> int:
        """Bytes held by replicas that are about to end."""
        return sum(claim.size for claim in self._claims.values() if claim.is_ending)

    def by_account(self, *, with_ending: bool = False) -> dict[str, int]:
        """Returns the bytes that each account holds."""
        held_by_account: dict[str, int] = {}
        for claim in self._claims.values():
            if with_ending or not claim.is_ending:
                held_by_account[claim.account] = held_by_account.get(claim.account, 0) + claim.size
        return held_by_account

    def _held_by(self, deployment_id: str) -> int:
        return sum(
            claim.size for claim in self._claims.values() if claim.deployment_id == deployment_id
        )

    def _by_deployment(self) -> dict[str, int]:
        """Returns the bytes that each deployment holds."""
        held_by_deployment: dict[str, int] = {}
        for claim in self._claims.values():
            held_by_deployment[claim.deployment_id] = (
                held_by_deployment.get(claim.deployment_id, 0) + claim.size
            )
        return held_by_deployment
