"""The user-mode driver of a GPU starts inside all walls. A stand-in does what it is known to do."""

import errno
from pathlib import Path

import pytest

from stoker.sandbox import gpu_places, seccomp
from stoker.sandbox.openings import Wall
from tests.sandbox.support import Confinement, no_walls
from tests.support import driver

pytestmark = [
    no_walls,
    pytest.mark.skipif(not driver.COMPILER, reason="no compiler for the stand-in is installed"),
]
FAILURE = "cuInit: error 304 (OS call failed or operation not supported on this OS)"


@pytest.fixture
def with_driver(confinement: Confinement) -> Confinement:
    library = driver.compiled(confinement.folder)
    confinement.environment["LD_LIBRARY_PATH"] = str(library)
    return confinement


def test_it_starts_behind_all_walls_and_each_alone(with_driver: Confinement) -> None:
    diagnosis = with_driver.ask("driver", alone=True)
    assert (diagnosis["problem"], diagnosis["openings"]) == ("", [])
    assert {*diagnosis["alone"].values()} == {""}


def test_it_does_not_start_without_its_threads_names(with_driver: Confinement) -> None:
    """Error 304 of an H100, whose cause no message named."""
    diagnosis = with_driver.ask("driver", without_names=True, alone=True)
    assert diagnosis["problem"] == FAILURE
    assert [wall for wall, why in diagnosis["alone"].items() if why] == [Wall.FILES]
    (opening,) = diagnosis["openings"]
    assert opening == {"wall": Wall.FILES, "item": "/proc/self/task", "is_written": True}


def test_it_does_not_start_in_a_replica_on_the_cpu(with_driver: Confinement) -> None:
    """Its library is in a folder that only replicas on a GPU may read, and it has no devices."""
    outcome = with_driver.ask("driver", gpu=False, once=True)
    assert "libcuda.so.1" in outcome["text"]
    assert outcome["bare"] == ""


def test_a_replica_on_the_cpu_cannot_write_to_proc(confinement: Confinement) -> None:
    outcome = confinement.ask("write", "/proc/self/comm", gpu=False, once=True)
    assert outcome["text"].startswith(("PermissionError", "OSError"))


def test_a_file_that_another_release_needs(with_driver: Confinement) -> None:
    path = with_driver.folder / "newer" / "capabilities"
    path.parent.mkdir()
    path.write_text("")
    with_driver.environment["CUDA_STANDIN_READS"] = str(path)
    assert with_driver.openings("driver") == [[Wall.FILES, str(path), False]]


def test_a_call_that_another_release_needs(with_driver: Confinement) -> None:
    with_driver.environment["CUDA_STANDIN_CALLS"] = str(seccomp.KEYCTL)
    assert with_driver.openings("driver") == [[Wall.SYSTEM_CALLS, "keyctl", False]]


def test_a_driver_that_hangs(with_driver: Confinement) -> None:
    with_driver.environment["CUDA_STANDIN_HANGS"] = "1"
    diagnosis = with_driver.ask("driver", timeout_s=2)
    assert diagnosis["bare_problem"] == "no answer within 2 s"
    assert diagnosis["openings"] == []


class TestPlaces:
    def test_only_devices_that_compute(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = (
            *("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps"),
            *("nvidia-modeset", "nvidia-nvswitch0", "nvidia-nvlink", "kfd-other", "null", "sda"),
        )
        devices = [Path("/dev", name) for name in names]
        monkeypatch.setattr(Path, "iterdir", lambda _: iter(devices))
        gpu_places.gpus.cache_clear()
        try:
            assert [device.name for device in gpu_places.gpus()] == [*names[:6]]
            devices.append(Path("/dev/kfd"))
            gpu_places.gpus.cache_clear()
            assert gpu_places.gpus()[-2:] == (Path("/dev/kfd"), Path("/dev/dri"))
        finally:
            monkeypatch.undo()
            gpu_places.gpus.cache_clear()

    def test_groups_of_devices(self, tmp_path: Path) -> None:
        for name, mode in (("closed", 0o660), ("open", 0o666), ("owners", 0o600)):
            path = tmp_path / name
            path.write_text("")
            path.chmod(mode)
        own_group = (tmp_path / "closed").stat().st_gid
        expected = [own_group] if own_group else []
        assert gpu_places.groups((tmp_path,)) == expected
        assert gpu_places.groups((tmp_path / "open", tmp_path / "gone")) == []

    def test_libraries_follow_the_loader(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, linked = tmp_path / "mounted", tmp_path / "lib64"
        for folder in (real, linked):
            folder.mkdir()
        for name in ("libcuda.so.580.95", "libnvidia-ml.so.1", "notes.txt"):
            (real / name).write_text("")
        (linked / "libcuda.so.1").symlink_to(real / "libcuda.so.580.95")
        (linked / "libnvidia-ml.so.1").symlink_to(real / "libnvidia-ml.so.1")
        (linked / "secret.pem").write_text("")
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:relative:{linked}")
        gpu_places.libraries.cache_clear()
        try:
            libraries = {path for path in gpu_places.libraries() if path.is_relative_to(tmp_path)}
        finally:
            monkeypatch.undo()
            gpu_places.libraries.cache_clear()
        assert libraries == {
            linked / "libcuda.so.1",
            linked / "libnvidia-ml.so.1",
            real / "libcuda.so.580.95",
            real / "libnvidia-ml.so.1",
        }

    def test_a_child_needs_all_of_proc_unless_it_is_root(self) -> None:
        task, proc = [Path("/proc/self/task")], [Path("/proc")]
        assert gpu_places.thread_names(has_child=False, is_root=False) == task
        assert gpu_places.thread_names(has_child=True, is_root=False) == proc
        assert gpu_places.thread_names(has_child=True, is_root=True) == task

    def test_calls_that_a_kernel_may_lack(self) -> None:
        """They fail as on such a kernel."""
        assert seccomp.error_of("pidfd_open") == errno.ENOSYS
        assert seccomp.error_of("kcmp") == errno.ENOSYS
        assert seccomp.error_of("ptrace") == errno.EPERM
