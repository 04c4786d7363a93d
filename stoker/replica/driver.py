"""Devices and contexts of CUDA through the driver's library (libcuda), without torch.

https://docs.nvidia.com/cuda/cuda-driver-api/
"""

import ctypes

from stoker.replica.checkpoint import DriverError

LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76
"""Numbers of the device attributes with the compute capability."""
_BLOCK_BYTES = 1 << 20


class Cuda:
    """Functions of libcuda. The constructor raises `OSError` if the library is missing. All methods
    raise `DriverError`.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)

    def version(self) -> tuple[int, int]:
        """Returns the newest CUDA version that the driver supports. Does not initialise CUDA."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def start(self) -> None:
        """Initialises CUDA in this process. Processes that it forks later cannot use CUDA."""
        self._call("cuInit", 0)

    def count(self) -> int:
        number = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def capability(self, index: int) -> tuple[int, int]:
        device, numbers = self._device(index), (ctypes.c_int(), ctypes.c_int())
        for number, attribute in zip(numbers, (_MAJOR, _MINOR), strict=True):
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        return numbers[0].value, numbers[1].value

    def open_context(self, index: int) -> None:
        """Creates the device's primary context and keeps it. Writes to the device's memory and
        reads the value back.
        """
        context, address = ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(index))
        self._call("cuCtxSetCurrent", context)
        size = ctypes.c_size_t(_BLOCK_BYTES)
        self._call("cuMemAlloc_v2", ctypes.byref(address), size)
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(7), size)
        content = ctypes.create_string_buffer(_BLOCK_BYTES)
        self._call("cuMemcpyDtoH_v2", content, address, size)
        self._call("cuMemFree_v2", address)
        if content.raw != b"\7" * _BLOCK_BYTES:
            raise DriverError("the device's memory has another content than was written")

    def _device(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        return device

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise DriverError(f"the driver is too old: it has no {name}")
        code: int = function(*arguments)
        if code:
            raise DriverError(f"{name}: error {code} ({self._text(code)})")

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"unknown").decode(errors="replace")


def context_problem(index: int = 0) -> str:
    """Returns why this process cannot use CUDA on a device. Empty if it can. For forked children:
    the process keeps the context.
    """
    try:
        driver = Cuda()
        driver.start()
        driver.open_context(index)
    except (OSError, DriverError) as error:
        return str(error)
    return ""
