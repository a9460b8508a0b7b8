"""What a person is told of the machine."""

from __future__ import annotations

from ..support.cli.command import CommandLine


def test_doctor_finds_working_machine(terminal: CommandLine) -> None:
    """`plansmith doctor --deep` says that a compile would work here, has seen Triton start, and leaves nothing."""
    document = terminal.document("doctor", "--deep")
    assert (document["exit_code"], document["counts"]["problem"]) == (0, 0)
    assert document["verdict"].startswith("This machine can compile for ONNX Runtime")
    by_name = {f"{finding['area']}: {finding['name']}": finding["found"] for finding in document["findings"]}
    assert by_name["Triton: start"].endswith("started, answered and ended")
    assert list(terminal.folder.iterdir()) == []
