"""Made-up records of TensorRT plans, for the look of a report: nothing was built, and no figure was measured."""

from __future__ import annotations

from plansmith.compilers.trt.layers import summarise
from plansmith.records.engine import (
    BuildCheck,
    BuildSpec,
    Engine,
    Gpu,
    OptimizationProfile,
    Plan,
    PlanLayer,
    PlanTensor,
)
from plansmith.records.model import EngineKind, InputRange, Precision, SpeedRatio
from plansmith.records.validation import (
    Against,
    BaselineSpeed,
    Corner,
    CornerComparison,
    PlanSpeed,
    Tolerance,
    ValidationReport,
)
from plansmith.report.verdict import ReportFacts, facts_of

from . import examples, parts

L4 = Gpu(name="NVIDIA L4", compute_capability="8.9", memory_bytes=24 << 30)
A100 = Gpu(name="NVIDIA A100-SXM4-40GB", compute_capability="8.0", memory_bytes=40 << 30)
CORNERS: dict[str, dict[Corner, tuple[int, int]]] = {
    "latency": {"min": (1, 1), "opt": (1, 64), "max": (4, 256)},
    "throughput": {"min": (1, 1), "opt": (16, 64), "max": (32, 256)},
}
INPUTS = ("input_ids", "attention_mask")


def planned_release() -> ReportFacts:
    """A sentence encoder in FP16 with plans for two GPUs, of which one ran, and a layer that came out in FP32."""
    facts = facts_of(examples.int8_release())
    return facts.model_copy(
        update={"engine": engine(), "validation": validation(), "data": None, "lowered": None, "target": "triton-26.01"}
    )


def unrun_release() -> ReportFacts:
    """The same where no plan could run, and nothing is known of layers."""
    facts = planned_release()
    plan_engine = engine()
    plans = {c: plan.model_copy(update={"layer_summary": None, "tensors": ()}) for c, plan in plan_engine.plans.items()}
    unrun = {"at_corners": (), "speeds": (), "ran": ()}
    return facts.model_copy(
        update={
            "engine": plan_engine.model_copy(update={"plans": plans}),
            "validation": validation().model_copy(update=unrun),
        }
    )


def engine() -> Engine:
    base = parts.engine_of(Precision.FP16)
    profiles = tuple(
        OptimizationProfile(
            name=name,
            shapes=dict.fromkeys(INPUTS, InputRange(min=corners["min"], opt=corners["opt"], max=corners["max"])),
        )
        for name, corners in CORNERS.items()
    )
    return base.model_copy(
        update={
            "kind": EngineKind.TENSORRT,
            "options": {},
            "toolchain": {"tensorrt": "10.16.1.11"},
            "build": BuildSpec(profiles=profiles, optimization_level=4, memory_pools={"workspace": 4 << 30}),
            "build_check": check(),
            "plans": {"8.9": plan(L4, 43.2, 184.3), "8.0": plan(A100, 44.1, 212.0)},
        }
    )


def check() -> BuildCheck:
    plan_layers = layers()
    return BuildCheck(
        library="TensorRT-RTX 1.7.1.116",
        compute_capabilities=("8.9", "8.0"),
        in_place_of=("9.0",),
        precision=Precision.FP16,
        verdict="built",
        reason="",
        seconds=1.9,
        bytes=44 * parts.MEGABYTE,
        layers=summarise(plan_layers, [layer for layer in plan_layers if "pooler" in layer.name]),
        layers_file="layers.json",
        warnings=("Detected layernorm nodes in FP16.",),
    )


def plan(gpu: Gpu, megabytes: float, seconds: float) -> Plan:
    plan_layers = layers()
    return Plan(
        file=f"model_{gpu.compute_capability}.plan",
        bytes=int(megabytes * parts.MEGABYTE),
        gpu=gpu,
        tensorrt="10.16.1.11",
        builder="api",
        seconds=seconds,
        peak_host_bytes=3_900 * parts.MEGABYTE,
        peak_device_bytes=None if gpu is A100 else 2_210 * parts.MEGABYTE,
        timing_cache="812 entries known, 44 new",
        tensors=(
            *(PlanTensor(name=n, is_input=True, dtype="int64", dims=(-1, -1), format="linear") for n in INPUTS),
            PlanTensor(name="last_hidden_state", is_input=False, dtype="float32", dims=(-1, -1, 384), format="linear"),
        ),
        profile_bytes=(9 * parts.MEGABYTE, 96 * parts.MEGABYTE),
        layers_file="layers.json",
        log="build.log",
        reproduce="reproduce.sh",
        warnings=("Make sure input input_ids has Int64 binding.",) if gpu is L4 else (),
        layer_summary=summarise(plan_layers, [layer for layer in plan_layers if "pooler" in layer.name]),
    )


def layers() -> list[PlanLayer]:
    named = [
        *((f"/encoder/layer.{n}/attention/self/MatMul_myl0_{n}", "gemm", "float16", 0.041) for n in range(6)),
        *((f"__myl_FcAddGelu_myl0_{n}", "gemm", "float16", 0.062 + n / 1000) for n in range(12)),
        *((f"__myl_MeanSubMulMeanAddSqrtDivMulAdd_myl0_{n}", "kgen", "float16", 0.011) for n in range(13)),
        ("/pooler/dense/Gemm_myl0_44", "gemm", "float32", 0.038),
        ("Reformatting CopyNode for Output Tensor 0 to last_hidden_state", "Reformat", "float32", 0.009),
    ]
    tactic = "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_stage4_warpsize2x2x1_tensor16x8x16"
    return [
        PlanLayer(
            name=name,
            kind=kind,
            inputs=(),
            dtypes=(dtype,),
            tactic=tactic if kind == "gemm" else "",
            computes=kind == "gemm",
            operands=dtype if kind == "gemm" else "",
            milliseconds=took,
        )
        for name, kind, dtype, took in named
    ]


def corner(profile: str, name: Corner, against: Against, error: float) -> CornerComparison:
    shape = (*CORNERS[profile][name], 384)
    measured = {"max_relative": error, "quantile_relative": error / 5, "min_cosine": 1 - error / 2000}
    result = parts.comparison("last_hidden_state", f"{name} of profile {profile!r}", shape, 0)
    return CornerComparison(
        plan="8.9", profile=profile, corner=name, against=against, found=result.model_copy(update=measured)
    )


def ratio(value: float, spread: float) -> SpeedRatio:
    return SpeedRatio(
        ratio=value, low=value - spread, high=value + spread, repeats=16, setting="made up", verdict="faster"
    )


def speed(profile: str, scale: float) -> PlanSpeed:
    gpu = "PyTorch 2.15.0, NVIDIA L4, TF32 on, inputs on the device, waited for after every run, no CUDA graphs"
    batch, length = CORNERS[profile]["opt"]
    return PlanSpeed(
        plan="8.9",
        profile=profile,
        precision=Precision.FP16,
        shapes=", ".join(f"{name} {batch}x{length}" for name in INPUTS),
        median_ms=0.412 * scale,
        p95_ms=0.431 * scale,
        p99_ms=0.502 * scale,
        repeats=1000,
        setting="no CUDA graphs, no spin wait, transfers not counted",
        baselines=(
            BaselineSpeed(
                kind="eager", precision=Precision.FP32, setting=gpu, speed=ratio(6.41, 0.12), median_ms=2.64 * scale
            ),
            BaselineSpeed(
                kind="torch.compile",
                precision=Precision.FP32,
                setting=gpu,
                problem="InvalidCxxCompiler: No working C++ compiler found",
            ),
            BaselineSpeed(
                kind="plan",
                precision=Precision.FP32,
                setting="no CUDA graphs, no spin wait, transfers not counted",
                speed=ratio(1.71, 0.03),
                median_ms=0.705 * scale,
            ),
        ),
    )


def validation() -> ValidationReport:
    tolerance = Tolerance(max_relative=0.1, quantile_relative=0.02, min_cosine=0.9999, min_mean_cosine=0.99999)
    corners = tuple(
        corner(profile, name, against, (0.0021 if against == "lowered" else 0.0064) * (1 + place))
        for profile, names in CORNERS.items()
        for place, name in enumerate(names)
        for against in ("lowered", "fp32")
    )
    shapes = tuple(
        parts.comparison("last_hidden_state", case, (*sizes, 384), 0).model_copy(
            update={"max_relative": 0.0051, "quantile_relative": 0.0011, "min_cosine": 0.9999971}
        )
        for case, sizes in parts.SHAPES.items()
    )
    return ValidationReport(
        verdict="passed",
        reference="PyTorch 2.15.0, FP32",
        candidate="TensorRT 10.16.1.11 on NVIDIA L4, fp16",
        precision=Precision.FP16,
        data=parts.TEXTS,
        evidence="given",
        tolerances={"last_hidden_state": tolerance},
        comparisons=shapes,
        ran=("8.9",),
        at_corners=corners,
        speeds=(speed("latency", 1.0), speed("throughput", 7.3)),
    )
