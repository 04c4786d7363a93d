"""A soak: real callers, real models, real faults, for as long as one likes, and then the count.

``make soak MINUTES=30 SEED=1`` starts a server on a small disk of its own, has callers upload,
deploy, call every task, stream, film, run agents and delete, while replicas, the engine host and
the server itself are killed or halted, the disk fills up and the clock jumps. In the end everything
that was acknowledged has to be there, everything that was deleted gone, the ledger balanced, and
nothing left over. What the callers and the faults do follows from the seed; when, from the machine.
"""
