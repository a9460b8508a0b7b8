"""`plansmith sagemaker`: releases on Amazon SageMaker."""

from __future__ import annotations

import click

from plansmith.cli.sagemaker.deploy import deploy_command
from plansmith.cli.sagemaker.endpoint import delete_command, policy_command, status_command, verify_command
from plansmith.cli.sagemaker.invoke import invoke_command
from plansmith.cli.sagemaker.metrics import alarms_command, metrics_command
from plansmith.cli.sagemaker.package import package_command, register_command
from plansmith.cli.sagemaker.recommend import recommend_command

_COMMANDS = (
    package_command,
    register_command,
    deploy_command,
    status_command,
    delete_command,
    policy_command,
    recommend_command,
    invoke_command,
    metrics_command,
    alarms_command,
    verify_command,
)


@click.group("sagemaker", short_help="Releases on Amazon SageMaker: archives, endpoints, registry.")
def sagemaker_group() -> None:
    """Manage releases on Amazon SageMaker, served by its Triton containers.

    \b
    plansmith sagemaker package minilm
    plansmith sagemaker register minilm --group minilm --upload s3://models/sagemaker
    plansmith sagemaker recommend endpoint.yaml --dry-run
    plansmith sagemaker deploy endpoint.yaml --dry-run
    plansmith sagemaker invoke minilm-prod --model minilm --text "a cat"
    plansmith sagemaker metrics minilm-prod --since 1d --plot minilm.html
    """


for _command in _COMMANDS:
    sagemaker_group.add_command(_command)
