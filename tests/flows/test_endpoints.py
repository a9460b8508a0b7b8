"""`deploy-endpoints` as flow runs: each endpoint by itself, and what is as its file says is left alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from plansmith.triton.repository.repository import ModelRepository

from ..support.prefect.flow_calls import run_flows, tables_of
from ..support.prefect.prefect_server import PrefectServer
from ..support.sagemaker.account import AwsAccount, aws_endpoint, loader
from ..support.sagemaker.account import account as aws_account
from ..support.sagemaker.endpoints import write_endpoint
from ..support.sagemaker.releases import publish_onnx

__all__ = ["aws_account", "aws_endpoint", "loader"]

pytestmark = pytest.mark.services


def test_failing_endpoint_stops_no_other(prefect: PrefectServer, aws_account: AwsAccount, tmp_path: Path) -> None:
    """An endpoint that fails holds up no other."""
    publish_onnx(ModelRepository(tmp_path / "artifacts" / "repository"), tmp_path / "made", "tiny")
    (tmp_path / "endpoints").mkdir()
    for name, model in (("a-missing", "nothing"), ("b-good", "tiny")):
        variant = {"models": [model], "instance_type": "ml.m5.large"}
        place = {"bucket": f"s3://{aws_account.bucket}/sm", "repository": "../artifacts/repository"}
        written = write_endpoint(tmp_path, name=aws_account.name, smoke_test=False, variant=variant, **place)
        shutil.move(written, tmp_path / "endpoints" / f"{name}.yaml")
    both = {"endpoints": ["endpoints"], "folder": str(tmp_path)}
    good = {**both, "endpoints": ["endpoints/b-good.yaml"]}
    nowhere = {**both, "endpoints": ["endpoints/c.yaml"]}
    calls = [("deploy_endpoints", parameters) for parameters in (both, good, nowhere)]
    failed, again, absent = run_flows(prefect, tmp_path, *calls)
    assert failed == ["Failed", "RepositoryError"]
    assert absent == ["Failed", "UsageError"]
    assert (again[0], again[1][0]["config"], again[1][0]["requests"]) == ("Completed", aws_account.config(), 0)
    (first, _, _) = tables_of(prefect, "deploy-endpoints", tmp_path)
    assert first[:2] == ("deploy endpoints: endpoints", "FAILED")
    assert [row["endpoint"] for row in first[2]] == [aws_account.name] * 2
    assert [row["outcome"].partition(" ")[0] for row in first[2]] == ["failed:", "serves"]
