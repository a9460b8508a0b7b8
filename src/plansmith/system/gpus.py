"""The GPUs that a program started here would see, asked of the driver; and a lock for each, to build on it alone.

NVML tells of GPUs without making a context on them (https://docs.nvidia.com/deploy/nvml-api). Its order is not CUDA's,
so that a GPU is always given to a child by its UUID, which makes it that child's number 0.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plansmith.errors import EnvironmentFault
from plansmith.records.engine import Gpu
from plansmith.system.files import Waiting
from plansmith.system.locks import locked_by_all

LOCKS_VARIABLE = "PLANSMITH_GPU_LOCKS"
"""Names another folder for the locks, such as one that containers on a GPU share."""

_LOCKS = Path("/tmp/plansmith-gpus")  # noqa: S108 - shared by all users, whatever their TMPDIR; opened with care
_LIBRARY = "libnvidia-ml.so.1"
_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class Card:
    """A GPU of this machine, and the MIG devices that it is divided into.

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
        """What CUDA can run on."""
        return self.parts if self.divided else (self.gpu,)


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """The GPUs, or MIG devices, that CUDA may use here, numbered in order; none without a driver.

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
    """What makes one GPU a child's only one, its number 0."""
    return {"CUDA_VISIBLE_DEVICES": gpu.uuid}


@contextmanager
def held(gpu: Gpu, waiting: Waiting = lambda _: None) -> Iterator[None]:
    """Have a GPU of this machine alone among all who build plans, whoever they are.

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
    """Bytes in use of each GPU, by all programs on it.

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
    """While its `with` block lasts, sees how much of a GPU's memory is used beyond what was at the beginning.

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
    """What CUDA_VISIBLE_DEVICES leaves of a machine's GPUs, in its order.

    Numbers, UUIDs and beginnings of UUIDs; the first that is not there ends the list
    (https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html). All are of the
    first one's form, numbers are read like strtoul, and naming one twice leaves none, as PyTorch found
    (torch.cuda._parse_visible_devices). A number of a card in MIG mode stands for its first part.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [gpu for card in cards for gpu in card.usable]
    words = [word.strip() for word in named.split(",")]
    form = next((prefix for prefix in ("GPU-", "MIG-") if words[0].startswith(prefix)), "")
    chosen: list[Gpu] = []
    for word in words:
        found = _by_uuid(cards, word, form) if form else _by_number(cards, word)
        if found is None:
            break
        if found in chosen:
            return []
        chosen.append(found)
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
    """Numbers go by the bus or, by default, from the fastest on, which differs where the GPUs do."""
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
    """NVML, ready to be asked; None without a driver. What goes wrong in asking it is a fault of this machine's."""
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
