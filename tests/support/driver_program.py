"""A stand-in for the driver's program `nvidia-smi`, which prints files that a test writes."""

from pathlib import Path

UUID = "GPU-aaaaaaaa-0000-1111-2222-333333333333"
ROW = f"{UUID}, NVIDIA H100 80GB HBM3, 81559, 4, 580.95.05, Disabled"
"""A row as `--query-gpu=uuid,name,memory.total,memory.used,driver_version,mig.mode.current` prints
it.
"""


class DriverProgram:
    """The program in a folder for PATH. It sleeps first if the test says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "nvidia-smi"
        program.write_text(
            "#!/bin/sh\n"
            f'cd "{folder}"\n'
            "[ -e sleeps ] && exec sleep 600\n"
            'case "$1" in\n'
            "  --query-gpu=*) cat devices ;;\n"
            "  --query-compute-apps=*) cat processes ;;\n"
            "  -L) cat list ;;\n"
            "  -q) cat report ;;\n"
            "esac\n"
        )
        program.chmod(0o755)
        self.write(devices=ROW, processes="", list="", report="")

    def write(self, **outputs: str) -> None:
        """Sets the output of queries: `devices`, `processes`, `list`, `report`."""
        for name, output in outputs.items():
            (self.folder / name).write_text(f"{output}\n" if output else "")

    def sleeps(self) -> None:
        """Makes the program hang from now on."""
        (self.folder / "sleeps").touch()
