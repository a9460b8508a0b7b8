"""What reports are made of: an INT8 release with all there is, an FP16 compile that was refused, a plain FP32 release."""

from __future__ import annotations

import math
from collections.abc import Iterator

from plansmith.manifest import Interface, Manifest, Package, StepRecord
from plansmith.report import ReportFacts, unfinished
from plansmith.reports import (
    Evaluation,
    Interval,
    OutputAgreement,
    OutputComparison,
    ServedCheck,
    ServedReport,
    TaskMetric,
    Tolerance,
    ValidationReport,
    WorstSample,
)
from plansmith.types import (
    AxisRange,
    Case,
    Component,
    DataSet,
    Engine,
    EngineKind,
    ExportAttempt,
    FileEntry,
    KeptNode,
    LayerError,
    LoweredModel,
    OnnxModel,
    Precision,
    Recipe,
    ReferenceSet,
    SampleSet,
    SourceModel,
    SpeedRatio,
    Tensor,
    Trial,
)

MEGABYTE = 1024 * 1024
SHAPES = {"traced": (2, 16), "untraced": (3, 37), "min": (1, 1), "opt": (8, 64), "max": (32, 256)}
TEXTS = "1,024 sentences of stsb-validation.csv"


def int8_release() -> Manifest:
    """A sentence encoder in INT8 that passed, with data, trials, layers and a check on a running Triton."""
    tolerance = Tolerance(max_relative=0.8, quantile_relative=0.35, min_cosine=0.98, min_mean_cosine=0.99)
    data = _data(TEXTS)
    evaluation = Evaluation(
        data=TEXTS,
        samples=256,
        agreements=(
            _agreement("last_hidden_state", 0.99412, 0.98433, same_neighbour=None),
            _agreement("sentence_embedding", 0.99531, 0.98641, same_neighbour=0.965),
        ),
        metrics=(
            TaskMetric(
                name="Spearman's rank correlation",
                samples=256,
                reference=0.8671,
                candidate=0.8648,
                change=Interval(value=-0.0023, low=-0.0061, high=0.0016),
                max_drop=0.01,
                proven=True,
                failures=(),
            ),
        ),
        worst=tuple(
            WorstSample(row=row, output="sentence_embedding", cosine=cosine)
            for row, cosine in ((881, 0.98641), (173, 0.98702), (402, 0.98877), (17, 0.98913), (640, 0.98931))
        ),
    )
    validation = ValidationReport(
        verdict="passed",
        reference="PyTorch 2.15.0, FP32",
        candidate="onnxruntime, int8, onnxruntime 1.31.1",
        data=TEXTS,
        tolerances=dict.fromkeys(("last_hidden_state", "sentence_embedding"), tolerance),
        comparisons=tuple(
            _comparison(output, case, shape, scale)
            for output, width in (("last_hidden_state", (384,)), ("sentence_embedding", ()))
            for scale, (case, sizes) in enumerate(SHAPES.items(), 3)
            for shape in [(*sizes, *width) if width else (sizes[0], 384)]
        ),
        evaluation=evaluation,
        not_validated=("TensorRT, whose libraries are not installed here",),
    )
    recipe = Recipe(
        precision=Precision.INT8,
        method="INT8, dynamic, per channel",
        engine=EngineKind.ONNXRUNTIME,
        lowered={"MatMul": 31, "Gather": 3},
        kept=tuple(_kept_nodes()),
        settings={"weight_type": "QInt8", "reduce_range": "false"},
        calibration="9b74c9897bac770ffc029102a200c5de9b74c9897bac770ffc029102a200c5de",
        calibration_samples=128,
        not_validated=(),
    )
    engine = _engine(Precision.INT8)
    return Manifest(
        name="all-MiniLM-L6-v2",
        version=3,
        created="2026-11-20T13:05:12.345+00:00",
        plansmith="0.1.0",
        target="local-cpu",
        release_digest="d39cbb907b30bbf2a305110ae0116fb5a1bd89eb79fbf54d5ce10c462365124c",
        spec={
            "source": "hf:sentence-transformers/all-MiniLM-L6-v2",
            "engine": "onnxruntime",
            "precision": "int8",
            "data": {"path": "stsb-validation.csv", "calibration": 128, "evaluation": 256, "seed": 0},
            "lowering": {"keep": [], "budget": 12},
        },
        source=_source(),
        onnx=_onnx(),
        data=data,
        lowered=LoweredModel(
            components=engine.components,
            precision=Precision.INT8,
            recipe=recipe,
            trials=tuple(_trials()),
            layers=tuple(_layers()),
        ),
        engine=engine,
        package=Package(
            model="all-MiniLM-L6-v2",
            config_file="config.pbtxt",
            model_files=("model.onnx",),
            max_batch_size=32,
            interface=Interface(inputs=engine.components["model"].inputs, outputs=engine.components["model"].outputs),
        ),
        validation=validation,
        served=ServedReport(
            server_version="2.64.0",
            backend="stand-in",
            backend_runtime="onnxruntime 1.31.1",
            requests=24,
            concurrent_clients=4,
            median_seconds=0.0062,
            worst_seconds=0.048,
            checks=(ServedCheck(name="opt", protocol="http", batch=8, max_relative=1e-6, seconds=0.006),),
            completed={},
        ),
        files=(
            FileEntry(path="config.pbtxt", bytes=812, sha256="1f" * 32),
            FileEntry(path="model/model.onnx", bytes=int(22.6 * MEGABYTE), sha256="a7" * 32),
            FileEntry(path="reference/max.npz", bytes=12 * MEGABYTE, sha256="c0" * 32),
        ),
        steps=tuple(
            StepRecord(name=name, seconds=seconds, cached=name in {"fetch", "export"})
            for name, seconds in (("fetch", 0.1), ("export", 0.2), ("lower", 184.2), ("validate", 21.7), ("publish", 0.4))
        ),
    )


def refused_fp16() -> ReportFacts:
    """An FP16 compile that overflows: refused by the gate, no release, no engine, no trials to choose from."""
    tolerance = Tolerance(max_relative=0.01, quantile_relative=0.003, min_cosine=0.9999)
    nothing = float.fromhex("0x1.fffffffffffffp+1023")
    rows = [
        _comparison("logits", case, (*sizes, 30522), 0).model_copy(
            update={"max_relative": 0.0042, "quantile_relative": 0.0011, "min_cosine": 0.999974}
        )
        for case, sizes in SHAPES.items()
    ]
    rows[3] = rows[3].model_copy(
        update={
            "max_relative": 0.121,
            "failures": ("maximum error relative to the output's magnitude is 0.121, allowed 0.01",),
        }
    )
    rows[4] = rows[4].model_copy(
        update={
            "elements": 0,
            "max_relative": nothing,
            "quantile_relative": nothing,
            "min_cosine": -1.0,
            "failures": ("NaN or Inf in the candidate's answer",),
        }
    )
    validation = ValidationReport(
        verdict="failed",
        reference="PyTorch 2.15.0, FP32",
        candidate="onnxruntime, fp16, onnxruntime 1.31.1",
        data="200 lines of prompts.txt",
        tolerances={"logits": tolerance},
        comparisons=tuple(rows),
        evaluation=Evaluation(
            data="200 lines of prompts.txt",
            samples=72,
            agreements=(
                OutputAgreement(
                    output="logits",
                    samples=72,
                    mean_cosine=0.9991,
                    min_cosine=0.9712,
                    sqnr_db=27.4,
                    kl=0.0031,
                    same_first=0.971,
                    same_neighbour=None,
                    failures=("smallest cosine of a sample is 0.971200000, allowed 0.9999",),
                ),
            ),
            metrics=(
                TaskMetric(
                    name="accuracy",
                    samples=72,
                    reference=0.9306,
                    candidate=0.8889,
                    change=Interval(value=-0.0417, low=-0.0833, high=0.0),
                    max_drop=0.01,
                    proven=False,
                    failures=("accuracy is 0.0417 lower than the reference's, allowed 0.01",),
                ),
            ),
            worst=(WorstSample(row=44, output="logits", cosine=0.9712),),
        ),
    )
    recipe = Recipe(
        precision=Precision.FP16,
        method="FP16, mixed by measured ranges",
        engine=EngineKind.ONNXRUNTIME,
        lowered={"MatMul": 48, "Add": 96},
        kept=(KeptNode(node="/decoder/norm/Pow", op_type="Pow", reason="values up to 81,204 are beyond FP16"),),
        settings={},
        calibration="",
        calibration_samples=0,
        not_validated=(),
    )
    layers = tuple(
        LayerError(
            node=f"/decoder/layer.{layer}/mlp/MatMul",
            op_type="MatMul",
            lowered=True,
            sqnr_db=-3.0 if layer == 7 else 62.0 - layer,
        )
        for layer in range(12)
    )
    return unfinished(
        "tiny-decoder",
        "local-cpu",
        {"source": "hf:./tiny-decoder", "engine": "onnxruntime", "precision": "fp16"},
        validation,
        source=_source(),
        lowered=LoweredModel(components={}, precision=Precision.FP16, recipe=recipe, trials=(), layers=layers),
    )


def fp32_release() -> ReportFacts:
    """A release as they were before there were data and recipes."""
    tolerance = Tolerance(max_relative=1e-4, quantile_relative=2e-5, min_cosine=0.99999999)
    rows = tuple(
        _comparison("logits", case, (sizes[0], 1000), 0).model_copy(
            update={
                "max_relative": 2.4e-6 * (1 + place),
                "quantile_relative": 8.1e-7,
                "min_cosine": 0.9999999999981,
            }
        )
        for place, (case, sizes) in enumerate(SHAPES.items())
    )
    return ReportFacts(
        name="resnet50",
        version=1,
        created="2026-11-19T08:00:00+00:00",
        target="local-cpu",
        spec={"source": "timm:resnet50", "engine": "onnxruntime", "precision": "fp32"},
        validation=ValidationReport(
            verdict="passed",
            reference="PyTorch 2.15.0, FP32",
            candidate="onnxruntime, fp32, onnxruntime 1.31.1",
            data="plansmith's own images",
            tolerances={"logits": tolerance},
            comparisons=rows,
        ),
        source=_source().model_copy(update={"random_weights": True, "licence": None}),
        engine=_engine(Precision.FP32),
        release_digest="00" * 32,
        files=(FileEntry(path="model/model.onnx", bytes=97 * MEGABYTE, sha256="a7" * 32),),
    )


def _comparison(output: str, case: str, shape: tuple[int, ...], scale: int) -> OutputComparison:
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


def _agreement(output: str, mean: float, least: float, *, same_neighbour: float | None) -> OutputAgreement:
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


def _data(words: str) -> DataSet:
    def drawn(count: int, start: int) -> SampleSet:
        return SampleSet(
            cases=tuple(Case(name=f"{start}-{n}", axes={"batch": 8}, file=f"{start}-{n}.npz") for n in range(count // 8)),
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


def _source() -> SourceModel:
    return SourceModel(
        scheme="hf",
        location="sentence-transformers/all-MiniLM-L6-v2",
        revision="c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
        licence="apache-2.0",
        digest="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        random_weights=False,
        trust_remote_code=False,
    )


def _onnx() -> OnnxModel:
    return OnnxModel(
        components=_engine(Precision.FP32).components,
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


def _engine(precision: Precision) -> Engine:
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


def _kept_nodes() -> Iterator[KeptNode]:
    for layer in range(6):
        for product in ("MatMul", "MatMul_1"):
            yield KeptNode(
                node=f"/encoder/layer.{layer}/attention/self/{product}",
                op_type="MatMul",
                reason="both inputs are activations: no weights to store",
            )
    for layer in (0, 3, 5):
        yield KeptNode(
            node=f"/encoder/layer.{layer}/output/dense/MatMul",
            op_type="MatMul",
            reason="sensitive: lowered alone it costs more than 0.001 of the mean cosine",
        )
    yield KeptNode(node="/pooler/dense/Gemm", op_type="Gemm", reason="the head")


def _layers() -> Iterator[LayerError]:
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


def _trials() -> Iterator[Trial]:
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
            speed=ratio
            and SpeedRatio(
                ratio=ratio,
                low=ratio - 0.09,
                high=ratio + 0.07,
                repeats=15,
                setting="batch 8, 128 tokens, one thread of an x86-64 CPU",
                verdict="undecided" if ratio == 1.0 else "faster",
            ),
            chosen="three" in name,
        )
