"""Endpoints of SageMaker that are kept as their files say, as a Prefect flow.

Prefect's runner pickles a flow's function by value: its annotations must be the classes themselves, so that this
module does without `from __future__ import annotations`.
"""

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from plansmith.errors import PlansmithError
from plansmith.flows.prefect_api.one_at_a_time import superseded
from plansmith.flows.prefect_api.run_log import RunLog
from plansmith.flows.prefect_api.serving_process import end_with_serving_process


def run_name() -> str:
    """What Prefect calls a run: the places of its files."""
    return f"deploy endpoints: {', '.join(Path(place).name for place in flow_run.parameters['endpoints'])}"
