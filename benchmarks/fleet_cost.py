"""CPU seconds of a fleet of small models, beside as many single compiles.

    python -m benchmarks.fleet_cost [ROUNDS]

Twelve models with random weights, six of timm and six of transformers: each by a `plansmith compile` of its own, then
all by one `plansmith fleet run`, and by one with two jobs, each time from an empty cache. Without the served check.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import yaml
from benchmarks.compile_cost import MINILM
from benchmarks.measure import PLANSMITH, Comparison, Cost, compare, run

VISION = ("resnet18", "resnet26", "mobilenetv3_small_050", "regnetx_002", "vit_tiny_patch16_224", "convnext_atto")
TEXT_LAYERS = (1, 2, 3, 4, 5, 6)


def write_specs(folder: Path) -> list[Path]:
    """Write a spec for each model into a folder, and the configurations of the text models beside them."""
    models = {
        name.replace("_", "-"): {
            "source": f"timm:{name}",
            "shapes": {"pixel_values": "1x3x224x224:2x3x224x224:4x3x224x224"},
        }
        for name in VISION
    }
    for layers in TEXT_LAYERS:
        source = folder / f"text-{layers}"
        shutil.copytree(MINILM, source, ignore=shutil.ignore_patterns("*.safetensors", "*.bin", "*.onnx"))
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
        models[source.name] = {"source": f"hf:{source}", "shapes": {"input_ids": "1x8:4x32:8x64"}}
    specs = []
    for name, spec in models.items():
        specs.append(folder / f"{name}.yaml")
        specs[-1].write_text(yaml.safe_dump({"name": name, "random_weights": True, "check_served": False, **spec}))
    return specs


def main(rounds: int) -> list[Comparison]:
    costs: dict[str, list[Cost]] = {"singly": [], "fleet": [], "two jobs": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            specs = [str(spec) for spec in write_specs(folder)]
            alone = [run([*PLANSMITH, "compile", spec, "--artifacts", f"{folder}/alone", "--quiet"]) for spec in specs]
            costs["singly"].append(
                Cost(
                    sum(cost.cpu_seconds for cost in alone),
                    sum(cost.wall_seconds for cost in alone),
                    max(cost.peak_mib for cost in alone),
                )
            )
            for label, options in (("fleet", ()), ("two jobs", ("--jobs", "2"))):
                places = ("--artifacts", f"{folder}/{label}")
                costs[label].append(run([*PLANSMITH, "fleet", "run", *specs, *places, "--quiet", *options]))
    together = compare(costs["fleet"], costs["singly"], f"fleet of {len(specs)}", baseline="singly")
    return together + compare(costs["two jobs"], costs["fleet"], "the same, two jobs", baseline="one job")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
