"""What it costs to poll an MLflow server that has many models.

    python -m benchmarks.polling [MODELS] [ROUNDS]

A server that answers as MLflow does, in this process, has so many models with an alias each. They are polled by
rules that name each of them, and by one rule for all. CPU seconds are those of the thread that polls.
"""

from __future__ import annotations

import sys
import time
from statistics import median

from tests.support.triggers.mlflow_server import Mlflow, serving

from plansmith.config.service_triggers import MlflowRegistry, Rule
from plansmith.triggers.pollers.mlflow import MlflowPoller

MOST_CPU_SECONDS, MOST_MODELS = 5.0, 1000


def main(models: int, rounds: int) -> None:
    names = [f"model-{number}" for number in range(models)]
    common = {"registry": "models", "spec": "specs/model.yaml", "when": "alias", "value": "champion"}
    by_name = [Rule.model_validate({**common, "model": name}) for name in names]
    for_all = [Rule.model_validate({**common, "model": "*"})]
    with serving(Mlflow()) as server:
        for name in names:
            server.add(name, 1)
            server.aliases[name] = {"champion": "1"}
        config = MlflowRegistry(type="mlflow", tracking_uri=server.url)
        for label, rules in (("a rule for each model", by_name), ("one rule for all", for_all)):
            poller = MlflowPoller("models", config, rules, environment={}, tell=print)
            used = [_used(poller, models) for _ in range(rounds)]
            met = median(used) * MOST_MODELS / models <= MOST_CPU_SECONDS
            print(
                f"{models} models, {label}: {median(used):.2f} CPU s a round ({min(used):.2f} to {max(used):.2f});"
                f" the aim, at most {MOST_CPU_SECONDS:.0f} for {MOST_MODELS}, is {'met' if met else 'MISSED'}"
            )


def _used(poller: MlflowPoller, models: int) -> float:
    before = time.thread_time()
    deliveries = poller.poll(time.time())
    used = time.thread_time() - before
    if len(deliveries) != models:
        sys.exit(f"{len(deliveries)} of {models} models were seen")
    return used


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MOST_MODELS, int(sys.argv[2]) if len(sys.argv) > 2 else 5)
