"""GPUs visible to a child process, queried from the driver; and a lock per GPU for exclusive builds.

NVML tells of GPUs without making a context on them (https://docs.nvidia.com/deploy/nvml-api). Its order is not CUDA's,
so that a GPU is always given to a child by its UUID, which makes it that child's number 0.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.errors import EnvironmentFault
from plansmith.records.engine import Gpu
from plansmith.system.files import Waiting, is_named, take_lock

CPU_INFO = Path("/proc/cpuinfo")
_VNNI = {"avx512_vnni", "avx_vnni"}
_X86 = {"x86_64", "amd64", "i386", "i486", "i586", "i686", "x86"}

LOCKS_VARIABLE = "PLANSMITH_GPU_LOCKS"
"""Names another folder for the locks, such as one that containers on a GPU share."""

_LOCKS = Path("/tmp/plansmith-gpus")  # noqa: S108 - shared by all users, whatever their TMPDIR; opened with care
_LIBRARY = "libnvidia-ml.so.1"
_SAMPLE_SECONDS = 0.1


def sums_bytes_exactly(described: str | None = None, machine: str | None = None) -> bool:
    """Whether int8 dot products are exact: on x86 if the CPU reports VNNI, and on all other processors.

    x86 without VNNI adds pairs of products in 16 bits, which saturates. One that does not say what it has, as outside
    of Linux, is not taken to have it.

    Args:
        described: the text of /proc/cpuinfo; read when None.
        machine: the kind of processor; that of this machine when None.
    """
    if described is None:
        described = CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.exists() else ""
    flags = next((line.split() for line in described.splitlines() if line.startswith("flags")), [])
    is_x86 = (platform.machine() if machine is None else machine).lower() in _X86
    return not _VNNI.isdisjoint(flags) if flags or is_x86 else True


@contextmanager
def locked_by_all(path: Path, waiting: Waiting = lambda _: None) -> Iterator[None]:
    """Hold a lock that any user of this machine may take, together with the programs started meanwhile.

    The kernel frees it when this process and each program that inherited it (`subprocess` with `close_fds=False`) are
    dead.

    Args:
        path: the lock file; made when missing, like the folder right above it.
        waiting: as for `locked`.
    """
    while True:
        with os.fdopen(_open_for_everybody(path), "rb") as stream:
            take_lock(stream, waiting)
            if is_named(stream, path):
                os.set_inheritable(stream.fileno(), True)
                yield
                return
            # Who tidies up /tmp took the file away while this waited: others lock a new one.


def _open_for_everybody(path: Path) -> int:
    """Open a lock file that every user may lock; its mode is set only when this user creates it.

    A file of another user's in a folder like /tmp must be opened without O_CREAT (Linux,
    Documentation/admin-guide/sysctl/fs.rst, "protected_regular").
    """
    with suppress(FileExistsError):
        path.parent.mkdir()
        path.parent.chmod(0o1777)
    while True:
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            with suppress(PermissionError):
                os.utime(path)  # young again, for who tidies up /tmp
            return descriptor
        with suppress(FileExistsError):
            file_number = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(file_number, 0o666)
            os.close(file_number)


@dataclass(frozen=True)
class Card:
    """A GPU of this machine with its MIG devices.

    Args:
        gpu: the whole of it.
        parts: MIG devices by their UUIDs.
        names: the older names of the same devices, MIG-<UUID of the GPU>/<GPU instance>/<compute instance>.
        divided: it is in MIG mode, and only its parts can be used.
    """

    gpu: Gpu
    parts: tuple[Gpu, ...] = ()
    names: tuple[str, ...] = ()
    divided: bool = False

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """The devices that CUDA can use."""
        return self.parts if self.divided else (self.gpu,)


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Return the GPUs or MIG devices visible to CUDA, in order; none without a driver.

    Args:
        environment: with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, where they are set.

    Raises:
        EnvironmentFault: the driver does not answer, its Python package is not installed, or nothing but CUDA knows
            which GPUs are meant.
    """
    with _driver() as nvml:
        cards = _cards(nvml) if nvml is not None else []
    chosen = chosen_gpus(cards, environment)
    return tuple(gpu.model_copy(update={"index": number}) for number, gpu in enumerate(chosen))


def environment_of(gpu: Gpu) -> dict[str, str]:
    """Return the environment variables that make one GPU a child process's only one, number 0."""
    return {"CUDA_VISIBLE_DEVICES": gpu.uuid}


@contextmanager
def lock_gpu(gpu: Gpu, waiting: Waiting = lambda _: None) -> Iterator[None]:
    """Hold a GPU exclusively among all processes that build plans, of any user.

    The lock dies with this process, and with the programs that it starts meanwhile with `close_fds=False`.

    Args:
        gpu: one that is here.
        waiting: told before this waits for another process, with its number where the kernel names one; what it
            raises ends the attempt.

    Raises:
        EnvironmentFault: no lock can be taken.
    """
    if not gpu.uuid:
        raise ValueError(f"{gpu.name} is a kind of GPU and none of this machine")
    folder = Path(os.environ.get(LOCKS_VARIABLE) or _LOCKS)
    with ExitStack() as lock:
        try:
            lock.enter_context(locked_by_all(folder / gpu.uuid.replace("/", "_"), waiting))
        except OSError as error:
            if not str(error.filename).startswith(str(folder)):  # what `waiting` raised
                raise
            raise EnvironmentFault(
                f"the lock of GPU {gpu.uuid} cannot be taken: {error.filename}: {error.strerror}",
                remedy=f"set {LOCKS_VARIABLE} to a folder that all who build on this machine can write",
            ) from error
        yield


def used_memory(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Return the used memory of each GPU in bytes, by all programs on it.

    Raises:
        EnvironmentFault: the driver does not tell.
    """
    if not gpus:
        return ()
    with _driver() as nvml:
        if nvml is None:
            raise EnvironmentFault("no NVIDIA driver answers any more", remedy="nvidia-smi says more")
        handles = [nvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode()) for gpu in gpus]
        return tuple(int(nvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)


class MemoryWatch:
    """GPU memory watch: measures the memory used within its `with` block beyond that at its start.

    `peak_bytes` is the most that was seen, of all programs on the GPU; None where the driver does not tell.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.peak_bytes: int | None = None
        self._gpu = gpu
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._begun = threading.Event()

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            with _driver() as nvml:
                if nvml is not None:
                    self._sample(nvml)
        except EnvironmentFault:
            pass  # whoever needs the GPU says what is wrong with it
        finally:
            self._begun.set()

    def _sample(self, nvml: Any) -> None:
        device = nvml.nvmlDeviceGetHandleByUUID(self._gpu.uuid.encode())
        before = nvml.nvmlDeviceGetMemoryInfo(device).used
        self.peak_bytes = 0
        self._begun.set()
        ended = False
        while not ended:
            ended = self._stop.wait(_SAMPLE_SECONDS)
            self.peak_bytes = max(self.peak_bytes, nvml.nvmlDeviceGetMemoryInfo(device).used - before)


def chosen_gpus(cards: Sequence[Card], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs selected by CUDA_VISIBLE_DEVICES, in its order.

    Numbers, UUIDs and beginnings of UUIDs; the first that is not there ends the list
    (https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html). All are of the
    first one's form, numbers are read like strtoul, and naming one twice leaves none, as PyTorch found
    (torch.cuda._parse_visible_devices). A number of a card in MIG mode stands for its first part.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [gpu for card in cards for gpu in card.usable]
    entries = [word.strip() for word in named.split(",")]
    form = next((prefix for prefix in ("GPU-", "MIG-") if entries[0].startswith(prefix)), "")
    chosen: list[Gpu] = []
    for word in entries:
        choice = _by_uuid(cards, word, form) if form else _by_number(cards, word)
        if choice is None:
            break
        if choice in chosen:
            return []
        chosen.append(choice)
    if not form:
        _require_known_order(cards, chosen, environment)
    return chosen


def _by_uuid(cards: Sequence[Card], word: str, form: str) -> Gpu | None:
    if not word.startswith(form):
        return None
    if form == "GPU-":
        of = [card for card in cards if card.gpu.uuid.startswith(word)]
        return next(iter(of[0].usable), None) if len(of) == 1 else None
    named = [
        part
        for card in cards
        for number, part in enumerate(card.parts)
        if part.uuid.startswith(word) or word in card.names[number : number + 1]
    ]
    return named[0] if len(named) == 1 else None


def _by_number(cards: Sequence[Card], word: str) -> Gpu | None:
    digits = re.match(r"\+?(\d+)", word)
    if digits is None or int(digits[1]) >= len(cards):
        return None
    return next(iter(cards[int(digits[1])].usable), None)


def _require_known_order(cards: Sequence[Card], chosen: Sequence[Gpu], environment: Mapping[str, str]) -> None:
    """Require a known device order.

    CUDA numbers GPUs fastest first by default, which differs from bus order on mixed GPUs.
    """
    alike = len({card.gpu.name for card in cards}) <= 1
    if alike or len(chosen) in {0, len(cards)} or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return
    raise EnvironmentFault(
        f"CUDA_VISIBLE_DEVICES={environment['CUDA_VISIBLE_DEVICES']} does not say which of the different GPUs of this"
        " machine is meant: CUDA numbers them by its own guess of their speed",
        remedy="export CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by their UUIDs (nvidia-smi -L)",
    )


@contextmanager
def _driver() -> Iterator[Any]:
    """An initialized NVML; None without a driver. NVML errors are faults of this machine."""
    try:
        import pynvml
    except ImportError as error:
        if not _has_library():
            yield None
            return
        raise EnvironmentFault(
            "an NVIDIA driver is here, but nvidia-ml-py, which asks it, is not installed",
            remedy="pip install 'plansmith[tensorrt]'",
        ) from error
    try:
        with ExitStack() as ready:
            try:
                pynvml.nvmlInit()
                ready.callback(pynvml.nvmlShutdown)
            except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
                yield None
                return
            yield pynvml
    except pynvml.NVMLError as error:
        raise EnvironmentFault(
            f"the NVIDIA driver does not answer: {error}",
            remedy="nvidia-smi says more; load or reinstall the driver, in a container: docker run --gpus all",
        ) from error


def _has_library() -> bool:
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def _cards(nvml: Any) -> list[Card]:
    driver = nvml.nvmlSystemGetDriverVersion()
    devices = (nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount()))
    return [_card(nvml, device, driver) for device in devices]


def _card(nvml: Any, device: Any, driver: str) -> Card:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)

    def described(handle: Any) -> Gpu:
        return Gpu(
            name=nvml.nvmlDeviceGetName(handle),
            compute_capability=f"{major}.{minor}",
            memory_bytes=_memory_bytes(nvml, handle),
            uuid=nvml.nvmlDeviceGetUUID(handle),
            driver=driver,
        )

    whole = described(device)
    if not _is_divided(nvml, device):
        return Card(whole)
    parts, names = [], []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, number)
        except nvml.NVMLError_NotFound:  # a place for a part, and none in it
            continue
        parts.append(described(handle))
        instances = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle)
        names.append(f"MIG-{whole.uuid}/{instances[0]}/{instances[1]}")
    return Card(whole, tuple(parts), tuple(names), divided=True)


def _is_divided(nvml: Any, device: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(device)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):  # an older GPU, an older driver
        return False


def _memory_bytes(nvml: Any, device: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(device).total)
    except nvml.NVMLError_NotSupported:  # it has none of its own, and uses the machine's
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
