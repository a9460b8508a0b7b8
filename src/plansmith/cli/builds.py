"""What the build of a TensorRT plan would be told, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plansmith.units import bytes_in_words

if TYPE_CHECKING:
    from plansmith.engines import BuildSpec, OptimizationProfile
    from plansmith.plan_outlook import BuildOutlook

_SAID = {"profiles", "memory_pools", "optimization_level", "tf32"}


def build_lines(outlook: BuildOutlook) -> Iterator[str]:
    """The build spec, what is not known yet, and the call of trtexec, ready to be copied."""
    kinds = ", ".join(f"{gpu.name} (compute capability {gpu.compute_capability})" for gpu in outlook.gpus)
    yield f"TensorRT {outlook.tensorrt} of {outlook.target}, for {kinds or 'a GPU that is not named yet'}"
    yield f"  {'precision':<21}{outlook.precision}, as the graph has it: plans are strongly typed"
    for profile in outlook.spec.profiles:
        yield from _profile_lines(profile)
    if not outlook.spec.profiles:
        yield f"  {'profiles':<21}none"
    for name, value in _told(outlook.spec):
        yield f"  {name:<21}{value}"
    yield from (f"  note: {note}" for note in outlook.notes)
    yield f"The same by hand, in {outlook.containers}:"
    yield outlook.shell_line
    yield f"Its speed by trtexec, alike for every TensorRT ({outlook.switches}), on random inputs unless --loadInputs:"
    yield from outlook.timing_lines


def _profile_lines(profile: OptimizationProfile) -> Iterator[str]:
    head = f"profile {profile.name}"
    for name, shape in (profile.shapes | profile.values).items():
        yield f"  {head:<21}{name} {shape}"
        head = ""


def _told(spec: BuildSpec) -> Iterator[tuple[str, str]]:
    """What differs from TensorRT's own defaults, and what people ask for most."""
    pools = spec.memory_pools
    limits = ", ".join(f"{pool} {bytes_in_words(size)}" for pool, size in pools.items())
    yield "memory pools", limits or "as much as the GPU has"
    yield "optimization level", str(spec.optimization_level)
    yield "TF32", "yes" if spec.tf32 else "no"
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name not in _SAID and value != field.get_default(call_default_factory=True):
            yield name.replace("_", " "), _words(value)


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
