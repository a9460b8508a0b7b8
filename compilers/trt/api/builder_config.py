"""What a plan is built with, as TensorRT's builder configuration; precision has no part in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plansmith.records.engine import BuildSpec


def config_for(spec: BuildSpec, profiles: list[Any], monitor: Any, finish: Callable[[Any], None]) -> Any:
    """Polygraphy's loader of a configuration.

    Args:
        spec: says what is asked for.
        profiles: Polygraphy's, in order.
        monitor: a `tensorrt.IProgressMonitor`.
        finish: given the `IBuilderConfig` when all is set, for what Polygraphy has no argument for.
    """
    import tensorrt
    from polygraphy.backend.trt import CreateConfig, PostprocessConfig

    compatibility = spec.hardware_compatibility
    config = CreateConfig(
        tf32=spec.tf32,  # Polygraphy takes it away unless told
        profiles=profiles,
        sparse_weights=spec.sparsity,
        profiling_verbosity=getattr(tensorrt.ProfilingVerbosity, spec.verbosity.upper()),
        memory_pool_limits={
            getattr(tensorrt.MemoryPoolType, pool.upper()): limit for pool, limit in spec.memory_pools.items()
        },
        refittable=spec.refit,
        strip_plan=spec.strip_weights,
        builder_optimization_level=spec.optimization_level,
        hardware_compatibility_level=(
            None if compatibility == "none" else getattr(tensorrt.HardwareCompatibilityLevel, compatibility.upper())
        ),
        max_aux_streams=spec.max_aux_streams,
        version_compatible=spec.version_compatible,
        exclude_lean_runtime=spec.exclude_lean_runtime,
        error_on_timing_cache_miss=spec.error_on_timing_cache_miss,
        progress_monitor=monitor,
        tiling_optimization_level=getattr(tensorrt.TilingOptimizationLevel, spec.tiling.upper()),
    )
    return PostprocessConfig(config, lambda _builder, _network, made: _finish(spec, made, finish))


def _finish(spec: BuildSpec, config: Any, finish: Callable[[Any], None]) -> None:
    import tensorrt

    if spec.strip_weights and not spec.refit:  # 11's default, which 10.12 does not promise
        config.set_flag(tensorrt.BuilderFlag.REFIT_IDENTICAL)
    if spec.editable_timing_cache:
        config.set_flag(tensorrt.BuilderFlag.EDITABLE_TIMING_CACHE)
    finish(config)
