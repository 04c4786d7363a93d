"""Holds a server with models against its own OpenAPI document, by calls that are made up.

`make fuzz CALLS=20 SEED=1`: so many calls an operation and phase of schemathesis, with the key of
an account, with one of a deployment, with one that is none, and with the operator's. What fails: a
status or a body that is not documented, an answer of the server's fault but those of a model that
is not there, a step of the event loop that computes for more than a tenth of a second.
"""
