"""What engine inspectors wrote, shortened: layers and fields were left out, and none was changed."""

from __future__ import annotations

# ResNet-18 in FP16 on an A100, all shapes fixed: resnet.onnx.engine.graph.json of tools/experimental/
# trt-engine-explorer/examples/pytorch/resnet/A100/fp16 in github.com/NVIDIA/TensorRT; its bindings are added.
RESNET_FP16 = r"""{"Layers": [{
  "Name": "Reformatting CopyNode for Input Tensor 0 to Conv_0 + Relu_1",
  "LayerType": "Reformat",
  "Inputs": [{"Name": "input.1", "Location": "Device", "Dimensions": [32,3,224,224],
    "Format/Datatype": "Row major linear FP32"}],
  "Outputs": [{"Name": "Reformatted Input Tensor 0 to Conv_0 + Relu_1", "Location": "Device",
    "Dimensions": [32,3,224,224], "Format/Datatype": "Channel major FP16 format where channel % 4 == 0"}],
  "ParameterType": "Reformat", "Origin": "REFORMAT", "TacticValue": "0x0000000000000000"
},{
  "Name": "Conv_0 + Relu_1",
  "LayerType": "CaskConvolution",
  "Inputs": [{"Name": "Reformatted Input Tensor 0 to Conv_0 + Relu_1", "Location": "Device",
    "Dimensions": [32,3,224,224], "Format/Datatype": "Channel major FP16 format where channel % 4 == 0"}],
  "Outputs": [{"Name": "onnx::MaxPool_125", "Location": "Device", "Dimensions": [32,64,112,112],
    "Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}],
  "ParameterType": "Convolution", "Kernel": [7,7], "Weights": {"Type": "Half", "Count": 9408},
  "Bias": {"Type": "Half", "Count": 64}, "Activation": "RELU",
  "TacticName": "trt_turing_cutlass_image_network_first_layer_hmma_fprop_f16f16f32_nhwc_nhwc_k64r7s7c4_stride2x2",
  "TacticValue": "0xe2222883a6602489"
},{
  "Name": "MaxPool_2",
  "LayerType": "CudaPooling",
  "Inputs": [{"Name": "onnx::MaxPool_125", "Location": "Device", "Dimensions": [32,64,112,112],
    "Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}],
  "Outputs": [{"Name": "input.8", "Location": "Device", "Dimensions": [32,64,56,56],
    "Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}],
  "ParameterType": "Pooling", "PoolingType": "MAX", "TacticValue": "0xfffffffffffffffe"
}],
"Bindings": ["input.1","input.8"]}"""

# ResNet-18 in INT8, TensorRT 10.2: a comment of leimao in github.com/NVIDIA/TensorRT/issues/4020.
RESNET_INT8 = r"""{"Layers": [{
  "Name": "Reformatting CopyNode for Input Tensor 0 to resnetv15_conv0_fwd + resnetv15_batchnorm0_fwd",
  "LayerType": "Reformat",
  "Inputs": [{"Name": "data", "Location": "Device", "Dimensions": [1,3,224,224],
    "Format/Datatype": "Row major linear FP32"}],
  "Outputs": [{"Name": "Reformatted Input Tensor 0", "Location": "Device", "Dimensions": [1,3,224,224],
    "Format/Datatype": "Row major Int8 format"}],
  "ParameterType": "Reformat", "Origin": "REFORMAT", "StreamId": 0, "Metadata": ""
},{
  "Name": "resnetv15_stage3_conv4_fwd + resnetv15_stage3_activation1",
  "LayerType": "CaskConvolution",
  "Inputs": [{"Name": "resnetv15_stage3_activation0", "Location": "Device", "Dimensions": [1,256,14,14],
    "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format"}],
  "Outputs": [{"Name": "resnetv15_stage3_activation1", "Location": "Device", "Dimensions": [1,256,14,14],
    "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format"}],
  "ParameterType": "Convolution", "Weights": {"Type": "Int8", "Count": 589824},
  "Bias": {"Type": "Float", "Count": 256},
  "TacticName":
    "sm80_xmma_fprop_avdt_sparse_int8int8_tilesize64x64x64_tapsperload3_threadspercta128_r3s3_u1v1_scalebias_relu",
  "StreamId": 0,
  "Metadata": "[ONNX Layer: resnetv15_stage3_conv4_fwd]\u001e[ONNX Layer: resnetv15_stage3_batchnorm4_fwd]"
}],
"Bindings": ["data"]}"""

# A BERT in FP16, TensorRT 10: kris1025 in github.com/NVIDIA/TensorRT/issues/4397, there one line a layer.
BERT_FP16 = r"""{"Layers": [{
  "Name": "/encoder/layers_0/pos_ff/output/MatMul_myl0_7", "LayerType": "gemm",
  "Inputs": [{"Name": "/encoder/layers_0/pos_ff/output/Add_output_0'.1_11", "Dimensions": [1,40,1024],
    "Format/Datatype": "Half"}],
  "Outputs": [{"Name": "__myln_k_arg__bb1_12", "Dimensions": [1,40,256], "Format/Datatype": "Half"}],
  "TacticName": "sm80_xmma_gemm_f16f16_f16f16_f16_nn_n_tilesize32x32x64_stage6_warpsize2x2x1_tensor16x8x16",
  "StreamId": 0,
  "Metadata": "[ONNX Layer: /encoder/layers.0/pos_ff/output/MatMul][ONNX Layer: /encoder/layers.0/pos_ff/output/Add]"
},{
  "Name": "__myl_AddCastMeanSubMulMeanAddSqrtDivMulCastMulAdd_myl0_8", "LayerType": "kgen",
  "Inputs": [{"Name": "__myln_k_arg__bb1_12", "Dimensions": [1,40,256], "Format/Datatype": "Half"}],
  "Outputs": [{"Name": "__mye56070_13", "Dimensions": [1,40,256], "Format/Datatype": "Half"}],
  "TacticName": "__myl_AddCastMeanSubMulMeanAddSqrtDivMulCastMulAdd_0xf2543c36ff9f104bbb1655b0183afb47",
  "StreamId": 0,
  "Metadata":
    "[ONNX Layer: /encoder/layers.0/pos_ff/Add_1][ONNX Layer: /encoder/layers.0/pos_ff/layernorm/LayerNormalization]"
},{
  "Name": "_gemm_mha_v2_myl0_59", "LayerType": "kgen",
  "Inputs": [{"Name": "__mye55951", "Dimensions": [4,40,64], "Format/Datatype": "Half"},
    {"Name": "__mye55389_7", "Dimensions": [1,1,40,40], "Format/Datatype": "Half"}],
  "Outputs": [{"Name": "__mye55065", "Dimensions": [4,40,64], "Format/Datatype": "Half"}],
  "TacticName": "_gemm_mha_v2_0x957a2fe283f77dcf35c142c1390a3e6a", "StreamId": 0,
  "Metadata": "[ONNX Layer: /encoder/layers.8/mha/attn/MatMul][ONNX Layer: /encoder/layers.8/mha/attn/mha_prob/Softmax]"
},{
  "Name": "/encoder/layers_8/mha/output/dense/MatMul_myl0_60", "LayerType": "gemm",
  "Inputs": [{"Name": "__mye55065", "Dimensions": [1,40,256], "Format/Datatype": "Half"}],
  "Outputs": [{"Name": "__myln_k_arg__bb1_65", "Dimensions": [1,40,256], "Format/Datatype": "Half"}],
  "TacticName": "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize32x32x64_stage6_warpsize2x2x1_tensor16x8x16",
  "StreamId": 0,
  "Metadata":
    "[ONNX Layer: /encoder/layers.8/mha/output/dense/MatMul][ONNX Layer: /encoder/layers.8/mha/output/dense/Add]"
}],
"Bindings": []}"""

# The inputs and outputs of TensorRT 11: docs.nvidia.com/deeplearning/tensorrt/11.0.0/api/migration/
# tensorrt-10x-to-11x-IEngineInspector.html; the layer has the keys that NVIDIA's cookbook reads from 11's inspector.
CLASSIFIER_11 = r"""{"Layers": [{
  "Name": "/fc/Gemm_myl0_1", "LayerType": "gemm",
  "Inputs": [{"Name": "input_0", "Dimensions": [1,3,224,224], "Format": "Row major linear", "Datatype": "Float"}],
  "Outputs": [{"Name": "output_0", "Dimensions": [1,1000], "Format": "Row major linear", "Datatype": "Float"}],
  "TacticName": "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize32x32x64", "StreamId": 0,
  "Metadata": "[ONNX Layer: /fc/Gemm]"
}],
"I/O Tensors": [
  {"Name": "input_0", "IOMode": "Input", "DataType": "Float", "Dimensions": [1, 3, 224, 224], "Location": "Device",
   "IsShapeInferenceIO": false,
   "ProfileInfo": [{"MinShape": [1,3,224,224], "OptShape": [1,3,224,224], "MaxShape": [1,3,224,224],
     "Format": "Row major linear FP32 format (kLINEAR)"}]},
  {"Name": "output_0", "IOMode": "Output", "DataType": "Float", "Dimensions": [1, 1000], "Location": "Device",
   "IsShapeInferenceIO": false}
]}"""
