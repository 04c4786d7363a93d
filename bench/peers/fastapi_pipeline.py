"""The peer that most people write: FastAPI, and pipeline() in its thread pool."""

import argparse
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Body(BaseModel):
    inputs: str


def build(model: str) -> FastAPI:
    import transformers

    pipe: Any = transformers.pipeline("token-classification", model=model)
    app = FastAPI()

    @app.post("/predict")
    def predict(body: Body) -> list[dict[str, Any]]:
        # pipeline() answers with numpy numbers, which JSON does not know.
        return [token | {"score": float(token["score"])} for token in pipe(body.inputs)]

    @app.get("/health")
    def health() -> str:
        return "ok"

    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    uvicorn.run(build(given.model), host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
