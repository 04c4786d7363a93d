"""Fuzzes a server with models against its own OpenAPI document.

`make fuzz CALLS=20 SEED=1` sends this number of calls per operation and phase of schemathesis. It
uses the key of an account, the key of a deployment, an invalid key and the operator's key. It fails
on an undocumented status or body, and on a server error except for an unavailable model. It also
fails on a step of the event loop that computes for more than a tenth of a second.
"""
