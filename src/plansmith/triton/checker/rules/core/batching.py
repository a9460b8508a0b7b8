"""Triton core rules on dynamic batching and the response cache; `config.*` of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plansmith.triton.checker.findings import Finding, Rule
from plansmith.triton.checker.model_folder import CheckContext, ModelFolder

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

_VALIDATE = "core: src/model_config_utils.cc, ValidateModelConfig; Triton 2.51 was seen to do so"

PREFERRED = Rule(
    "config.preferred-batch-size",
    "error",
    "each preferred batch size is positive and not above max_batch_size",
    _VALIDATE,
)
UNBATCHED = Rule(
    "config.batcher-without-batches",
    "warning",
    "only a model with max_batch_size above 0 has a dynamic batcher: requests are not put together otherwise",
    "server: docs/user_guide/batcher.md; Triton 2.51 loads such a model and batches nothing",
)
PRIORITY = Rule(
    "config.priority-level",
    "error",
    "with priority levels, the default level and those of queue policies are among them, from 1",
    _VALIDATE,
)
ORDERING = Rule(
    "config.preserve-ordering",
    "error",
    "what preserves the order of requests has one priority level and delays none",
    _VALIDATE,
)
CACHE = Rule(
    "config.response-cache",
    "error",
    "a model with a response cache has no sequence batcher and is not decoupled",
    _VALIDATE,
)
CACHE_OFF = Rule(
    "config.response-cache-off",
    "note",
    "a response cache works where the server is given one: --cache-config=local,size=BYTES",
    "server: docs/user_guide/response_cache.md",
)
RULES: tuple[Rule, ...] = (PREFERRED, UNBATCHED, PRIORITY, ORDERING, CACHE, CACHE_OFF)


def check(model: ModelFolder, surroundings: CheckContext) -> Iterator[Finding]:
    """Yield batching and response cache settings that Triton's core would refuse or ignore."""
    if model.config is None:
        return
    yield from _dynamic_batching(model, model.config)
    yield from _cache(model, model.config, surroundings)


def _dynamic_batching(model: ModelFolder, config: pb.ModelConfig) -> Iterator[Finding]:
    if not config.HasField("dynamic_batching"):
        return
    batching, largest = config.dynamic_batching, config.max_batch_size
    for size in batching.preferred_batch_size:
        if size <= 0 or size > largest:
            yield model.faulted(
                PREFERRED,
                f"preferred_batch_size has {size}, and max_batch_size is {largest}",
                "dynamic_batching",
                "preferred_batch_size",
                remedy=f"choose sizes from 1 to {largest}" if largest > 0 else "leave dynamic_batching out",
            )
    # A TensorRT plan may have Triton raise max_batch_size, and so may a graph of which no input is listed.
    if not largest and config.input and model.backend != "tensorrt" and not batching.preferred_batch_size:
        yield model.faulted(
            UNBATCHED,
            "dynamic_batching does nothing where max_batch_size is 0",
            "dynamic_batching",
            remedy="set max_batch_size, or leave dynamic_batching out",
        )
    yield from _priorities(model, batching)


def _priorities(model: ModelFolder, batching: pb.ModelDynamicBatching) -> Iterator[Finding]:
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        yield model.faulted(
            PRIORITY,
            f"default_priority_level is {batching.default_priority_level}, and there are {levels} levels",
            "priority_levels",
            remedy=f"write default_priority_level: a number from 1 to {levels}",
        )
    for level in sorted(batching.priority_queue_policy):
        if levels and not 1 <= level <= levels:
            yield model.faulted(
                PRIORITY,
                f"priority_queue_policy is for level {level}, and there are {levels} levels",
                "priority_queue_policy",
                remedy=f"name levels from 1 to {levels}",
            )
    if not batching.preserve_ordering:
        return
    if levels > 1:
        yield model.faulted(
            ORDERING,
            f"preserve_ordering does not go with {levels} priority levels",
            "preserve_ordering",
            remedy="take one of them out",
        )
    policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
    if any(policy.default_timeout_microseconds and policy.timeout_action == policy.DELAY for policy in policies):
        yield model.faulted(
            ORDERING,
            "preserve_ordering does not go with a queue policy that delays requests",
            "DELAY",
            remedy="write timeout_action: REJECT, or take preserve_ordering out",
        )


def _cache(model: ModelFolder, config: pb.ModelConfig, surroundings: CheckContext) -> Iterator[Finding]:
    if not config.response_cache.enable:
        return
    for clash, is_so in (
        ("sequence_batching", config.HasField("sequence_batching")),
        ("decoupled", config.model_transaction_policy.decoupled),
    ):
        if is_so:
            yield model.faulted(
                CACHE,
                f"response_cache does not go with {clash}",
                "response_cache",
                remedy="take response_cache out",
            )
    if not surroundings.argument("cache-config") and not surroundings.argument("response-cache-byte-size"):
        yield model.faulted(
            CACHE_OFF,
            "the response cache works only where the server is given one",
            "response_cache",
            remedy="start Triton with --cache-config=local,size=BYTES (and tell this check by --server-argument)",
        )
