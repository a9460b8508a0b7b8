"""What a person is told of the machine."""

from __future__ import annotations

from ..support.cli.command import CommandLine


def test_doctor_finds_a_machine_that_compiles_and_serves(terminal: CommandLine) -> None:
    """`plansmith doctor --deep` says that a compile would work here, has seen Triton start, and leaves nothing."""
    document = terminal.document("doctor", "--deep")
    assert (document["exit_code"], document["counts"]["problem"]) == (0, 0)
    assert document["verdict"].startswith("This machine can compile for ONNX Runtime")
    found = {f"{one['area']}: {one['name']}": one["found"] for one in document["findings"]}
    assert found["Triton: start"].endswith("started, answered and ended")
    assert list(terminal.folder.iterdir()) == []
