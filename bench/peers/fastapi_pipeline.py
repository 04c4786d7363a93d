"""The most common peer: FastAPI with pipeline() in its thread pool."""

from typing import Any

import uvicorn
from fastapi import FastAPI

from bench.peers.asking import arguments, ask, decode, pipeline_of


def build(model: str, pipeline: str, dtype: str) -> FastAPI:
    pipe = pipeline_of(model, pipeline, dtype)
    app = FastAPI()

    @app.post("/predict")
    def predict(body: dict[str, Any]) -> Any:
        return ask(pipe, pipeline, [decode(pipeline, body)], body.get("candidate_labels"))[0]

    @app.get("/health")
    def health() -> str:
        return "ok"

    return app


def main() -> None:
    options = arguments()
    app = build(options.model, options.pipeline, options.dtype)
    uvicorn.run(app, host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
