"""Child processes for work with a cost that callers control. Limited in number, memory and time."""

from stoker.base.workers.pool import WorkerDeadlineError, WorkerError, WorkerMemoryError, WorkerPool

__all__ = ["WorkerDeadlineError", "WorkerError", "WorkerMemoryError", "WorkerPool"]
