"""The peer LitServe, with its dynamic batching on."""

import argparse
from collections.abc import Sequence
from typing import Any

import litserve


class TokenClassification(litserve.LitAPI):
    def __init__(self, model: str) -> None:
        super().__init__(max_batch_size=8, batch_timeout=0.01)
        self._model = model

    def setup(self, device: str) -> None:
        import transformers

        self._pipe: Any = transformers.pipeline(
            "token-classification", model=self._model, device=device
        )

    def decode_request(self, request: dict[str, Any], **_: Any) -> str:
        return request["inputs"]

    def predict(self, inputs: Sequence[str], **_: Any) -> list[Any]:
        return self._pipe(list(inputs), batch_size=len(inputs))

    def encode_response(self, output: Sequence[dict[str, Any]], **_: Any) -> list[dict[str, Any]]:
        return [token | {"score": float(token["score"])} for token in output]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    server = litserve.LitServer(TokenClassification(given.model), accelerator="cpu")
    server.run(host="127.0.0.1", port=given.port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
