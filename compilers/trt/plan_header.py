"""Plan header: facts from the first bytes of a TensorRT plan, read without TensorRT.

Their places are those that NVIDIA's own program reads for `trtexec --getPlanVersionOnly`
(samples/common/sampleEngines.cpp of github.com/NVIDIA/TensorRT, releases 10.16 and 11.1), and hold for plans of
TensorRT 8.6 and later: "ftrt", the version of the serialisation, and in bytes 24 to 27 the four numbers of TensorRT.
What lies between them, such as the GPU, is laid out nowhere and left alone.

An engine of TensorRT-RTX begins with "vtrt", and has its four numbers at the same place and a mask of its GPUs in bytes
32 to 35, as those show that its version 1.7.1 builds for one GPU and another.
"""

from __future__ import annotations

from pathlib import Path

from plansmith.errors import EngineError
from plansmith.records.model import Record

HEADER_BYTES = 28
MAGIC = b"ftrt"
_RTX = b"vtrt"
_RTX_MASK = slice(32, 36)
_RTX_CAPABILITIES = {1: "7.5", 2: "8.0", 4: "8.6", 8: "8.9", 16: "12.0", 32: "12.1"}

_SERIALIZATION = 0
_AT_VERSION = slice(24, 28)
_FIRST_MAJOR = 8
_AGAIN = "build it again, or copy it again from where it was built"


class PlanHeader(Record):
    """Plan header: `tensorrt` is the version that built the plan, as "10.16.1.11".

    `serialization`: its format version.
    """

    serialization: int
    tensorrt: str


def read_header(path: Path) -> PlanHeader:
    """The header of a plan file.

    Raises:
        EngineError: the file cannot be read, is too short, is no plan but an engine of TensorRT-RTX or anything else,
            or has a header that no TensorRT writes.
    """
    try:
        with path.open("rb") as stream:
            first = stream.read(_RTX_MASK.stop)
    except OSError as error:
        raise EngineError(f"cannot read the plan {path}: {error.strerror}", remedy=_AGAIN) from error
    if len(first) < HEADER_BYTES and MAGIC.startswith(first[: len(MAGIC)]):
        raise EngineError(f"the plan {path} is cut off: it has {len(first)} bytes in all", remedy=_AGAIN)
    if first.startswith(_RTX):
        raise EngineError(
            f"{path} is an engine of TensorRT-RTX {_dotted(tuple(first[_AT_VERSION]))}{_gpus_of(first)}, and no plan of"
            " TensorRT",
            remedy="build a plan with the target's TensorRT: Triton's TensorRT backend loads no other engine",
        )
    if not first.startswith(MAGIC):
        raise EngineError(
            f"{path} is no plan of TensorRT 8.6 or later: it does not begin with {MAGIC.decode()!r}",
            remedy="name the file that TensorRT wrote; a plan inside of another file has to be taken out of it first",
        )
    serialization = int.from_bytes(first[4:8], "little")
    numbers = tuple(first[_AT_VERSION])
    if serialization != _SERIALIZATION or numbers[0] < _FIRST_MAJOR:
        raise EngineError(
            f"the header of {path} was altered, or is of a TensorRT that plansmith does not know: serialisation"
            f" {serialization}, TensorRT {_dotted(numbers)}",
            remedy=f"{_AGAIN}; for a newer TensorRT, take a newer plansmith",
        )
    return PlanHeader(serialization=serialization, tensorrt=_dotted(numbers))


def _gpus_of(first: bytes) -> str:
    """A phrase with the compute capabilities of a TensorRT-RTX engine; empty where none is known."""
    mask = int.from_bytes(first[_RTX_MASK], "little")
    capabilities = [capability for bit, capability in _RTX_CAPABILITIES.items() if mask & bit]
    return f" for compute capability {', '.join(capabilities)}" if capabilities else ""


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
