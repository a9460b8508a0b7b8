"""One table of figures of all plans that a run built, printed at its end and kept in artifacts/gpu-figures.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .compiles import Release
from .machine import Device

FILE = Path(__file__).parents[2] / "artifacts" / "gpu-figures.md"
HEADINGS = (
    "model",
    "precision",
    "builder",
    "build s",
    "timing cache",
    "plan MiB",
    "peak GPU MiB",
    "opt shapes",
    "median ms",
    "vs eager",
    "vs torch.compile",
    "vs next precision",
    "worst cosine to FP32",
)


class Figures:
    """Collects rows; the table names the GPU and the versions once."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, ...]] = []
        self._title = ""

    def add(self, name: str, release: Release, device: Device) -> None:
        """Take a row from a release's manifest; an empty cell is a figure that the manifest does not have."""
        manifest, plan = release.manifest, release.plan
        validation = manifest["validation"]
        self._title = f"{device.name} ({device.capability}), driver {device.driver}, TensorRT {plan['tensorrt']}"
        cosines = [c["found"]["min_cosine"] for c in validation["at_corners"] if c["against"] == "fp32"]
        for speed in validation["speeds"]:
            ratios = {baseline["kind"]: baseline for baseline in speed["baselines"]}
            row = (
                name,
                manifest["engine"]["precision"],
                plan["builder"],
                f"{plan['seconds']:.0f}",
                plan["timing_cache"],
                _mebibytes(plan["bytes"]),
                _mebibytes(plan["peak_device_bytes"]),
                speed["shapes"],
                f"{speed['median_ms']:.3f}",
                *(_ratio(ratios.get(kind)) for kind in ("eager", "torch.compile", "plan")),
                f"{min(cosines):.6f}" if cosines else "",
            )
            self._rows.append(row)

    def table(self) -> str:
        """The table in Markdown; empty where there are no rows."""
        if not self._rows:
            return ""
        lines = [HEADINGS, ("---",) * len(HEADINGS), *self._rows]
        return "\n".join([f"# {self._title}", "", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"

    def write(self) -> None:
        """Keep the table; a run without rows leaves the last one."""
        if self._rows:
            FILE.parent.mkdir(exist_ok=True)
            FILE.write_text(self.table())


def _mebibytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:.1f}"


def _ratio(baseline: dict[str, Any] | None) -> str:
    if baseline is None or baseline["speed"] is None:
        return ""
    return f"{baseline['speed']['ratio']:.2f}"
