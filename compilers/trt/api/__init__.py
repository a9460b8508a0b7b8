"""TensorRT's Python API: the one place that imports `tensorrt`, and only inside of functions.

What is used here is there in TensorRT 10.12 to 10.16 and in 11.x; tests/compilers/trt holds it against the real
bindings.
"""
