"""Accounts as a resource. `stoker/server/erasure` deletes them."""

from stoker.platform.resource import Resource
from stoker.tenancy.accounts.endpoints import quotas, router

RESOURCE = Resource(name="accounts", routers=[router, quotas])
