"""What the inspectors of TensorRT 10 and 11 wrote is understood, and a plan in FP32 does not pass for one in FP16."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plansmith.compilers.trt.layers import layers_above, read_layers, read_tensors, require_precision
from plansmith.errors import EngineError
from plansmith.records.engine import PlanLayer, PlanTensor
from plansmith.records.model import HighPrecisionNode, Precision

from ...support.inspector_texts import BERT_FP16, CLASSIFIER_11, RESNET_FP16, RESNET_INT8

XMMA = "sm80_xmma_gemm_{}_nn_n_tilesize32x32x64"


def layer(name: str, kind: str = "gemm", **fields: Any) -> dict[str, Any]:
    return {"Name": name, "LayerType": kind, "TacticName": "", "Metadata": f"[ONNX Layer: {name}]", **fields}


def tensors(*dtypes: str, key: str = "Format/Datatype") -> list[dict[str, Any]]:
    return [{"Name": f"t{n}", "Dimensions": [1], key: dtype} for n, dtype in enumerate(dtypes)]


def read(*entries: dict[str, Any] | str) -> tuple[PlanLayer, ...]:
    return read_layers(json.dumps({"Layers": list(entries), "Bindings": []}))


def test_fixed_layers_tell_everything() -> None:
    """Layers of TensorRT 10 with fixed shapes tell everything."""
    reformat, conv, pool = read_layers(RESNET_FP16)
    assert (conv.name, conv.kind, conv.nodes) == ("Conv_0 + Relu_1", "CaskConvolution", ("Conv_0", "Relu_1"))
    assert (conv.computes, conv.operands, conv.dtypes) == (True, "float16", ("float16",))
    assert conv.inputs == ("Reformatted Input Tensor 0 to Conv_0 + Relu_1",)
    assert conv.tactic.startswith("trt_turing_cutlass_image_network_first_layer_hmma")
    assert not reformat.computes
    assert not pool.computes
    assert require_precision([reformat, conv, pool], Precision.FP16) == ()


def test_int8_convolution_known_by_weights() -> None:
    """An INT8 convolution is known by its weights."""
    reformat, conv = read_layers(RESNET_INT8)
    assert (reformat.dtypes, reformat.operands) == (("int8",), "")
    assert (conv.operands, conv.dtypes) == ("int8", ("int8",))
    assert conv.nodes == ("resnetv15_stage3_conv4_fwd", "resnetv15_stage3_batchnorm4_fwd")
    assert require_precision([reformat, conv], Precision.INT8) == ()


def test_myelin_products_and_attention_compute() -> None:
    """Of Myelin's kernels, the matrix products and the attention compute."""
    layers = read_layers(BERT_FP16)
    assert [layer.computes for layer in layers] == [True, False, True, True]
    assert [layer.operands for layer in layers] == ["float16", "", "float16", "float16"]
    assert layers[2].nodes == (*("/encoder/layers.8/mha/attn/MatMul", "/encoder/layers.8/mha/attn/mha_prob/Softmax"),)
    assert require_precision(layers, Precision.FP16) == ()


def test_tensorrt_11_describes_tensors() -> None:
    """TensorRT 11 describes its inputs and outputs."""
    (gemm,) = read_layers(CLASSIFIER_11)
    assert (gemm.computes, gemm.operands, gemm.dtypes) == (True, "float32", ("float32",))
    first, last = read_tensors(CLASSIFIER_11)
    assert first == PlanTensor(
        name="input_0",
        is_input=True,
        dtype="float32",
        dims=(1, 3, 224, 224),
        format="Row major linear FP32 format (kLINEAR)",
    )
    assert last == PlanTensor(name="output_0", is_input=False, dtype="float32", dims=(1, 1000))


def test_tensorrt_10_layers_describe_tensors() -> None:
    """Tensors of TensorRT 10 are described by the layers that read and write them."""
    first, last = read_tensors(RESNET_FP16)
    assert (first.name, first.is_input, first.dtype, first.dims) == ("input.1", True, "float32", (32, 3, 224, 224))
    assert (last.name, last.is_input, last.dtype) == ("input.8", False, "float16")
    assert last.format == "Channel major FP16 format where channel % 8 == 0"


def test_merely_named_tensor_left_out() -> None:
    """A tensor that is only named is left out and other profiles bring none."""
    assert read_tensors('{"Layers": ["a", "b"], "Bindings": ["x", "y"]}') == ()
    conv = layer("c", Inputs=[{"Name": "x", "Dimensions": [-1, 3], "Format/Datatype": "N/A due to dynamic shapes"}])
    document = {"Layers": [conv], "Bindings": ["x", "x [profile 1]"]}
    assert read_tensors(json.dumps(document)) == (PlanTensor(name="x", is_input=True, dtype="", dims=(-1, 3)),)


def test_weights_and_kernels_tell_dynamic_shapes() -> None:
    """With dynamic shapes, weights and kernels tell what tensors do not."""
    unknown = tensors("N/A due to dynamic shapes")
    weights, kernel, nothing = read(
        layer("a", "CaskConvolution", Inputs=unknown, Outputs=unknown, Weights={"Type": "Half", "Count": 9408}),
        layer(
            "b", "CaskGemmMatrixMultiply", Inputs=unknown, Outputs=unknown, TacticName=XMMA.format("f32f32_tf32f32_f32")
        ),
        layer("c", "CaskConvolution", Inputs=unknown, Outputs=unknown),
    )
    assert (weights.operands, kernel.operands, nothing.operands) == ("float16", "float32", "")
    assert weights.dtypes == ()


@pytest.mark.parametrize(
    ("tactic", "operands"),
    [
        (XMMA.format("f16f16_f16f32_f32"), "float16"),
        (XMMA.format("bf16bf16_bf16f32_f32"), "bfloat16"),
        (XMMA.format("f32f32_f32f32_f32"), "float32"),
        ("sm80_xmma_fprop_implicit_gemm_interleaved_i8f32_i8i32_f32_nchw_vect_c_32kcrs", "int8"),
        ("cutlass3x_sm100_tensorop_s128x128x32gemm_f8_f8_f32_f16_f16", "float8_e4m3fn"),
        ("ampere_h16816gemm_256x128_ldg8_nn_v1", "float16"),
        ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_nn", "float16"),
        ("ampere_sgemm_128x64_nn", "float32"),
        ("volta_scudnn_128x128_relu_exp_large_nhwc_tn_v1", "float32"),
        ("ampere_int8x4_icudnn_int8x4_128x128_relu_small_nn_v1", "int8"),
        ("__myl_FcAdd_0xf16f16f32f32aa", ""),
    ],
)
def test_kernel_named_by_factors(tactic: str, operands: str) -> None:
    """A kernel is called by what it multiplies."""
    (result,) = read(layer("a", TacticName=tactic))
    assert result.operands == operands


@pytest.mark.parametrize("key", ["Format/Datatype", "Datatype", "DataType"])
def test_lowest_input_is_multiplied(key: str) -> None:
    """The lowest input is what is multiplied."""

    def operands(inputs: list[str], outputs: list[str]) -> str:
        return read(layer("a", Inputs=tensors(*inputs, key=key), Outputs=tensors(*outputs, key=key)))[0].operands

    assert operands(["Half"], ["Float"]) == "float16"
    assert operands(["Int8", "Int8", "Float"], ["Half"]) == "int8"
    assert operands(["BFloat16", "Bool"], ["BFloat16"]) == "bfloat16"
    assert operands(["Float", "Bool"], ["Float"]) == "float32"
    assert operands(["Float"], ["Half"]) == ""  # it may begin with a cast
    assert operands(["Int64"], ["Int64"]) == ""


@pytest.mark.parametrize(
    ("name", "kind", "computes"),
    [
        ("/conv/Conv", "CaskConvolution", True),
        ("/conv/Conv + pool", "CaskConvActPool", True),
        ("/up/ConvTranspose", "CaskDeconvolutionV2", True),
        ("/a/Conv_myl0_3", "correlation", True),
        ("__myl_FcNegExpAddDivMulMul_myl0_3", "kgen", True),
        ("__myl_CasFcAdd_myl0_4", "fusion", True),
        ("__myl_CorrMulAddMinMaxMul_myl0_2", "runtime_fusion", True),
        ("_gemm_mha_v2_myl2_6", "kgen", True),
        ("/mlp/MatMul_myl1_2", "fusion", True),
        ("node_Conv_292", "fusion", True),
        ("__myl_MoveConc_myl0_1", "kgen", False),
        ("__myl_CastMeanSubMul_myl0_1", "kgen", False),
        ("/norm/LayerNormalization", "kgen", False),
        ("PWN(/act/Sigmoid)", "PointWiseV2", False),
        ("/pool/GlobalAveragePool", "CaskPooling", False),
        ("/Gather", "Gather", False),
        ("shape_call_3", "shape_call", False),
        ("signal_0", "signal", False),
    ],
)
def test_which_layers_compute(name: str, kind: str, computes: bool) -> None:
    (result,) = read(layer(name, kind))
    assert result.computes is computes


def test_whole_piece_stays_opaque() -> None:
    """Nothing is known of what is inside a whole piece."""
    (piece,) = read(
        layer("{ForeignNode[/Unsqueeze.../Cast]}", "Myelin", Inputs=tensors("Float"), Outputs=tensors("Float"))
    )
    assert (piece.computes, piece.operands) == (True, "")
    (notice,) = require_precision([piece], Precision.FP16)
    assert notice == "the precision of 1 of 1 layers that compute: the plan does not tell it"


FP32, FP16 = ({"TacticName": XMMA.format(f"{x}{x}_{x}f32_f32")} for x in ("f32", "f16"))


def test_fp32_layers_fail_fp16_plan() -> None:
    """Layers in FP32 fail a plan in FP16 and are listed."""
    layers = read(layer("/a/MatMul", **FP32), layer("/b/MatMul", **FP16), layer("/c/Conv", "CaskConvolution", **FP32))
    assert [entry.name for entry in layers_above(layers, Precision.FP16)] == ["/a/MatMul", "/c/Conv"]
    for precision in set(Precision) - {Precision.FP32}:
        with pytest.raises(EngineError) as refused:
            require_precision(layers, precision)
        lines = refused.value.message.splitlines()
        assert lines[0] == (
            f"2 of 3 layers of the plan that compute came out in FP32, and {precision.upper()} was asked:"
        )
        assert lines[1].strip() == f"/a/MatMul (gemm, {FP32['TacticName']})"
        assert lines[2].strip().startswith("/c/Conv (CaskConvolution, ")
        assert "lowering: {keep: [NODE]}" in refused.value.remedy
    assert layers_above(layers, Precision.FP32) == ()
    assert require_precision(layers, Precision.FP32) == ()


def test_long_list_is_cut() -> None:
    """A long list is cut on one screen."""
    layers = read(*(layer(f"/layers.{n}/MatMul", **FP32) for n in range(40)))
    with pytest.raises(EngineError, match="… and 30 more") as refused:
        require_precision(layers, Precision.FP16)
    assert len(refused.value.message.splitlines()) == 12


def test_recipe_kept_layers_may_stay_fp32() -> None:
    """What the recipe kept on purpose may be in FP32."""
    layers = read(
        layer("/head/MatMul_myl0_9", Metadata="[ONNX Layer: /head/MatMul][ONNX Layer: /head/Add]", **FP32),
        layer("/b/MatMul", **FP16),
    )
    head = HighPrecisionNode(node="/head/MatMul", op_type="MatMul", reason="asked")
    assert require_precision(layers, Precision.FP16, [head]) == ()
    # An addition that was kept does not excuse the product that it was fused with.
    add = HighPrecisionNode(node="/head/Add", op_type="Add", reason="range")
    assert layers_above(layers, Precision.FP16, [add]) == layers[:1]
    assert layers_above(layers, Precision.FP16, [head.model_copy(update={"node": "/other/MatMul"})]) == layers[:1]


def test_plan_without_precision_layers_fails() -> None:
    """A plan without one layer in the precision is not of that precision."""
    with pytest.raises(EngineError, match="no layer of the plan computes in INT8") as refused:
        require_precision(read(layer("/b/MatMul", **FP16), layer("/c/MatMul", **FP16)), Precision.INT8)
    assert "all 2 that compute do so in float16" in refused.value.message
    assert refused.value.remedy


def test_untold_layers_are_said() -> None:
    """What a plan does not tell is said and is not passed over in silence."""
    (names,) = require_precision(read("/a/MatMul", "/b/Conv"), Precision.FP16)
    assert names == "whether the plan computes in FP16: it tells nothing of its layers but their names, if these"
    assert require_precision((), Precision.FP16) == (names,)
    (none,) = require_precision(read(layer("/Gather", "Gather")), Precision.INT8)
    assert "names no layer that multiplies" in none
    (some,) = require_precision(read(layer("/a/MatMul", **FP16), layer("/b/MatMul")), Precision.FP16)
    assert some == "the precision of 1 of 2 layers that compute: the plan does not tell it"


@pytest.mark.parametrize("text", ["", "{", "[]", '"layers"', "null"])
def test_foreign_json_refused(text: str) -> None:
    """What is not an inspector's JSON is refused."""
    for reader in (read_layers, read_tensors):
        with pytest.raises(EngineError, match="cannot be read") as refused:
            reader(text)
        assert refused.value.remedy


def test_silent_inspector_gives_nothing() -> None:
    """An inspector that tells nothing gives nothing."""
    assert not read_layers("{}")
    assert not read_tensors("{}")
    assert not read_layers('{"Layers": [], "I/O Tensors": []}')
