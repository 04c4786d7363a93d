"""The peer that most people write: FastAPI, and pipeline() in its thread pool."""

import argparse
from typing import Any

import uvicorn
from fastapi import FastAPI

from bench.peers.asking import PIPELINES, ask, decode


def build(model: str, pipeline: str) -> FastAPI:
    import transformers

    loaded: Any = transformers
    pipe: Any = loaded.pipeline(pipeline, model=model)
    app = FastAPI()

    @app.post("/predict")
    def predict(body: dict[str, Any]) -> Any:
        return ask(pipe, pipeline, [decode(pipeline, body)], body.get("candidate_labels"))[0]

    @app.get("/health")
    def health() -> str:
        return "ok"

    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--pipeline", required=True, choices=PIPELINES)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    app = build(given.model, given.pipeline)
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
