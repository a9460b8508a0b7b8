"""Excerpts of logs that people have put into public issues, verbatim but for lines left out; each names its source."""

from __future__ import annotations

from pathlib import Path

BUILT_IN_2025 = """\
[04/08/2025-23:15:47] [I] [TRT] Total Activation Memory: 467884032 bytes
[04/08/2025-23:15:47] [I] [TRT] Total Weights Memory: 238797908 bytes
[04/08/2025-23:15:47] [I] [TRT] Compiler backend is used during engine execution.
[04/08/2025-23:15:47] [I] [TRT] Engine generation completed in 104.604 seconds.
[04/08/2025-23:15:47] [I] [TRT] [MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 64 MiB, GPU 1392 MiB
[04/08/2025-23:15:47] [I] Engine built in 104.774 sec.
[04/08/2025-23:15:47] [I] Created engine with size: 231.019 MiB
[04/08/2025-23:15:48] [I] [TRT] Loaded engine size: 231 MiB
[04/08/2025-23:15:48] [I] Engine deserialized in 0.21022 sec.
[04/08/2025-23:15:48] [I] [TRT] [MemUsageChange] TensorRT-managed allocation in IExecutionContext creation: CPU +1, GPU +447, now: CPU 1, GPU 674 (MiB)
"""  # noqa: E501
"""A build log in a public repository, found by its line of [MemUsageStats]."""

BUILT_BY_PYTHON = """\
[08/20/2025-14:07:01] [TRT] [I] Engine generation completed in 133.836 seconds.
[08/20/2025-14:07:01] [TRT] [I] [MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 77 MiB, GPU 2308 MiB
[08/20/2025-14:07:01] [TRT] [I] [MemUsageStats] Peak memory usage during Engine building and serialization: CPU: 15105 MiB
2025-08-20 14:07:01,692 INFO Succesfully convert onnx to trt...
[08/20/2025-14:07:02] [TRT] [I] Loaded engine size: 159 MiB
"""  # noqa: E501
"""The Python logger's order of tags; a build log in a public repository, found as the one above."""

MEASURED_BY_10 = """\
[10/03/2024-10:47:59] [I] === Performance summary ===
[10/03/2024-10:47:59] [I] Throughput: 130.298 qps
[10/03/2024-10:47:59] [I] Latency: min = 5.38672 ms, max = 13.3664 ms, mean = 7.60628 ms, median = 7.16092 ms, percentile(90%) = 10.2996 ms, percentile(95%) = 10.8698 ms, percentile(99%) = 12.9675 ms
[10/03/2024-10:47:59] [I] Enqueue Time: min = 2.72876 ms, max = 15.0201 ms, mean = 7.63062 ms, median = 7.86694 ms, percentile(90%) = 10.1792 ms, percentile(95%) = 11.7217 ms, percentile(99%) = 14.1848 ms
[10/03/2024-10:47:59] [I] H2D Latency: min = 0.0065918 ms, max = 0.0698242 ms, mean = 0.0122212 ms, median = 0.00814819 ms, percentile(90%) = 0.0253906 ms, percentile(95%) = 0.0270996 ms, percentile(99%) = 0.0515137 ms
[10/03/2024-10:47:59] [I] GPU Compute Time: min = 5.34595 ms, max = 13.3388 ms, mean = 7.58404 ms, median = 7.14139 ms, percentile(90%) = 10.2881 ms, percentile(95%) = 10.8175 ms, percentile(99%) = 12.9485 ms
[10/03/2024-10:47:59] [I] D2H Latency: min = 0.00390625 ms, max = 0.110596 ms, mean = 0.0100141 ms, median = 0.00439453 ms, percentile(90%) = 0.0254517 ms, percentile(95%) = 0.0319824 ms, percentile(99%) = 0.0994873 ms
[10/03/2024-10:47:59] [I] Total Host Walltime: 3.00082 s
[10/03/2024-10:47:59] [I] Total GPU Compute Time: 2.96536 s
"""  # noqa: E501
"""https://github.com/NVIDIA/TensorRT/issues/4177"""

ON_A_3090_WITH_10_12 = """\
[06/26/2025-00:08:44] [I] Selected Device UUID: GPU-4c431858-85e6-3a03-4064-fa6741957aa5
[06/26/2025-00:08:44] [I] Compute Capability: 8.6
[06/26/2025-00:08:44] [I] SMs: 82
[06/26/2025-00:08:44] [I] TensorRT version: 10.12.0
[06/26/2025-00:08:44] [I] Loading standard plugins
[06/26/2025-00:08:44] [I] [TRT] [MemUsageChange] Init CUDA: CPU +9, GPU +0, now: CPU 17344, GPU 1269 (MiB)
[06/26/2025-00:08:47] [I] [TRT] [MemUsageChange] Init builder kernel library: CPU +2621, GPU +8, now: CPU 20312, GPU 1277 (MiB)
[06/26/2025-00:08:47] [I] Start parsing network model.
"""  # noqa: E501
"""https://github.com/laugh12321/TensorRT-YOLO/issues/172"""

UNSUPPORTED_GPU = """\
[07/19/2025-23:34:55] [I] Finished parsing network model. Parse time: 0.00794659
[07/19/2025-23:34:55] [E] Error[9]: IBuilder::buildSerializedNetwork: Error Code 9: API Usage Error (Target GPU SM 120 is not supported by this TensorRT release.)
[07/19/2025-23:34:55] [E] Engine could not be created from network
[07/19/2025-23:34:55] [E] Building engine failed
[07/19/2025-23:34:55] [E] Failed to create engine from model or file.
[07/19/2025-23:34:55] [E] Engine set up failed
&&&& FAILED TensorRT.trtexec [TensorRT v100700] [b23] # /usr/src/tensorrt/bin/trtexec --onnx=test.onnx --saveEngine=model_gn.engine
"""  # noqa: E501
"""https://github.com/DDTRobot/tita_rl_sim2sim2real/issues/7"""

OUT_OF_DEVICE_MEMORY = """\
[11/22/2024-13:40:08] [I] Finished parsing network model. Parse time: 0.0704936
[11/22/2024-13:40:08] [I] [TRT] Local timing cache in use. Profiling results in this builder pass will not be stored.
[11/22/2024-13:40:47] [E] Error[1]: [defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)
[11/22/2024-13:40:47] [W] [TRT] Requested amount of GPU memory (15485030400 bytes) could not be allocated. There may not be enough free memory for allocation to succeed.
[11/22/2024-13:40:47] [E] Error[9]: Error Code: 9: Skipping tactic 0x0000000000000000 due to exception [tunable_graph.cpp:create:117] autotuning: User allocator error allocating 15485030400-byte buffer
[11/22/2024-13:40:47] [E] Error[10]: IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for node {ForeignNode[/1/Constant_36_output_0.../1/Slice_4]}.)
[11/22/2024-13:40:47] [E] Engine could not be created from network
"""  # noqa: E501
"""https://github.com/NVIDIA/TensorRT/issues/4258"""

NO_IMPLEMENTATION = """\
Building TensorRT engine for ./4x-UltraSharp.onnx: ./4x-UltraSharp.engine
[E] IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for node /model/model.6/Conv + PWN(/model/model.7/LeakyRelu).)
[!] Invalid Engine. Please ensure the engine was built correctly
"""  # noqa: E501
"""https://github.com/yuvraj108c/ComfyUI-Upscaler-Tensorrt/issues/36"""

ENGINE_OUT_OF_MEMORY = """\
[11/07/2025-17:42:27] [TRT] [E] [resizingAllocator.cpp::allocate::78] Error Code 1: Cuda Runtime (out of memory)
[11/07/2025-17:42:29] [TRT] [E] [resizingAllocator.cpp::allocate::78] Error Code 1: Cuda Runtime (out of memory)
[11/07/2025-17:42:32] [TRT] [E] [myelinResourceManager.cpp::allocate::196] Error Code 2: OutOfMemory (Requested size was 71603093760 bytes.)
"""  # noqa: E501
"""A log in a public repository, found by its "Requested size was"."""

SKIPPED_TACTICS = """\
[03/13/2026-13:17:50] [TRT] [E] [virtualMemoryBuffer.cpp::nvinfer1::StdVirtualMemoryBufferImpl::resizePhysical::154] Error Code 2: OutOfMemory (Requested size was 2833252352 bytes.)
[10/01/2025-08:26:34] [TRT] [W] UNSUPPORTED_STATE: Skipping tactic 33 due to insufficient memory on requested size of 629145600 detected for tactic 0xa5a46bfbd719d757.
[10/01/2025-08:26:34] [TRT] [W] Tactic Device request: 600MB Available: 302MB. Device memory is insufficient to use tactic.
"""  # noqa: E501
"""https://github.com/ultralytics/ultralytics/issues/22271, with which builds go on; the error is of a public script's
notes, on a build that went on as well."""

HOST_OUT_OF_MEMORY = """\
 terminate called after throwing an instance of 'std::bad_alloc'
   what():  std::bad_alloc
 Aborted (core dumped)
"""
"""https://github.com/NVIDIA/TensorRT/pull/379"""

NO_PLUGIN_IN_10 = """\
[09/24/2025-09:19:49] [TRT] [E] ModelImporter.cpp:963: While parsing node number 4448 [TRTBatchedNMS -> "/TRTBatchedNMS_output_0"]:
[09/24/2025-09:19:49] [TRT] [E] ModelImporter.cpp:964: --- Begin node ---
input: "/Unsqueeze_76_output_0"
input: "/Concat_51_output_0"
output: "/TRTBatchedNMS_output_0"
output: "/TRTBatchedNMS_output_1"
name: "/TRTBatchedNMS"
op_type: "TRTBatchedNMS"
attribute {
  name: "background_label_id"
  i: -1
  type: INT
}
domain: "mmdeploy"

[09/24/2025-09:19:49] [TRT] [E] ModelImporter.cpp:965: --- End node ---
[09/24/2025-09:19:49] [TRT] [E] ModelImporter.cpp:968: ERROR: onnxOpCheckers.cpp:819 In function checkFallbackPluginImporter:
[6] creator && "Plugin not found, are the plugin name, version, and namespace correct?"
"""  # noqa: E501
"""https://github.com/open-mmlab/mmdeploy/issues/2758"""

NO_PLUGIN_BY_THE_PARSER = """\
Fail parsing checkpoints/ditto_onnx/warp_network.onnx
In node 11 with name: /dense_motion_network/GridSample and operator: GridSample3D (checkFallbackPluginImporter): INVALID_NODE: creator && "Plugin not found, are the plugin name, version, and namespace correct?"
"""  # noqa: E501
"""https://github.com/antgroup/ditto-talkinghead/issues/45"""

NO_PLUGIN_CREATOR = """\
[E] 3: getPluginCreator could not find plugin: InstanceNormalization_TRT version: 1
[E] ModelImporter.cpp:826: While parsing node number 26 [InstanceNormalization -> "/input_blocks.1/InstanceNormalization_output_0"]:
[E] ModelImporter.cpp:829: --- Begin node ---
    input: "/input_blocks.1/Reshape_output_0"
    output: "/input_blocks.1/InstanceNormalization_output_0"
    name: "/input_blocks.1/InstanceNormalization"
    op_type: "InstanceNormalization"
    attribute {
      name: "epsilon"
      f: 1e-05
      type: FLOAT
    }
[E] ModelImporter.cpp:832: --- End node ---
"""  # noqa: E501
"""https://github.com/NVIDIA/Stable-Diffusion-WebUI-TensorRT/issues/315, names shortened"""

INVALID_NODE = """\
[09/02/2024-17:35:22] [E] [TRT] ModelImporter.cpp:949: While parsing node number 146 [Tile -> "/Tile_output_0"]:
[09/02/2024-17:35:22] [E] [TRT] ModelImporter.cpp:950: --- Begin node ---
input: "/Unsqueeze_3_output_0"
input: "/Reshape_2_output_0"
output: "/Tile_output_0"
name: "/Tile"
op_type: "Tile"

[09/02/2024-17:35:22] [E] [TRT] ModelImporter.cpp:951: --- End node ---
[09/02/2024-17:35:22] [E] [TRT] ModelImporter.cpp:954: ERROR: ModelImporter.cpp:195 In function parseNode:
[6] Invalid Node - /Tile
ITensor::getDimensions: Error Code 4: Internal Error (/OneHot: an IIOneHotLayer cannot be used to compute a shape tensor)
[09/02/2024-17:35:22] [E] Failed to parse onnx file
[09/02/2024-17:35:22] [I] Finished parsing network model. Parse time: 0.0483808
[09/02/2024-17:35:22] [E] Parsing model failed
[09/02/2024-17:35:22] [E] Failed to create engine from model or file.
[09/02/2024-17:35:22] [E] Engine set up failed
&&&& FAILED TensorRT.trtexec [TensorRT v100300] # trtexec --onnx=data/mobile_sam_mask_decoder.onnx --saveEngine=data/mobile_sam_mask_decoder.engine --minShapes=point_coords:1x1x2,point_labels:1x1
"""  # noqa: E501
"""A log in a public repository, found by its banner [TensorRT v100300]"""

MIXED_INTEGERS = """\
[12/04/2024-13:22:39] [E] [TRT] ModelImporter.cpp:948: --- End node ---
[12/04/2024-13:22:39] [E] [TRT] ModelImporter.cpp:951: ERROR: ModelImporter.cpp:197 In function parseNode:
[6] Invalid Node - Concat_43
ITensor::getDimensions: Error Code 4: API Usage Error (Concat_43: concat input tensors 0 and 3 have incompatible types Int64 and Int32)
"""  # noqa: E501
"""https://github.com/NVIDIA/TensorRT/issues/4268"""

MIXED_FLOATS = """\
/PRelu_6_lessZero = lt(/Conv_6_output_0', /PRelu_6_zero), name=/PRelu_6_less
Error is:
Input 0's element type (half) differs from input 1's element type (float).
[05/19/2024-14:16:01] [E] Error[9]: Skipping tactic 0x0000000000000000 due to exception [::0]
"""
"""https://github.com/the-database/mpv-AnimeJaNai/issues/36"""

ASYMMETRIC = """\
[02/11/2026-23:33:24] [E] [TRT] ModelImporter.cpp:138: --- Begin node ---
input: "/model/embeddings/tok_embeddings/Gather_output_0_quantized"
output: "/model/embeddings/tok_embeddings/Gather_output_0"
name: "/model/embeddings/tok_embeddings/Gather_output_0_DequantizeLinear"
op_type: "DequantizeLinear"

[02/11/2026-23:33:24] [E] [TRT] ModelImporter.cpp:139: --- End node ---
[02/11/2026-23:33:24] [E] [TRT] ModelImporter.cpp:141: ERROR: onnxOpImporters.cpp:1584 In function QuantDequantLinearHelper:
[6] Assertion failed: shiftIsAllZeros(zeroPoint): Non-zero zero point is not supported. Please set kENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLAto enable asymmetric quantization if it is on DLA.
"""  # noqa: E501
"""https://github.com/NVIDIA/TensorRT/issues/4698"""

OLD_DRIVER = """\
&&&& RUNNING TensorRT.sample_onnx_mnist [TensorRT v8600] # ./sample_onnx_mnist
[04/15/2023-04:37:46] [W] [TRT] Unable to determine GPU memory usage
[04/15/2023-04:37:46] [I] [TRT] [MemUsageChange] Init CUDA: CPU +0, GPU +0, now: CPU 5, GPU 0 (MiB)
[04/15/2023-04:37:46] [W] [TRT] CUDA initialization failure with error: 35. Please check your CUDA installation:  http://docs.nvidia.com/cuda/cuda-installation-guide-linux/index.html
&&&& FAILED TensorRT.sample_onnx_mnist [TensorRT v8600] # ./sample_onnx_mnist
"""
"""https://github.com/NVIDIA/TensorRT/issues/2879"""

OLD_DRIVER_FOR_TRTEXEC = "Cuda failure: CUDA driver version is insufficient for CUDA runtime version\n"
"""https://github.com/w111liang222/lidar-slam-detection/issues/64, its title"""

NO_GPU = """\
[E] [TRT] Cuda initialization failure with error 100. Please check cuda installation: http://docs.nvidia.com/cuda/cuda-installation-guide-linux/index.html.
"""
"""https://github.com/NVIDIA/TensorRT/issues/149"""

NO_GPU_FOR_TRTEXEC = "Cuda failure: no CUDA-capable device is detected\n"
"""A worklog in a public repository: what trtexec of 10.15.1 said in a sandbox without its GPU"""

CUDA_OUT_OF_MEMORY = "CUDA initialization failure with error 2. Please check your CUDA installation\n"
"""https://github.com/wang-xinyu/tensorrtx/issues/804"""

LIBRARY_MISSING = """\
[07/25/2024-13:52:57] [TRT] [E] IBuilder::buildSerializedNetwork: Error Code 6: API Usage Error (Unable to load library: libnvinfer_builder_resource_win.so.10.2.0: libnvinfer_builder_resource_win.so.10.2.0: cannot open shared object file: No such file or directory)
"""  # noqa: E501
"""https://github.com/replicate/cog-triton/issues/51"""

LIBRARY_MISSING_AT_START = (
    "/usr/local/lib/python3.10/dist-packages/tensorrt_llm/bin/executorWorker: error while loading shared libraries:"
    " libnvinfer.so.10: cannot open shared object file: No such file or directory\n"
)
"""https://github.com/NVIDIA/nim-deploy/issues/18"""

EXTERNAL_WEIGHTS_MISSING = """\
[11/20/2024-18:55:41] [TRT] [E] WeightsContext.cpp:178: Failed to open file: stdit3_simplified.onnx.data
[11/20/2024-18:55:41] [TRT] [E] In node -1 with name:  and operator:  (parseGraph): INVALID_GRAPH: Failed to import initializer
In node -1 with name:  and operator:  (parseGraph): INVALID_GRAPH: Failed to import initializer
"""  # noqa: E501
"""https://github.com/NVIDIA/TensorRT/issues/4257"""

GRAPH_MISSING = """\
[08/17/2025-20:09:54] [I] Start parsing network model.
[08/17/2025-20:09:54] [E] Error[3]: In node -1 with name:  and operator:  (parseFromFile): INVALID_VALUE: Assertion failed: stat(onnxModelFile, &sb) == 0 && S_ISREG(sb.st_mode): Input file cannot be found, or is not a regular file: models/mc3_dynamic.onnx
[08/17/2025-20:09:54] [E] Failed to parse onnx file
"""  # noqa: E501
"""Notes in a public repository, found by their banner [TensorRT v101300]"""

UNKNOWN_NAME = """\
[03/28/2023-11:22:54] [E] Cannot find input tensor with name "images" in the network inputs! Please make sure the input tensor names are correct.
[03/28/2023-11:22:54] [E] Network And Config setup failed
[03/28/2023-11:22:54] [E] Building engine failed
[03/28/2023-11:22:54] [E] Failed to create engine from model or file.
[03/28/2023-11:22:54] [E] Engine set up failed
"""  # noqa: E501
"""https://github.com/open-mmlab/mmdeploy/issues/1926"""

NO_PROFILE = """\
[2020-08-20 11:03:50   ERROR] Network has dynamic or shape inputs, but no optimization profile has been defined.
[2020-08-20 11:03:50   ERROR] Network validation failed.
"""
"""https://github.com/onnx/onnx-tensorrt/issues/518"""

PROFILE_AGAINST_THE_GRAPH = """\
[04/25/2022-20:38:30] [TRT] [E] 4: [shapeCompiler.cpp::evaluateShapeChecks::832] Error Code 4: Internal Error (kOPT values for profile 0 violate shape constraints: broadcast with incompatible dimensions.
"""  # noqa: E501
"""https://github.com/NVIDIA/TensorRT/issues/1947, cut at its end"""

DISK_FULL = """\
[04/24/2026-05:55:57] [E] Saving engine to file failed.
[04/24/2026-05:55:57] [E] Engine set up failed
&&&& FAILED TensorRT.trtexec [TensorRT v101000] [b31] # trtexec --onnx=/workspace/s2v_trt/stem.onnx --saveEngine=/workspace/s2v_trt/stem.fp8.trt --fp8 --bf16 --memPoolSize=workspace:8192 --verbose
"""  # noqa: E501
"""A session in a public repository, whose next command shows a disk that is full"""

UNKNOWN_OPTIONS = """\
[10/05/2025-10:46:31] [E] Unknown option: --workspace 2048
[10/05/2025-10:46:31] [E] Unknown option: --buildOnly
[10/05/2025-10:46:31] [E] Unknown option: --explicitBatch
&&&& FAILED TensorRT.trtexec [TensorRT v100300] # /usr/src/tensorrt/bin/trtexec --onnx=./models/best.onnx --saveEngine=models/best_fp16.engine --explicitBatch --fp16 --workspace=2048
"""  # noqa: E501
"""Notes in a public repository, found by their banner [TensorRT v100300]"""

OTHER_VERSION = """\
[05/02/2022-15:17:45] [TRT] [E] 6: The engine plan file is not compatible with this version of TensorRT, expecting library version 8.2.3 got 8.2.1, please rebuild.
[05/02/2022-15:17:45] [TRT] [E] 4: [runtime.cpp::deserializeCudaEngine::50] Error Code 4: Internal Error (Engine deserialization failed.)
"""  # noqa: E501
"""https://github.com/SthPhoenix/InsightFace-REST/issues/84"""

OTHER_SERIALIZATION = """\
[01/15/2026-07:20:09] [E] Error[1]: [runtime.cpp::parsePlan::455] Error Code 1: Serialization (Serialization assertion plan->header.magicTag == rt::kPLAN_MAGIC_TAG failed.Trying to load an engine created with incompatible serialization version. Check that the engine was not created using safety runtime, same OS was used and version compatibility parameters were set accordingly.)
[01/15/2026-07:20:09] [E] Engine deserialization failed
"""  # noqa: E501
"""Notes in a public repository, found by their banner [TensorRT v100001]"""

OTHER_DEVICE = """\
[03/27/2024-11:09:02] [TRT] [E] 6: The engine plan file is generated on an incompatible device, expecting compute 8.0 got compute 8.9, please rebuild.
"""  # noqa: E501
"""https://github.com/run-llama/llama_index/issues/12318"""

UNKNOWN = """\
[09/09/2025-10:24:51] [E] [TRT] [builder.cpp::nvinfer1::builder::createCaskKernelLibraryImpl::157] Error Code 2: Internal Error (Assertion validateCaskKLibSize(buffer.size) failed. )
[09/09/2025-10:24:51] [E] Builder creation failed
[09/09/2025-10:24:51] [E] Failed to create engine from model or file.
[09/09/2025-10:24:51] [E] Engine set up failed
&&&& FAILED TensorRT.trtexec [TensorRT v100800] [b43] # trtexec.exe --onnx=yolov8n.onnx --saveEngine=best.trt
"""  # noqa: E501
"""https://github.com/NVIDIA/TensorRT/issues/4572"""


def read_rtx_logs() -> dict[str, str]:
    """By what was wrong, what the logger of TensorRT-RTX 1.7.1 got on a machine without a GPU."""
    text = Path(__file__).with_name("rtx_failures.log").read_text(encoding="utf-8")
    cases = (case.partition("\n") for case in text.split("===== ")[1:])
    return {name: log for name, _, log in cases}
