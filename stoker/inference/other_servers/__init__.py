"""Endpoints of Text Embeddings Inference (TEI) and vLLM, for their clients."""
