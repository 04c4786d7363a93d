"""Soak test: real callers, models and faults for any length of time, and then a count of losses.

``make soak MINUTES=30 SEED=1`` starts a server on a separate small disk. Callers upload, deploy,
call every task, stream, make videos, run agents and delete. Meanwhile, replicas, the engine host
and the server itself are killed or halted, the disk fills up and the clock jumps. At the end,
everything that was acknowledged must exist, everything that was deleted must be absent, the ledger
must be balanced, and nothing may be left over. The seed determines the actions of callers and
faults. Their timing depends on the machine.
"""
