"""TensorRT's Python API: the only code that imports `tensorrt`, and only within functions.

What is used here is there in TensorRT 10.12 to 10.16 and in 11.x; tests/compilers/trt holds it against the real
bindings.
"""
