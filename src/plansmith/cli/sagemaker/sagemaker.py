"""`plansmith sagemaker`: releases on Amazon SageMaker."""

from __future__ import annotations

import click

from plansmith.cli.sagemaker.alarms import alarms_command
from plansmith.cli.sagemaker.delete import delete_command
from plansmith.cli.sagemaker.deploy import deploy_command
from plansmith.cli.sagemaker.invoke import invoke_command
from plansmith.cli.sagemaker.metrics import metrics_command
from plansmith.cli.sagemaker.package import package_command
from plansmith.cli.sagemaker.policy import policy_command
from plansmith.cli.sagemaker.status import status_command
from plansmith.cli.sagemaker.verify import verify_command


@click.group("sagemaker", short_help="Releases on Amazon SageMaker: archives for its Triton containers, and endpoints.")
def sagemaker_group() -> None:
    """Releases on Amazon SageMaker, served by its Triton containers.

    \b
    plansmith sagemaker package minilm
    plansmith sagemaker package bert resnet50 --multi-model --output archives
    plansmith sagemaker deploy endpoint.yaml --dry-run
    plansmith sagemaker status endpoint.yaml
    plansmith sagemaker invoke minilm-prod --model minilm --text "a cat"
    plansmith sagemaker metrics minilm-prod --since 1d --plot minilm.html
    plansmith sagemaker alarms minilm-prod --limit p99-ms=200
    plansmith sagemaker verify minilm-prod --max-error-rate 1%
    """


for _command in (
    package_command,
    deploy_command,
    status_command,
    delete_command,
    policy_command,
    invoke_command,
    metrics_command,
    alarms_command,
    verify_command,
):
    sagemaker_group.add_command(_command)
