"""LitServe as a peer, with its dynamic batching enabled."""

from collections.abc import Sequence
from typing import Any

import litserve

from bench.peers.asking import arguments, ask, decode, pipeline_of

BATCH = 8
BATCH_S = 0.01
"""Maximum wait in seconds for a batch to fill."""


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
        # All requests of the benchmark have the same labels.
        labels = inputs[0][1]
        return ask(self._pipe, self._pipeline, [value for value, _ in inputs], labels)

    def encode_response(self, output: Any, **_: Any) -> Any:
        return output


def main() -> None:
    options = arguments()
    served = Pipeline(options.model, options.pipeline, options.dtype)
    server = litserve.LitServer(served, accelerator="cpu")
    server.run(host="127.0.0.1", port=options.port, generate_client_file=False)


if __name__ == "__main__":
    main()
