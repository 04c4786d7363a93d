"""The peer LitServe, with its dynamic batching on."""

import argparse
from collections.abc import Sequence
from typing import Any

import litserve

from bench.peers.asking import PIPELINES, ask, decode


class Pipeline(litserve.LitAPI):
    def __init__(self, model: str, pipeline: str) -> None:
        super().__init__(max_batch_size=8, batch_timeout=0.01)
        self._model = model
        self._pipeline = pipeline

    def setup(self, device: str) -> None:
        import transformers

        loaded: Any = transformers
        self._pipe: Any = loaded.pipeline(self._pipeline, model=self._model, device=device)

    def decode_request(self, request: dict[str, Any], **_: Any) -> tuple[Any, list[str] | None]:
        return decode(self._pipeline, request), request.get("candidate_labels")

    def predict(self, inputs: Sequence[tuple[Any, list[str] | None]], **_: Any) -> list[Any]:
        # The benchmark's labels are the same in every request.
        labels = inputs[0][1]
        return ask(self._pipe, self._pipeline, [one for one, _ in inputs], labels)

    def encode_response(self, output: Any, **_: Any) -> Any:
        return output


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--pipeline", required=True, choices=PIPELINES)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    server = litserve.LitServer(Pipeline(given.model, given.pipeline), accelerator="cpu")
    server.run(host="127.0.0.1", port=given.port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
