"""A stand-in for NVIDIA's user-mode driver, compiled for a test, and an `nvidia-smi`."""

import shutil
import subprocess
from pathlib import Path

COMPILER = shutil.which("cc") or shutil.which("gcc")
_SOURCE = Path(__file__).with_name("driver.c")
_PROGRAM = """\
#!/bin/sh
case "$1" in
*driver_version*) echo '580.95.05, Stand-in, 81559' ;;
*uuid*) echo 'GPU-00000000, Stand-in, 81559' ;;
*) echo 512 ;;
esac
"""


def compiled(folder: Path) -> Path:
    """Compiles the library, and returns its folder. Its real file is elsewhere, as in containers
    that mount a driver.
    """
    assert COMPILER
    real, linked = folder / "mounted", folder / "lib64"
    real.mkdir()
    linked.mkdir()
    library = real / "libcuda.so.580.95.05"
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-pthread"], check=True
    )
    (linked / "libcuda.so.1").symlink_to(library)
    return linked


def program(folder: Path) -> Path:
    """Creates an `nvidia-smi` that lists one device, and returns its folder."""
    path = folder / "bin" / "nvidia-smi"
    path.parent.mkdir()
    path.write_text(_PROGRAM)
    path.chmod(0o755)
    return path.parent
