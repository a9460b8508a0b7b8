"""Records that several examples of reports share."""

from __future__ import annotations

import math
from collections.abc import Iterator

from plansmith.records.engine import Engine
from plansmith.records.model import (
    AxisRange,
    Case,
    Component,
    DataSet,
    EngineKind,
    ExportAttempt,
    HighPrecisionNode,
    LayerError,
    OnnxModel,
    Precision,
    ReferenceSet,
    SampleSet,
    SourceModel,
    SpeedRatio,
    Tensor,
    Trial,
)
from plansmith.records.validation import OutputAgreement, OutputComparison, ValidationReport
from plansmith.report.verdict import ReportFacts

MEGABYTE = 1024 * 1024
SHAPES = {"traced": (2, 16), "untraced": (3, 37), "min": (1, 1), "opt": (8, 64), "max": (32, 256)}
TEXTS = "1,024 sentences of stsb-validation.csv"


def judged(facts: ReportFacts) -> ValidationReport:
    """What the gate said of facts that it said something of."""
    assert facts.validation is not None
    return facts.validation


def comparison(output: str, case: str, shape: tuple[int, ...], scale: int) -> OutputComparison:
    return OutputComparison(
        case=case,
        output=output,
        shape=shape,
        elements=math.prod(shape),
        magnitude=0.41,
        max_absolute=0.04 * scale,
        max_relative=0.098 * scale,
        quantile_absolute=0.02 * scale,
        quantile_relative=0.041 * scale,
        min_cosine=0.998 - 0.0021 * scale,
        variance=0.03,
        failures=(),
    )


def agreement(output: str, mean: float, least: float, *, same_neighbour: float | None) -> OutputAgreement:
    return OutputAgreement(
        output=output,
        samples=256,
        mean_cosine=mean,
        min_cosine=least,
        sqnr_db=19.7,
        kl=None,
        same_first=None,
        same_neighbour=same_neighbour,
        failures=(),
    )


def data_set(words: str) -> DataSet:
    def drawn(count: int, start: int) -> SampleSet:
        return SampleSet(
            cases=tuple(
                Case(name=f"{start}-{n}", axes={"batch": 8}, file=f"{start}-{n}.npz") for n in range(count // 8)
            ),
            rows=tuple((start + 389 * place) % 1024 for place in range(count)),
            digests=tuple(f"{place:064x}" for place in range(count)),
            labelled=True,
        )

    return DataSet(
        words=words,
        digest="5d41402abc4b2a76b9719d911017c5925d41402abc4b2a76b9719d911017c592",
        revision=None,
        available=1024,
        seed=0,
        real=True,
        guessed=False,
        metric="spearman",
        pooling="mean",
        calibration=drawn(128, 5),
        evaluation=drawn(256, 331),
    )


def source_model() -> SourceModel:
    return SourceModel(
        scheme="hf",
        location="sentence-transformers/all-MiniLM-L6-v2",
        revision="c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
        licence="apache-2.0",
        digest="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        random_weights=False,
        trust_remote_code=False,
    )


def onnx_model() -> OnnxModel:
    return OnnxModel(
        components=engine_of(Precision.FP32).components,
        axes={"batch": AxisRange(min=1, opt=8, max=32), "sequence": AxisRange(min=1, opt=64, max=256)},
        mask_input="attention_mask",
        exporter="torchscript",
        attempts=(
            ExportAttempt(exporter="dynamo", problem="a size of 16 is baked into /Reshape_3"),
            ExportAttempt(exporter="torchscript", problem=None),
        ),
        precision=Precision.FP32,
        reference=ReferenceSet(
            runtime="PyTorch 2.15.0, FP32",
            data=TEXTS,
            cases=tuple(
                Case(
                    name=name,
                    axes=dict(zip(("batch", "sequence"), sizes, strict=True)),
                    file=f"reference/{name}.npz",
                    in_range=name != "untraced",
                )
                for name, sizes in SHAPES.items()
            ),
        ),
    )


def engine_of(precision: Precision) -> Engine:
    ids = [Tensor(name=name, dtype="int64", dims=("batch", "sequence")) for name in ("input_ids", "attention_mask")]
    hidden = Tensor(name="last_hidden_state", dtype="float32", dims=("batch", "sequence", 384))
    component = Component(
        file="model.onnx", external_files=(), inputs=tuple(ids), outputs=(hidden,), opset=18, ir_version=9
    )
    return Engine(
        kind=EngineKind.ONNXRUNTIME,
        components={"model": component},
        precision=precision,
        options={"graph_optimization_level": "basic"},
        toolchain={"onnxruntime": "1.31.1", "onnx": "1.23.2"},
    )


def kept_nodes() -> Iterator[HighPrecisionNode]:
    for layer in range(6):
        for product in ("MatMul", "MatMul_1"):
            yield HighPrecisionNode(
                node=f"/encoder/layer.{layer}/attention/self/{product}",
                op_type="MatMul",
                reason="both inputs are activations: no weights to store",
            )
    for layer in (0, 3, 5):
        yield HighPrecisionNode(
            node=f"/encoder/layer.{layer}/output/dense/MatMul",
            op_type="MatMul",
            reason="sensitive: lowered alone it costs more than 0.001 of the mean cosine",
        )
    yield HighPrecisionNode(node="/pooler/dense/Gemm", op_type="Gemm", reason="the head")


def layer_errors() -> Iterator[LayerError]:
    for layer in range(6):
        for place, (name, lowered) in enumerate(
            (
                ("attention/self/query/MatMul", True),
                ("attention/self/key/MatMul", True),
                ("attention/self/value/MatMul", True),
                ("attention/self/MatMul", False),
                ("attention/self/Softmax", False),
                ("attention/self/MatMul_1", False),
                ("attention/output/dense/MatMul", True),
                ("attention/output/LayerNorm/LayerNormalization", False),
                ("intermediate/dense/MatMul", True),
                ("intermediate/Erf", False),
                ("output/dense/MatMul", layer not in {0, 3, 5}),
                ("output/LayerNorm/LayerNormalization", False),
            )
        ):
            noise = 9 * math.sin(1.7 * place + layer) + 1.9 * layer
            yield LayerError(
                node=f"/encoder/layer.{layer}/{name}",
                op_type=name.rpartition("/")[2].partition("_")[0],
                lowered=lowered,
                sqnr_db=41 - noise - (4 if lowered else 0),
            )


def trials() -> Iterator[Trial]:
    inaccurate = "mean cosine {} on the calibration samples, at least 0.99 wanted"
    figures: tuple[tuple[str, int, float, float, float, float | None], ...] = (
        ("FP32", 0, 86.7, 1.0, 1.0, 1.0),
        ("static, all operators, minmax", 118, 22.1, 0.3712, 0.0921, 2.62),
        ("static, MatMul only, minmax", 48, 22.9, 0.9404, 0.8123, 2.41),
        ("static, MatMul only, entropy", 48, 22.9, 0.9517, 0.8702, 2.40),
        ("static, without attention and FFN-down", 24, 44.8, 0.9913, 0.9788, 1.71),
        ("dynamic, per tensor", 37, 22.4, 0.9622, 0.9011, 2.44),
        ("dynamic, per channel", 37, 22.5, 0.9897, 0.9702, 2.38),
        ("dynamic, per channel, embeddings as rows", 40, 22.3, 0.9891, 0.9694, 2.39),
        ("dynamic, per channel, layer 0 kept", 38, 22.5, 0.9921, 0.9761, 2.36),
        ("dynamic, per channel, layers 0 and 3 kept", 36, 22.5, 0.9938, 0.9812, 2.34),
        ("dynamic, per channel, three FFN-down kept", 34, 22.6, 0.9953, 0.9864, 2.31),
        ("dynamic, per channel, all FFN-down kept", 31, 26.1, 0.9961, 0.9891, 2.02),
    )
    for name, lowered, megabytes, score, worst, ratio in figures:
        yield Trial(
            name=name,
            precision=Precision.FP32 if name == "FP32" else Precision.INT8,
            lowered=lowered,
            kept=118 - lowered if lowered > 60 else 50 - lowered,
            file_bytes=int(megabytes * MEGABYTE),
            score=score,
            worst=worst,
            problem=inaccurate.format(score) if score < 0.99 else None,
            speed=None
            if ratio is None
            else SpeedRatio(
                ratio=ratio,
                low=ratio - 0.09,
                high=ratio + 0.07,
                repeats=15,
                setting="batch 8, 128 tokens, one thread of an x86-64 CPU",
                verdict="undecided" if ratio == 1.0 else "faster",
            ),
            chosen="three" in name,
        )
