"""What reports are made of: an INT8 release, an FP16 compile that was refused, a plain FP32 release."""

from __future__ import annotations

from plansmith.records.model import (
    EngineKind,
    FileEntry,
    HighPrecisionNode,
    LayerError,
    LoweredModel,
    Precision,
    Recipe,
)
from plansmith.records.release import Interface, Manifest, Package, StepRecord
from plansmith.records.validation import (
    Evaluation,
    Interval,
    OutputAgreement,
    ServedCheck,
    ServedReport,
    TaskMetric,
    Tolerance,
    ValidationReport,
    WorstSample,
)
from plansmith.report.verdict import ReportFacts, unfinished

from . import parts


def int8_release() -> Manifest:
    """A sentence encoder in INT8 that passed, with data, trials, layers and a check on a running Triton."""
    tolerance = Tolerance(max_relative=0.8, quantile_relative=0.35, min_cosine=0.98, min_mean_cosine=0.99)
    data = parts.data_set(parts.TEXTS)
    evaluation = Evaluation(
        data=parts.TEXTS,
        samples=256,
        agreements=(
            parts.agreement("last_hidden_state", 0.99412, 0.98433, same_neighbour=None),
            parts.agreement("sentence_embedding", 0.99531, 0.98641, same_neighbour=0.965),
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
        data=parts.TEXTS,
        tolerances=dict.fromkeys(("last_hidden_state", "sentence_embedding"), tolerance),
        comparisons=tuple(
            parts.comparison(output, case, shape, scale)
            for output, width in (("last_hidden_state", (384,)), ("sentence_embedding", ()))
            for scale, (case, sizes) in enumerate(parts.SHAPES.items(), 3)
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
        kept=tuple(parts.kept_nodes()),
        settings={"weight_type": "QInt8", "reduce_range": "false"},
        calibration="9b74c9897bac770ffc029102a200c5de9b74c9897bac770ffc029102a200c5de",
        calibration_samples=128,
        not_validated=(),
    )
    engine = parts.engine_of(Precision.INT8)
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
        source=parts.source_model(),
        onnx=parts.onnx_model(),
        data=data,
        lowered=LoweredModel(
            components=engine.components,
            precision=Precision.INT8,
            recipe=recipe,
            trials=tuple(parts.trials()),
            layers=tuple(parts.layer_errors()),
            fp32_bytes=int(86.7 * parts.MEGABYTE),
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
            FileEntry(path="model/model.onnx", bytes=int(22.6 * parts.MEGABYTE), sha256="a7" * 32),
            FileEntry(path="reference/max.npz", bytes=12 * parts.MEGABYTE, sha256="c0" * 32),
        ),
        steps=tuple(
            StepRecord(name=name, seconds=seconds, cached=name in {"fetch", "export"})
            for name, seconds in (
                ("fetch", 0.1),
                ("export", 0.2),
                ("lower", 184.2),
                ("validate", 21.7),
                ("publish", 0.4),
            )
        ),
    )


def refused_fp16() -> ReportFacts:
    """An FP16 compile that overflows: refused by the gate, no release, no engine, no trials to choose from."""
    tolerance = Tolerance(max_relative=0.01, quantile_relative=0.003, min_cosine=0.9999)
    nothing = float.fromhex("0x1.fffffffffffffp+1023")
    rows = [
        parts.comparison("logits", case, (*sizes, 30522), 0).model_copy(
            update={"max_relative": 0.0042, "quantile_relative": 0.0011, "min_cosine": 0.999974}
        )
        for case, sizes in parts.SHAPES.items()
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
                    first_among_five=0.999,
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
        kept=(
            HighPrecisionNode(node="/decoder/norm/Pow", op_type="Pow", reason="values up to 81,204 are beyond FP16"),
        ),
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
        source=parts.source_model(),
        lowered=LoweredModel(components={}, precision=Precision.FP16, recipe=recipe, trials=(), layers=layers),
    )


def fp32_release() -> ReportFacts:
    """A release as they were before there were data and recipes."""
    tolerance = Tolerance(max_relative=1e-4, quantile_relative=2e-5, min_cosine=0.99999999)
    rows = tuple(
        parts.comparison("logits", case, (sizes[0], 1000), 0).model_copy(
            update={
                "max_relative": 2.4e-6 * (1 + place),
                "quantile_relative": 8.1e-7,
                "min_cosine": 0.9999999999981,
            }
        )
        for place, (case, sizes) in enumerate(parts.SHAPES.items())
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
        source=parts.source_model().model_copy(update={"random_weights": True, "licence": None}),
        engine=parts.engine_of(Precision.FP32),
        release_digest="00" * 32,
        files=(FileEntry(path="model/model.onnx", bytes=97 * parts.MEGABYTE, sha256="a7" * 32),),
    )


def refused_recipes() -> ReportFacts:
    """An INT8 compile that ended at its lowering: no recipe was accurate enough, and so there is nothing to judge."""
    failed = tuple(trial for trial in parts.trials() if trial.problem is not None)
    return unfinished(
        "all-MiniLM-L6-v2",
        "local-cpu",
        {"source": "hf:sentence-transformers/all-MiniLM-L6-v2", "engine": "onnxruntime", "precision": "int8"},
        None,
        source=parts.source_model(),
        onnx=parts.onnx_model(),
        data=parts.data_set(parts.TEXTS),
        lowered=LoweredModel(components={}, precision=Precision.INT8, recipe=None, trials=failed, layers=()),
    )
