"""How far a request may travel: the strictest of what request, tenant and detector say; pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.request import Privacy

_STRICTNESS = {Privacy.ANY: 0, Privacy.LOCAL_PREFERRED: 1, Privacy.LOCAL_ONLY: 2}


@dataclass(frozen=True, slots=True)
class Ruling:
    """A privacy level and, in words of our own, whose it is.

    `in_doubt`: the level is `local_only` because something could not be known just
    now; asking again later may give another.
    """

    level: Privacy
    because: str
    in_doubt: bool = False

    @property
    def may_leave(self) -> bool:
        """Whether the request may leave the fleet's edge at all."""
        return self.level is not Privacy.LOCAL_ONLY


def closed(because: str) -> Ruling:
    """The ruling where something that must be known is not."""
    return Ruling(Privacy.LOCAL_ONLY, because, in_doubt=True)


def strictest(first: Ruling, *others: Ruling) -> Ruling:
    """The strictest; of equally strict ones a certain one before one in doubt, then the first."""
    return max(
        (first, *others), key=lambda ruling: (_STRICTNESS[ruling.level], not ruling.in_doubt)
    )


def of_request(asked: Privacy | None) -> Ruling:
    """What the client asked; None: nothing, so its tenant decides."""
    if asked is None:
        return Ruling(Privacy.ANY, "The request asks for nothing.")
    return Ruling(asked, f"The request asks for '{asked.value}'.")


def of_tenant(tenant: str, policy: Privacy | None) -> Ruling:
    """What the tenant's stored policy says; None: it has none, so its requests stay."""
    if policy is None:
        return Ruling(
            Privacy.LOCAL_ONLY,
            f"The tenant '{tenant}' has no privacy policy; an admin sets one with "
            f"'shoal tenants set {tenant} --privacy any'.",
        )
    return Ruling(policy, f"The tenant '{tenant}' has the policy '{policy.value}'.")
