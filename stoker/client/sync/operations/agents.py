# `python -m tools.client_api` writes this file from its asynchronous twin.
"""Operations of agents, from the OpenAPI document."""

from collections.abc import Iterator
from typing import Literal, Unpack

from ... import models, params
from ...request import quoted
from ..api import Resource


class Agents(Resource):
    def create(self, **fields: Unpack[params.AgentCreateParams]) -> models.Agent:
        """`POST /v1/agent`: Create an agent: a deployed chat model with instructions and
        tools.
        """
        return self._api.value(models.Agent, "POST", "/v1/agent", body=fields, is_created=True)

    def get(self, agent_id: str) -> models.Agent:
        """`GET /v1/agent/{agent_id}`: Get an agent."""
        return self._api.value(models.Agent, "GET", f"/v1/agent/{quoted(agent_id)}")

    def update(self, agent_id: str, **fields: Unpack[params.AgentUpdateParams]) -> models.Agent:
        """`PATCH /v1/agent/{agent_id}`: Change an agent. Existing runs continue with the
        agent as it was when they were created.
        """
        return self._api.value(models.Agent, "PATCH", f"/v1/agent/{quoted(agent_id)}", body=fields)

    def delete(self, agent_id: str) -> models.Deleted:
        """`DELETE /v1/agent/{agent_id}`: Delete an agent and erase all of its runs."""
        return self._api.value(models.Deleted, "DELETE", f"/v1/agent/{quoted(agent_id)}")

    def list(
        self, *, limit: int | None = None, order: Literal["asc", "desc"] | None = None
    ) -> Iterator[models.Agent]:
        """`GET /v1/agent`: List the account's agents."""
        return self._api.pages(models.Agent, "/v1/agent", limit=limit, query={"order": order})


class RunOperations(Resource):
    def create(self, agent_id: str, **fields: Unpack[params.RunCreateParams]) -> models.Run:
        """`POST /v1/agent/{agent_id}/runs`: Start a run of an agent. The run is durable once
        this response is sent.
        """
        return self._api.value(
            models.Run, "POST", f"/v1/agent/{quoted(agent_id)}/runs", body=fields, is_created=True
        )

    def get(self, agent_id: str, run_id: str) -> models.Run:
        """`GET /v1/agent/{agent_id}/runs/{run_id}`: Get a run: its progress, the calls that
        it waits for, or how it ended.
        """
        return self._api.value(
            models.Run, "GET", f"/v1/agent/{quoted(agent_id)}/runs/{quoted(run_id)}"
        )

    def delete(self, agent_id: str, run_id: str) -> models.DeletedRun:
        """`DELETE /v1/agent/{agent_id}/runs/{run_id}`: Stop a run if it is executing, and
        erase it with all of its content.
        """
        return self._api.value(
            models.DeletedRun, "DELETE", f"/v1/agent/{quoted(agent_id)}/runs/{quoted(run_id)}"
        )

    def cancel(self, agent_id: str, run_id: str) -> models.Run:
        """`POST /v1/agent/{agent_id}/runs/{run_id}/cancel`: Cancel a run and keep the steps
        that it has completed. Cancelling twice is allowed.
        """
        return self._api.value(
            models.Run, "POST", f"/v1/agent/{quoted(agent_id)}/runs/{quoted(run_id)}/cancel"
        )

    def submit_tool_outputs(
        self, agent_id: str, run_id: str, **fields: Unpack[params.ToolOutputsParams]
    ) -> models.Run:
        """`POST /v1/agent/{agent_id}/runs/{run_id}/tool-outputs`: Submit outputs of function
        calls to a run that waits for them.
        """
        return self._api.value(
            models.Run,
            "POST",
            f"/v1/agent/{quoted(agent_id)}/runs/{quoted(run_id)}/tool-outputs",
            body=fields,
            is_created=True,
        )

    def list_events(
        self,
        agent_id: str,
        run_id: str,
        *,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> Iterator[models.RunEvent]:
        """`GET /v1/agent/{agent_id}/runs/{run_id}/events`: List the events of a run, or
        stream them as they happen.
        """
        return self._api.pages(
            models.RunEvent,
            f"/v1/agent/{quoted(agent_id)}/runs/{quoted(run_id)}/events",
            limit=limit,
            query={"order": order},
        )

    def list(
        self,
        agent_id: str,
        *,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> Iterator[models.Run]:
        """`GET /v1/agent/{agent_id}/runs`: List an agent's runs."""
        return self._api.pages(
            models.Run, f"/v1/agent/{quoted(agent_id)}/runs", limit=limit, query={"order": order}
        )
