"""Endpoints of SageMaker that are kept as their files say, as a Prefect flow.

Prefect's runner pickles a flow's function by value: its annotations must be the classes themselves, so that this
module does without `from __future__ import annotations`.
"""

from pathlib import Path

from prefect.runtime import flow_run


def run_name() -> str:
    """What Prefect calls a run: the places of its files."""
    return f"deploy endpoints: {', '.join(Path(place).name for place in flow_run.parameters['endpoints'])}"
