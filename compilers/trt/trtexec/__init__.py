"""NVIDIA's trtexec as a plan builder: its command line, its output, and its process.

What it takes is read from its sources, samples/common/sampleOptions.cpp and sampleEngines.cpp of
https://github.com/NVIDIA/TensorRT at 10.13, 11.0 and 11.1.
"""
