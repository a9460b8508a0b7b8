"""`plansmith sagemaker policy`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plansmith.cli.sagemaker.options import ARCHIVES, spec_argument

if TYPE_CHECKING:
    from plansmith.sagemaker.endpoint.desired import DesiredState

_NAMES = ("deployer", "recommender", "operator", "execution", "recommender-role", "trust")


@click.command("policy", short_help="Print the IAM policies that an endpoint needs, and no more.")
@spec_argument
@click.option("--only", type=click.Choice(_NAMES), help="Print one of them, as IAM takes it.")
def policy_command(spec: Path, only: str | None) -> None:
    """Print the least that IAM has to allow for an endpoint, as JSON. AWS is not asked.

    \b
    deployer          for `plansmith sagemaker deploy`, `status` and `delete`
    recommender       for `plansmith sagemaker recommend`, with deployer
    operator          for `plansmith sagemaker invoke`, `status`, `metrics` and `verify`, which change nothing
    execution         for the role in the file, with which SageMaker reads archives and images and writes logs
    recommender-role  for that role, with execution: a job of recommend creates, invokes and deletes endpoints
    trust             the trust policy of that role

    The releases have to be there for deployer and execution, which name their images.

    \b
    plansmith sagemaker policy endpoint.yaml
    plansmith sagemaker policy endpoint.yaml --only deployer > deployer.json
    """
    from plansmith.sagemaker.deployment.deploy import prepare_archives
    from plansmith.sagemaker.endpoint import iam_policy
    from plansmith.sagemaker.endpoint.desired import desired_state
    from plansmith.sagemaker.endpoint.loader import read_endpoint

    endpoint = read_endpoint(spec)

    @cache
    def desired() -> DesiredState:
        return desired_state(endpoint, prepare_archives(endpoint, ARCHIVES, dry_run=True))

    policies: dict[str, Callable[[], dict[str, Any]]] = {
        "recommender": lambda: iam_policy.recommender_policy(endpoint),
        "recommender-role": lambda: iam_policy.recommender_role_policy(endpoint),
        "deployer": lambda: iam_policy.deployer_policy(endpoint, desired()),
        "operator": lambda: iam_policy.operator_policy(endpoint),
        "execution": lambda: iam_policy.execution_policy(endpoint, desired()),
        "trust": iam_policy.trust_policy,
    }
    document = policies[only]() if only else {name: policies[name]() for name in _NAMES}
    click.echo(json.dumps(document, indent=2))
