"""The file of a service: what it says, and every way in which it can be wrong, with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from plansmith.config.service.service import FlowDeployment, ServiceConfig, read_service
from plansmith.errors import UsageError
from plansmith.flows.deploy.deployments import cron_problem, deployments_of, load_service

SHIPPED = Path(__file__).parents[2] / "configs" / "service.yaml"

TEAM = """
directory: work
specs: [specs]
pools:
  builders: {type: process, create: true, env: {HF_HUB_OFFLINE: "1"}}
  gpu-l4:
    type: docker
    targets: [triton-26.08]
    directory: /work
    job_variables: {image: "plansmith-worker:26.08"}
flows:
  refresh:
    pool: builders
    parameters: {longest_seconds: 600}
    schedules:
      nightly: {cron: "0 3 * * *", timezone: Europe/Berlin}
      noon: {cron: "0 12 * * 1-5", parameters: {force: true}}
"""


def _written(folder: Path, text: str) -> Path:
    path = folder / "service.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _deployments(folder: Path, text: str, *, served: bool = False) -> dict[str, FlowDeployment]:
    config = load_service(_written(folder, text)).config
    return {one.label: one for one in deployments_of(config, served=served)}


def test_every_pool_builds_models_and_the_flows_run_in_the_first_or_in_their_own(tmp_path: Path) -> None:
    assert list(_deployments(tmp_path, TEAM)) == [
        "compile-model/builders",
        "compile-model/gpu-l4",
        "compile-fleet/builders",
        "refresh/builders",
        "verify/builders",
        "collect/builders",
    ]


def test_a_deployment_names_its_flow_by_module_path_and_stores_no_code(tmp_path: Path) -> None:
    made = _deployments(tmp_path, TEAM)
    assert made["compile-fleet/builders"].entrypoint == "plansmith.flows.compile_fleet.compile_fleet"
    assert made["compile-model/builders"].pull_steps == ()


def test_a_process_works_in_the_directory_of_the_service_and_a_container_in_its_own(tmp_path: Path) -> None:
    made = _deployments(tmp_path, TEAM)
    assert made["compile-model/builders"].job_variables == {
        "working_dir": str(tmp_path / "work"),
        "env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "HF_HUB_OFFLINE": "1"},
    }
    container = made["compile-model/gpu-l4"]
    assert container.job_variables == {
        "env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"},
        "image": "plansmith-worker:26.08",
    }
    assert container.pull_steps == ({"prefect.deployments.steps.set_working_directory": {"directory": "/work"}},)


HOSTS = {
    "plansmith.example.org": "",
    "build_box": "",
    "https://plansmith.example.org": "must be a name such as plansmith.example.org",
    "plansmith.example.org:8420": "must be a name such as plansmith.example.org",
    "*.example.org": "must be a name such as plansmith.example.org",
}


@pytest.mark.parametrize("host", HOSTS)
def test_the_status_page_is_served_under_names_and_no_patterns(host: str, tmp_path: Path) -> None:
    registries = "{here: {type: folder, path: models}}"
    rules = "[{registry: here, model: '*', when: ready, spec: specs/a.yaml}]"
    triggers = f"triggers: {{registries: {registries}, rules: {rules}, hosts: ['{host}']}}"
    path = _written(tmp_path, f"specs: [specs]\npools: {{a: {{}}}}\n{triggers}\n")
    if HOSTS[host]:
        with pytest.raises(UsageError, match=HOSTS[host]):
            load_service(path)
        return
    config = load_service(path).config
    assert config.triggers is not None
    assert config.triggers.hosts == (host,)


def test_runs_fetch_from_the_mlflow_server_of_the_triggers_unless_a_pool_says_otherwise(tmp_path: Path) -> None:
    triggers = """\
triggers:
  registries: {ours: {type: mlflow, tracking_uri: "http://mlflow:5000"}}
  rules: [{registry: ours, model: a, when: alias, spec: a.yaml}]
"""
    for more, server in (("", "http://mlflow:5000"), ("env: {MLFLOW_TRACKING_URI: http://near}", "http://near")):
        text = f"specs: [specs]\npools: {{a: {{{more}}}}}\n{triggers}"
        (one, *_) = deployments_of(load_service(_written(tmp_path, text)).config)
        assert one.job_variables["env"]["MLFLOW_TRACKING_URI"] == server


def test_runs_fetch_from_the_s3_server_of_the_triggers_unless_a_pool_says_otherwise(tmp_path: Path) -> None:
    triggers = """\
triggers:
  registries: {ours: {type: s3, prefix: "s3://models/team", endpoint_url: "http://minio:9000"}}
  rules: [{registry: ours, model: a, when: ready, spec: a.yaml}]
"""
    for more, server in (("", "http://minio:9000"), ("env: {AWS_ENDPOINT_URL_S3: http://near}", "http://near")):
        text = f"specs: [specs]\npools: {{a: {{{more}}}}}\n{triggers}"
        (one, *_) = deployments_of(load_service(_written(tmp_path, text)).config)
        assert one.job_variables["env"]["AWS_ENDPOINT_URL_S3"] == server


@pytest.mark.parametrize(
    ("registries", "words"),
    [
        ("ours: {type: s3, prefix: /srv/models}", "must be s3://bucket/prefix"),
        ("ours: {type: s3, prefix: 's3://models//team'}", "a prefix has no empty parts"),
        ("ours: {type: s3, prefix: 's3://models', queue_endpoint_url: 'http://jo:pw@host'}", "holds no credentials"),
        ("ours: {type: sagemaker, queue_url: x, sagemaker_endpoint_url: minio}", "an endpoint is http://host:port"),
        (
            "ours: {type: s3, prefix: 's3://models'}, theirs: {type: s3, prefix: 's3://a-b', endpoint_url: 'http://m:9'}",
            "registries of type s3 are on 2 servers",
        ),
    ],
)
def test_wrong_registries_of_aws_are_refused(registries: str, words: str, tmp_path: Path) -> None:
    rules = "rules: [{registry: ours, model: a, when: ready, spec: a.yaml}]"
    text = f"specs: [specs]\npools: {{a: {{}}}}\ntriggers:\n  registries: {{{registries}}}\n  {rules}\n"
    with pytest.raises(UsageError) as refused:
        load_service(_written(tmp_path, text))
    assert words in str(refused.value)
    assert "jo:pw" not in str(refused.value)


def test_a_fleet_knows_its_specs_and_which_pool_builds_for_which_target(tmp_path: Path) -> None:
    refresh = _deployments(tmp_path, TEAM)["refresh/builders"]
    assert refresh.parameters == {
        "specs": ["specs"],
        "pools": {"triton-26.08": "gpu-l4", "": "builders"},
        "longest_seconds": 600,
    }
    assert [(one.name, one.timezone, one.parameters) for one in refresh.schedules] == [
        ("nightly", "Europe/Berlin", {}),
        ("noon", "UTC", {"force": True}),
    ]


@pytest.mark.slow
def test_verify_and_collect_look_after_what_the_fleet_makes(tmp_path: Path) -> None:
    made = _deployments(tmp_path, TEAM)
    assert made["verify/builders"].parameters == made["collect/builders"].parameters == {"specs": ["specs"]}
    elsewhere = TEAM.replace("{longest_seconds: 600}", "{overrides: {repository: /srv/models}}")
    collect = _deployments(tmp_path, elsewhere + "  collect: {parameters: {keep: 9}}\n")["collect/builders"]
    assert collect.parameters == {"specs": ["specs"], "overrides": {"repository": "/srv/models"}, "keep": 9}


def test_a_target_of_a_file_is_called_as_plans_call_it(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "ours.yaml").write_text("description: ours\nflavour: triton\ndevices: [gpu]\n")
    text = TEAM.replace("targets: [triton-26.08]", "targets: [ours.yaml]")
    assert _deployments(tmp_path, text)["refresh/builders"].parameters["pools"] == {"ours": "gpu-l4", "": "builders"}


def test_what_is_served_has_no_pools_and_builds_by_itself(tmp_path: Path) -> None:
    made = _deployments(tmp_path, TEAM, served=True)
    assert len(made) == 5
    assert {(one.name, one.pool) for one in made.values()} == {("served", "")}
    assert "pools" not in made["refresh/served"].parameters
    assert made["refresh/served"].schedules


def test_the_shipped_service_is_one_and_works_in_the_checkout() -> None:
    config = load_service(SHIPPED).config
    assert config.directory == str(SHIPPED.parents[1])
    assert all((SHIPPED.parents[1] / place).exists() for place in config.specs)


def test_a_service_survives_json(tmp_path: Path) -> None:
    config = read_service(_written(tmp_path, TEAM), cron=cron_problem).config
    read = ServiceConfig.model_validate_json(config.model_dump_json(), context={"cron": cron_problem})
    assert read == config


WRONG = {
    "an unknown key": ("pools:\n  a: {kind: process}", ["service.yaml:3 'pools.a.kind'"]),
    "a schedule that is no cron": (
        'pools: {a: {}}\nflows:\n  refresh:\n    schedules:\n      nightly:\n        cron: "0 25 * * *"',
        ["service.yaml:7: 'flows.refresh.schedules.nightly.cron'", "is no cron schedule", "such as 0 3 * * 1-5"],
    ),
    "a random cron": (
        'pools: {a: {}}\nflows: {refresh: {schedules: {n: {cron: "R 3 * * *"}}}}',
        ["service.yaml:3", "is no cron schedule"],
    ),
    "a time zone": (
        'pools: {a: {}}\nflows: {refresh: {schedules: {n: {cron: "0 3 * * *", timezone: Berlin}}}}',
        ["service.yaml:3", "no time zone", "Europe/Berlin"],
    ),
    "an unknown flow": ("pools: {a: {}}\nflows: {rebuild: {}}", ["service.yaml:3", "rebuild"]),
    "a flow in no pool": ("pools: {a: {}, b: {}}\nflows: {verify: {pool: c}}", ["service.yaml:3", "but a, b"]),
    "a parameter that the flow does not have": (
        "pools: {a: {}}\nflows:\n  verify:\n    parameters: {quickly: true}",
        ["service.yaml:5", "'quickly' is no parameter of this flow", "quick,"],
    ),
    "a parameter of another kind": (
        "pools: {a: {}}\nflows:\n  verify:\n    parameters:\n      quick: [1]",
        ["service.yaml:6", "quick", "boolean"],
    ),
    "a parameter of a schedule": (
        'pools: {a: {}}\nflows:\n  refresh:\n    schedules:\n      n: {cron: "0 3 * * *", parameters: {speed: 1}}',
        ["service.yaml:6", "'speed' is no parameter"],
    ),
    "one target in two pools": (
        "pools:\n  a: {targets: [local-cpu]}\n  b: {targets: [local-cpu]}",
        ["service.yaml:4", "local-cpu is built in the pool a already"],
    ),
    "a target that there is not": (
        "pools:\n  a: {}\n  b:\n    targets:\n    - local-cpu\n    - triton-2608",
        ["service.yaml:7", "'pools.b.targets': there is no target 'triton-2608'", "did you mean triton-26.08"],
    ),
    "the file of a target that is not there": (
        "pools:\n  a: {targets: [ours.yaml]}",
        ["service.yaml:3", "'pools.a.targets': ", "ours.yaml"],
    ),
    "no pool": ("pools: {}", ["service.yaml:2", "'pools'", "at least 1"]),
    "a pool that stands for serving": ("pools: {served: {}}", ["service.yaml:2", "plansmith flows serve"]),
    "a name with a slash": ("pools: {a/b: {}}", ["service.yaml:2", "starts with a letter or digit"]),
    "patience that is too short": ("pools: {a: {}}\ncrashed_after_seconds: 40", ["service.yaml:3", "60 or more"]),
    "heartbeats that Prefect refuses": ("pools: {a: {}}\nheartbeat_seconds: 5", ["service.yaml:3", "30 or more"]),
    "no block": ("pools: {a: {}}\nnotifications: {failure: [me@example.org]}", ["service.yaml:3", "TYPE/NAME"]),
    "a rule of a registry that there is not": (
        "pools: {a: {}}\ntriggers: {registries: {a: {type: folder, path: a}}, rules: [RULE]}".replace(
            "RULE", "{registry: b, model: a, when: ready, spec: a.yaml}"
        ),
        ["service.yaml:3: 'triggers.rules.0.registry': there is no registry 'b' here, but a"],
    ),
    "a registry of no known kind": (
        "pools: {a: {}}\ntriggers:\n  registries:\n    ours: {type: ftp}\n  rules: []",
        ["service.yaml:5", "triggers.registries.ours", "triggers.rules"],
    ),
    "two servers of MLflow": (
        """pools: {a: {}}
triggers:
  registries: {a: {type: mlflow, tracking_uri: "http://a"}, b: {type: mlflow, tracking_uri: "http://b"}}
  rules: [{registry: a, model: m, when: alias, spec: m.yaml}]""",
        ["service.yaml:3", "registries name 2 MLflow servers"],
    ),
    "a key of a registry": (
        "pools: {a: {}}\ntriggers:\n  registries:\n    ours: {type: mlflow, tracking_uri: 5}\n  rules: []",
        ["service.yaml:5", "'triggers.registries.ours.tracking_uri'"],
    ),
    "a home folder": ("pools: {a: {}}\ndirectory: ~/work", ["service.yaml:3", "another folder for every user"]),
    "a folder of a pool's machines beside this file": (
        "pools: {a: {directory: work}}",
        ["service.yaml:2", "must begin with /"],
    ),
    "a variable": ("pools: {a: {}}\ndirectory: $WORK", ["service.yaml:3", "environment variable $WORK"]),
}


@pytest.mark.parametrize(("text", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_with_its_line(text: str, says: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        load_service(_written(tmp_path, f"specs: [specs]\n{text}\n"))
    assert refused.value.remedy
    assert not [word for word in says if word not in refused.value.message], refused.value.message


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    text = 'pools: {a: {typ: process}}\nflows: {refresh: {schedules: {n: {cron: "nightly"}}}}\n'
    with pytest.raises(UsageError, match=r"(?s)3 problem\(s\) in the file of the service.*typ.*specs.*cron"):
        load_service(_written(tmp_path, text))


@pytest.mark.parametrize(("text", "says"), [("- a", "mapping with `specs` and `pools`"), ("a: [", "is not YAML")])
def test_a_file_that_is_none_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        load_service(_written(tmp_path, text))
    assert refused.value.remedy


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file .*absent\.yaml"):
        load_service(tmp_path / "absent.yaml")
