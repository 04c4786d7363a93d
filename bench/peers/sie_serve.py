"""Superlinked SIE's server for one local model: describes the model, then becomes the server."""

import argparse
import json
import os
import sys
from pathlib import Path

NAME = "measured"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--port", required=True)
    options = parser.parse_args()
    models = Path.cwd() / f"sie-{options.pipeline}-{options.dtype}"
    models.mkdir(exist_ok=True)
    described = _described(options.model, options.pipeline, options.dtype)
    # JSON is YAML, which the server reads.
    (models / f"{NAME}.yaml").write_text(json.dumps(described))
    server = Path(sys.executable).parent / "sie-server"
    serve = ("serve", "--host", "127.0.0.1", "--port", options.port, "--device", "cpu")
    chosen = ("--models-dir", str(models), "--models", NAME, "--preload", NAME)
    os.execv(server, [str(server), *serve, *chosen, "--no-hf-fallback"])


def _described(folder: Path, pipeline: str, dtype: str) -> dict[str, object]:
    """Returns the server's description of a model, with the adapter that is the best on a CPU."""
    config = json.loads((folder / "config.json").read_text())
    if pipeline == "text-ranking":
        adapter = "cross_encoder:CrossEncoderAdapter"
        tasks: dict[str, object] = {"score": {}}
    else:
        # Unlike the adapter of sentence-transformers, it can compute in another dtype.
        adapter = "pytorch_embedding:PyTorchEmbeddingAdapter"
        tasks = {"encode": {"dense": {"dim": config["hidden_size"]}}}
    return {
        "sie_id": NAME,
        "weights_path": str(folder),
        "inputs": {"text": True},
        "tasks": tasks,
        "max_sequence_length": config["max_position_embeddings"],
        "profiles": {
            "default": {
                "max_batch_tokens": 16_384,
                "compute_precision": dtype,
                "adapter_path": f"sie_server.adapters.{adapter}",
                "adapter_options": {
                    "loadtime": {},
                    "runtime": {"pooling": "mean", "normalize": True},
                },
            }
        },
    }


if __name__ == "__main__":
    main()
