"""Errors of calls that nodes could not answer."""

from stoker.base.errors import CapacityError, NotFoundError


def unknown_deployment() -> NotFoundError:
    return NotFoundError("Deployment not found", code="deployment_not_found")


def node_lost() -> CapacityError:
    return CapacityError(
        "The node that worked on this request was lost. Others are unaffected.",
        code="worker_lost",
        retry_after_s=1,
    )
