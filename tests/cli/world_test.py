"""`pipewright train` on several processes, however they were started. PIPEWRIGHT_BIN names the program."""

import json
import os
import socket
import subprocess
import sys

import pytest
from namespaces import Hosts, namespaces_work

TIMEOUT = 120
MODEL = "--layers 3 --width 16 --heads 2 --context 12 --batch 2 --steps 3 --json".split()
LAUNCHER_VARIABLES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def clean_environment(**extra: object) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    return kept | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in extra.items()}


def run(*command: object, **environment: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=TIMEOUT,
        env=clean_environment(**environment),
    )


def start_ranks(commands: list[list[object]], environments: list[dict]) -> list[subprocess.Popen]:
    return [
        subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=clean_environment(**environment),
        )
        for command, environment in zip(commands, environments)
    ]


def finish(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Exit code and both outputs of each."""
    try:
        outputs = [process.communicate(timeout=TIMEOUT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *output) for process, output in zip(processes, outputs)]


def losses(text: str) -> list[float]:
    steps = [json.loads(line) for line in text.splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    return [step["loss"] for step in steps]


def assert_same(text: str, expected: list[float]) -> None:
    assert losses(text) == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def train(program):
    def command(schedule: str, *arguments: object, microbatches: int = 4) -> list[object]:
        return [program, "train", "--schedule", schedule, "-m", microbatches, *MODEL, *arguments]

    return command


@pytest.fixture(scope="module")
def alone(train) -> list[float]:
    result = run(*train("1F1B", "-p", 1))
    assert result.returncode == 0, result.stderr
    return losses(result.stdout)


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV", "V-Min"])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_launched_processes_train_as_one(schedule, processes, program, train, alone):
    result = run(program, "launch", "-n", processes, "--", *train(schedule, "-p", 4))
    assert result.returncode == 0, result.stderr
    assert_same(result.stdout, alone)


@pytest.mark.parametrize("sharded", [[], ["--sharded"]], ids=["replicated", "sharded"])
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_replicas_train_as_one_pipeline_with_all_their_data(
    schedule, processes, sharded, program, train, alone
):
    command = train(schedule, "-p", 2, "--data-parallel", 2, *sharded, microbatches=2)
    result = run(program, "launch", "-n", processes, "--", *command)
    assert result.returncode == 0, result.stderr
    assert_same(result.stdout, alone)


def test_replicas_in_threads_train_as_one_pipeline_with_all_their_data(train, alone):
    result = run(*train("DualPipeV", "-p", 2, "--data-parallel", 4, microbatches=1))
    assert result.returncode == 0, result.stderr
    assert_same(result.stdout, alone)


def test_number_of_parameters_is_that_of_one_model(program, train):
    command = [word for word in train("1F1B", "-p", 2, "--data-parallel", 2) if word != "--json"]
    texts = [run(*command).stdout]
    for extra in ([], ["--sharded"]):
        result = run(program, "launch", "-n", 4, "--", *command, *extra)
        assert result.returncode == 0, result.stderr
        texts.append(result.stdout)
    first_lines = [text.splitlines()[0].replace("sharded ", "") for text in texts]
    assert first_lines[0] == first_lines[1] == first_lines[2]
    assert "replicas 2; " in first_lines[0]


def test_torchrun_starts_replicas_too(train, alone):
    result = run(
        *[sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 4],
        *["--master-port", free_port(), "--no-python"],
        *train("Interleaved1F1B", "-p", 2, "--data-parallel", 2, "--sharded", microbatches=2),
    )
    assert result.returncode == 0, result.stderr
    assert_same(result.stdout, alone)


def test_torchrun_starts_it_too(train, alone):
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    port = free_port()
    result = run(
        *[*torchrun, "--nproc-per-node", 2, "--master-port", port, "--no-python"],
        *train("ZBVZeroBubble", "-p", 2),
    )
    assert result.returncode == 0, result.stderr
    assert_same(result.stdout, alone)


def test_plain_variables_start_it_too(train, alone):
    port = free_port()
    variables = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ended = finish(start_ranks([train("1F1B", "-p", 2)] * 2, [variables | {"RANK": rank} for rank in (0, 1)]))
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert_same(ended[0][1], alone)
    assert ended[1][1] == ""


def test_processes_with_different_schedules_are_refused(train):
    variables = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ended = finish(
        start_ranks(
            [train("1F1B", "-p", 2), train("GPipe", "-p", 2)], [variables | {"RANK": rank} for rank in (0, 1)]
        )
    )
    for code, _, errors in ended:
        assert code == 1
        assert "of rank 0: process 0 has" in errors


def test_schedule_that_does_not_fit_the_world_is_wrong_usage(program, train):
    result = run(program, "launch", "-n", 2, "--", *train("1F1B", "-p", 3))
    assert result.returncode == 2
    assert "3 ranks does not fit a world of 2 processes" in result.stderr


def test_replicas_that_do_not_fit_the_world_are_wrong_usage(program, train):
    command = train("1F1B", "-p", 2, "--data-parallel", 2)
    result = run(program, "launch", "-n", 3, "--", *command)
    assert result.returncode == 2
    assert "2 ranks in 2 replicas does not fit a world of 3 processes" in result.stderr


def test_variables_that_do_not_fit_together_are_wrong_usage(train):
    result = run(*train("1F1B", "-p", 2), RANK=5, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1")
    assert result.returncode == 2
    assert "RANK must be a number from 0 to 1" in result.stderr


def test_report_is_that_of_all_ranks(program, tmp_path):
    page, costs = tmp_path / "page.html", tmp_path / "costs.json"
    options = [*MODEL[:-1], "--schedule", "1F1B", "-p", 2, "-m", 4, "--timeline", page, "--write-costs", costs]
    result = run(program, "launch", "-n", 2, "--", program, "train", *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("predicted") == 1
    stages = json.loads(costs.read_text())["stages"]
    assert len(stages) == 2
    assert all(stage["f"] > 0 and stage["b"] > 0 for stage in stages)
    assert "1F1B" in page.read_text()


# ---- machines of their own ---------------------------------------------------------------------


@pytest.mark.skipif(not namespaces_work(), reason="network namespaces need root, iproute2 and their kernel part")
def test_four_hosts_train_together(train, alone):
    with Hosts(4) as hosts:
        commands = [
            ["ip", "netns", "exec", name, *train("ZBVZeroBubble", "-p", 4)] for name in hosts.names
        ]
        variables = {"WORLD_SIZE": 4, "MASTER_ADDR": hosts.address(0), "MASTER_PORT": 29500}
        ended = finish(start_ranks(commands, [variables | {"RANK": rank} for rank in range(4)]))
    assert [code for code, _, _ in ended] == [0] * 4, ended
    assert_same(ended[0][1], alone)
