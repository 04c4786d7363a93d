"""Makes engines crash, hang or return wrong results at their first pass in the processes of a
test's server.

Python imports a module of this name at startup if the server's PYTHONPATH contains this folder.
PYTHONFAULTS names a file that describes the fault: `{"where": "trial" | "serving", "engines":
["bf16", "f32", "encoder", "torch"], "how": "sigfpe" | "sigsegv" | "hang" | "burn" | "deaf" | "grow"
| "wrong"}`. Each pass reads the file, so that one server suffices for all faults.

`{"forks": "why"}` makes the engine host report that forks cannot use CUDA, on a machine that seems
to have a GPU. `{"preloads": "why"}` makes it report that forks could not use CUDA after a preload.

`{"gpus": true}` makes the machine seem to have a GPU.
"""

import ctypes
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_PLAN = os.environ.get("PYTHONFAULTS", "")
_SIGNALS = {"sigfpe": signal.SIGFPE, "sigsegv": signal.SIGSEGV}


def _plan() -> Any:
    return json.loads(Path(_PLAN).read_text() or "{}")


def _fault(engine: str) -> str | None:
    """Returns the fault that is planned for this engine in this process, or None."""
    plan = _plan()
    here = "trial" if "stoker.replica.trial" in sys.modules else "serving"
    is_meant = plan.get("where") == here and engine in plan.get("engines", ())
    return plan["how"] if is_meant else None


def _faulty(engine: str, run: Any, lie: Any) -> Any:
    how = _fault(engine)
    if how in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[how])
    if how == "hang":
        time.sleep(3600)
    while how == "burn":
        pass
    if how == "deaf":
        # Sleeps in C and holds the interpreter's lock, so that no other thread runs.
        ctypes.PyDLL(None).sleep(3600)
    if how == "grow":
        memory = b"x" * (2 << 30)
        time.sleep(3600)
        del memory
    result = run()
    return lie(result) if how == "wrong" else result


def _language_models(module: Any) -> None:
    runner = module.OpenVinoRunner
    prepare, forward = runner.__init__, runner.forward

    def prepared(self: Any, folder: Path, *, precision: str, **others: Any) -> None:
        self.faulty = precision
        prepare(self, folder, precision=precision, **others)

    runner.__init__ = prepared
    runner.forward = lambda self, chunks: _faulty(
        self.faulty, lambda: forward(self, chunks), lambda logits: logits.flip(-1)
    )


def _torch(module: Any) -> None:
    _fault_passes(module.TorchRunner)


def _paged(module: Any) -> None:
    _fault_passes(module.PagedRunner)


def _fault_passes(runner: Any) -> None:
    forward = runner.forward
    runner.forward = lambda self, chunks: _faulty(
        "torch", lambda: forward(self, chunks), lambda logits: logits.flip(-1)
    )


def _encoders(module: Any) -> None:
    run = module.WholeGraph.__call__
    module.WholeGraph.__call__ = lambda self, call, batch: _faulty(
        "encoder",
        lambda: run(self, call, batch),
        lambda outputs: {name: value.flip(-1) for name, value in outputs.items()},
    )


def _trial(module: Any) -> None:
    # On every machine, independent of its processor.
    module._computes_in_bf16 = lambda: True


def _guard(module: Any) -> None:
    module.problem_of_forks = lambda: _plan().get("forks", "")
    module.problem_of_import = lambda run: _plan().get("preloads", "")


def _walls(module: Any) -> None:
    may_use_gpu = module.may_use_gpu
    module.may_use_gpu = lambda spec: may_use_gpu(spec) or bool(_plan().get("forks"))


def _gpus(module: Any) -> None:
    gpus = module.gpus
    module.gpus = lambda: (Path("/dev/nvidia0"),) if _plan().get("gpus") else gpus()


_CHANGES = {
    "stoker.models.llm.engines.openvino": _language_models,
    "stoker.models.llm.engines.torch": _torch,
    "stoker.models.llm.engines.paged.runner": _paged,
    "stoker.models.engines.openvino": _encoders,
    "stoker.replica.trial": _trial,
    "stoker.replica.cuda_guard": _guard,
    "stoker.replica.walls": _walls,
    "stoker.sandbox.gpu_places": _gpus,
}


class _Changing(importlib.abc.MetaPathFinder):
    """Import hook that changes a module after its normal import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        change = _CHANGES.pop(name, None)
        if change is None:
            return None
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = executed
        return spec


if _PLAN:
    sys.meta_path.insert(0, _Changing())
