"""Child processes for work whose cost a caller decides: bounded in number, memory and time."""

from stoker.base.workers.pool import WorkerDeadlineError, WorkerError, WorkerMemoryError, WorkerPool

__all__ = ["WorkerDeadlineError", "WorkerError", "WorkerMemoryError", "WorkerPool"]
