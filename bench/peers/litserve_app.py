"""The peer LitServe, with its dynamic batching on."""

from collections.abc import Sequence
from typing import Any

import litserve

from bench.peers.asking import arguments, ask, decode, pipeline_of

BATCH = 8
BATCH_S = 0.01
"""How long it waits for a batch to fill."""


class Pipeline(litserve.LitAPI):
    def __init__(self, model: str, pipeline: str, dtype: str) -> None:
        super().__init__(max_batch_size=BATCH, batch_timeout=BATCH_S)
        self._given = (model, pipeline, dtype)
        self._pipeline = pipeline

    def setup(self, device: str) -> None:
        self._pipe = pipeline_of(*self._given, device=device)

    def decode_request(self, request: dict[str, Any], **_: Any) -> tuple[Any, list[str] | None]:
        return decode(self._pipeline, request), request.get("candidate_labels")

    def predict(self, inputs: Sequence[tuple[Any, list[str] | None]], **_: Any) -> list[Any]:
        # The benchmark's labels are the same in every request.
        labels = inputs[0][1]
        return ask(self._pipe, self._pipeline, [one for one, _ in inputs], labels)

    def encode_response(self, output: Any, **_: Any) -> Any:
        return output


def main() -> None:
    given = arguments()
    served = Pipeline(given.model, given.pipeline, given.dtype)
    server = litserve.LitServer(served, accelerator="cpu")
    server.run(host="127.0.0.1", port=given.port, generate_client_file=False)


if __name__ == "__main__":
    main()
