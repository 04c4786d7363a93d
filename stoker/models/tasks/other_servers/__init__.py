"""Forms of tasks for clients of Text Embeddings Inference (TEI) and vLLM.

Deployments of other tasks serve them. They have no pages and no examples of their own.
"""
