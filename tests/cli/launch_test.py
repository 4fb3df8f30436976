"""`pipewright launch`, with shells as ranks. PIPEWRIGHT_BIN names the program."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

TIMEOUT = 60
OPTIONS = ["--help", "-n", "--grace", "--master-port", "--restarts"]
WRITE_ENVIRONMENT = "import json, os; json.dump(dict(os.environ), open('env.' + os.environ['RANK'], 'w'))"
# In the shell of a rank: it tells who it is, and then waits, longer than any test but not for ever.
TELL = "echo $$ > pid.$RANK; touch ready.$RANK; "
WAIT = TELL + "exec sleep 200"
IGNORE = "trap '' HUP INT TERM; " + WAIT
# Waits for a signal and tells which it was, after a while. Shells can miss one.
CATCHER = """
import os, pathlib, signal, sys, time
name, code = sys.argv[1:]
signals = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
pathlib.Path("pid." + name).write_text(str(os.getpid()))
pathlib.Path("ready." + name).touch()
number = signal.sigwait(signals)
time.sleep(0.2)
pathlib.Path("got." + name).write_text(signal.Signals(number).name)
sys.exit(int(code))
"""


@pytest.fixture
def launch(program, tmp_path):
    """Starts a launch in a folder of its own; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments, environment=os.environ, ignored=()):
            def prepare():
                for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

            process = subprocess.Popen(
                [program, "launch", *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env=environment,
                preexec_fn=prepare,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def call(launch):
    """A launch to its end."""

    def run(*arguments, **how):
        return result_of(launch(*arguments, **how))

    return run


@pytest.fixture
def ready(tmp_path):
    """Waits for ranks; the numbers of their processes."""

    def wait(*ranks):
        wait_until(lambda: all((tmp_path / f"ready.{rank}").exists() for rank in ranks))
        return [pid_of(tmp_path, rank) for rank in ranks]

    return wait


def result_of(process, stdin=""):
    """Exit code, standard output, standard error."""
    stdout, stderr = process.communicate(stdin, timeout=TIMEOUT)
    return process.returncode, stdout, stderr


def wait_until(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pid_of(folder, rank):
    return int((folder / f"pid.{rank}").read_text())


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def shells(*texts):
    """A command that runs in every rank the text that is its own."""
    cases = " ".join(f"{rank}) {text} ;;" for rank, text in enumerate(texts))
    return ["-n", len(texts), "--", "sh", "-c", f"case $RANK in {cases} esac"]


def catch(name="$RANK", code=0):
    """The text that runs the catcher."""
    return f"exec {shlex.quote(sys.executable)} -c {shlex.quote(CATCHER)} {name} {code}"


def once_ready(text, *ranks):
    """The text, run when these other ranks wait."""
    files = " && ".join(f"[ -e ready.{rank} ]" for rank in ranks)
    return f"{TELL} until {files}; do sleep 0.02; done; {text}"


# ---- what a rank is given ----------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_environment_of_every_rank(ranks, call, tmp_path):
    stale = {"RANK": "77", "WORLD_SIZE": "78", "MASTER_ADDR": "elsewhere", "MASTER_PORT": "1", "OWN": "kept"}
    environment = {**os.environ, **stale}
    environment.pop("OMP_NUM_THREADS", None)
    result = call("-n", ranks, "--", sys.executable, "-c", WRITE_ENVIRONMENT, environment=environment)
    assert result == (0, "", "")
    assert len(list(tmp_path.iterdir())) == ranks
    ports = set()
    for rank in range(ranks):
        given = json.loads((tmp_path / f"env.{rank}").read_text())
        assert (given["RANK"], given["LOCAL_RANK"]) == (str(rank), str(rank))
        assert (given["WORLD_SIZE"], given["LOCAL_WORLD_SIZE"]) == (str(ranks), str(ranks))
        assert (given["MASTER_ADDR"], given["OWN"]) == ("127.0.0.1", "kept")
        assert given["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // ranks))
        ports.add(int(given["MASTER_PORT"]))
    assert len(ports) == 1 and 1024 <= ports.pop() <= 65535


def test_threads_that_the_user_has_set(call):
    environment = {**os.environ, "OMP_NUM_THREADS": "7"}
    assert call(*shells("echo $OMP_NUM_THREADS"), environment=environment) == (0, "7\n", "")


def test_port_that_the_user_has_set(call):
    assert call("--master-port", 12345, *shells("echo $MASTER_PORT")) == (0, "12345\n", "")


def test_launches_at_once_have_ports_of_their_own(launch, ready, call, tmp_path):
    listen = (
        "import os, pathlib, socket, time\n"
        "server = socket.create_server(('127.0.0.1', int(os.environ['MASTER_PORT'])))\n"
        "pathlib.Path('pid.0').write_text(str(os.getpid()))\n"
        "pathlib.Path('port').write_text(os.environ['MASTER_PORT'])\n"
        "pathlib.Path('ready.0').touch()\n"
        "time.sleep(200)\n"
    )
    launch("-n", 1, "--", sys.executable, "-c", listen)
    ready(0)
    code, port, _ = call(*shells("echo $MASTER_PORT"))
    assert code == 0 and port.strip() != (tmp_path / "port").read_text()


def test_arguments_are_handed_on_as_they_are(call):
    arguments = ["list", "--help", "-n", "--", "[1,2]", "", "two words", "++", "--grace=x"]
    result = call("-n", 1, "--", "printf", "<%s>", *arguments)
    assert result == (0, "".join(f"<{argument}>" for argument in arguments), "")


def test_output_goes_through(call):
    code, stdout, stderr = call("-n", 4, "--", "sh", "-c", "echo out $RANK; echo err $RANK >&2")
    assert code == 0
    assert sorted(stdout.splitlines()) == [f"out {rank}" for rank in range(4)]
    assert sorted(stderr.splitlines()) == [f"err {rank}" for rank in range(4)]


def test_standard_input_is_empty(launch):
    assert result_of(launch("-n", 2, "--", "cat"), stdin="unread") == (0, "", "")


def test_no_signal_is_blocked_that_was_not(call):
    command = ["grep", "SigBlk", "/proc/self/status"]
    plain = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT)
    assert call("-n", 1, "--", *command) == (0, plain.stdout, "")


def test_many_ranks(call):
    assert call("-n", 100, "--", "true") == (0, "", "")


# ---- a rank fails ------------------------------------------------------------------------------


def test_the_others_are_ended(call, tmp_path):
    code, stdout, stderr = call("--grace", TIMEOUT, *shells(WAIT, catch(), once_ready("exit 3", 0, 1)))
    failed = pid_of(tmp_path, 2)
    assert (code, stdout) == (3, "")
    assert stderr == f"pipewright: rank 2 (pid {failed}) exited with code 3; ended the others\n"
    assert (tmp_path / "got.1").read_text() == "SIGTERM"
    assert not any(alive(pid_of(tmp_path, rank)) for rank in range(3))


@pytest.mark.parametrize("grace", [0, 0.3])
def test_the_others_are_killed_if_they_do_not_end(grace, call, tmp_path):
    code, _, stderr = call("--grace", grace, *shells(once_ready("exit 4", 1, 2), IGNORE, IGNORE))
    assert code == 4
    assert "rank 0" in stderr and "ended the others" in stderr
    assert not any(alive(pid_of(tmp_path, rank)) for rank in range(3))


def test_the_first_failure_counts(call):
    code, _, stderr = call(*shells(catch(code=9), once_ready("exit 5", 0, 2), catch(code=9)))
    assert code == 5
    assert re.fullmatch(r"pipewright: rank 1 \(pid \d+\) exited with code 5; ended the others\n", stderr)


def test_rank_killed_by_a_signal(call):
    code, _, stderr = call(*shells(WAIT, once_ready("kill -KILL $$", 0)))
    assert code == 128 + signal.SIGKILL
    told = r"pipewright: rank 1 \(pid \d+\) was killed by signal 9 \(Killed\); ended the others\n"
    assert re.fullmatch(told, stderr)


def test_last_rank_to_end_fails(call):
    code, _, stderr = call(*shells("exit 6"))
    assert code == 6
    assert re.fullmatch(r"pipewright: rank 0 \(pid \d+\) exited with code 6\n", stderr)


# ---- what ranks have started -------------------------------------------------------------------


@pytest.mark.parametrize("ignored", ["", "trap '' TERM; "], ids=["ends", "ignores"])
def test_processes_of_a_rank_end_with_it(ignored, call, tmp_path):
    text = f"({ignored}exec sleep 200) & echo $! > pid.behind; {WAIT}"
    assert call("--grace", 0.3, *shells(text, once_ready("exit 3", 0)))[0] == 3
    assert not alive(pid_of(tmp_path, "behind"))


def test_grace_is_for_processes_of_a_rank_too(call, tmp_path):
    text = f"({catch('behind')}) & {WAIT}"
    assert call("--grace", TIMEOUT, *shells(text, once_ready("exit 3", 0, "behind")))[0] == 3
    assert (tmp_path / "got.behind").exists()


def test_processes_that_ranks_leave_behind_are_ended(call, tmp_path):
    assert call(*shells("sleep 200 & echo $! > pid.behind", "exit 0")) == (0, "", "")
    assert not alive(pid_of(tmp_path, "behind"))


# ---- a signal for launch itself ----------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_signal_is_passed_on(number, launch, ready, tmp_path):
    process = launch("--grace", TIMEOUT, *shells(catch(), catch()))
    pids = ready(0, 1)
    process.send_signal(number)
    assert result_of(process) == (128 + number, "", "")
    assert [(tmp_path / f"got.{rank}").read_text() for rank in range(2)] == [number.name] * 2
    assert not any(map(alive, pids))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ranks_that_ignore_the_signal_are_killed(number, launch, ready):
    process = launch("--grace", 0.3, *shells(IGNORE, IGNORE))
    pids = ready(0, 1)
    process.send_signal(number)
    assert result_of(process) == (128 + number, "", "")
    assert not any(map(alive, pids))


def test_ignored_signal_stays_ignored(launch, ready, tmp_path):
    process = launch(*shells(TELL + "until [ -e go ]; do sleep 0.02; done"), ignored=[signal.SIGHUP])
    ready(0)
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert result_of(process) == (0, "", "")


def test_ranks_do_not_outlive_a_killed_launch(launch, ready):
    process = launch(*shells(IGNORE, WAIT))
    pids = ready(0, 1)
    assert all(map(alive, pids))
    process.kill()
    assert process.wait(TIMEOUT) == -signal.SIGKILL
    wait_until(lambda: not any(map(alive, pids)))


# ---- usage -------------------------------------------------------------------------------------


def test_help_names_exactly_the_options(call):
    code, stdout, stderr = call("--help")
    assert (code, stderr) == (0, "")
    declared = [line.split()[0] for line in stdout.splitlines() if line.startswith("  -")]
    assert [names.split(",")[-1] for names in declared] == OPTIONS
    assert stdout.splitlines()[1].endswith("launch -n N [OPTIONS] -- COMMAND [ARGS...]")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "-n"),
        (["--", "true"], "-n"),
        (["-n", "2"], "command"),
        (["-n", "2", "--"], "command"),
        (["-n", "0", "--", "true"], "1 to 1024"),
        (["-n", "-1", "--", "true"], "1 to 1024"),
        (["-n", "1025", "--", "true"], "1 to 1024"),
        (["-n", "two", "--", "true"], "two"),
        (["-n", "2", "true"], "come after --"),
        (["-n", "2", "true", "--", "false"], "false"),
        (["-n", "2", "--fast", "--", "true"], "launch has no option --fast; the command"),
        (["-n", "2", "--master-port", "0", "--", "true"], "1 to 65535"),
        (["-n", "2", "--master-port", "65536", "--", "true"], "1 to 65535"),
        (["-n", "2", "--grace", "-1", "--", "true"], "--grace must be from 0 to 86400 seconds"),
        (["-n", "2", "--grace", "nan", "--", "true"], "--grace must be from 0 to 86400 seconds"),
        (["-n", "2", "--grace", "soon", "--", "true"], "soon"),
        (["-n", "2", "--", "no-such-command"], "cannot run 'no-such-command': No such file or directory"),
        (["-n", "2", "--", "/"], "cannot run '/': Permission denied"),
        (["-n", "2", "--", ""], "cannot run '': No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(arguments, told, call):
    code, stdout, stderr = call(*arguments)
    assert (code, stdout) == (2, "")
    assert told in stderr


def test_command_is_found_through_path(call, tmp_path):
    program = tmp_path / "bin" / "tell"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho found $1\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    assert call("-n", 1, "--", "tell", "it", environment=environment) == (0, "found it\n", "")


def test_ranks_start_again_after_a_failure(launch, tmp_path):
    script = "echo $TORCHELASTIC_RESTART_COUNT $MASTER_PORT >> tries.$RANK; [ $TORCHELASTIC_RESTART_COUNT = 2 ]"
    process = launch("-n", 2, "--restarts", 5, "--", "sh", "-c", script)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, errors
    tries = [line.split() for line in (tmp_path / "tries.0").read_text().splitlines()]
    assert [count for count, _ in tries] == ["0", "1", "2"]
    assert "restart 2 of 5" in errors and "restart 3" not in errors


def test_restarts_come_to_an_end(launch, tmp_path):
    process = launch("-n", 2, "--restarts", 2, "--", "sh", "-c", "echo >> tries.$RANK; exit 7")
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 7
    assert errors.count("exited with code 7") == 3, errors
    assert "restart 2 of 2" in errors


def test_signal_ends_a_restarted_world_too(launch, tmp_path):
    script = f"[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3; {WAIT}"
    process = launch("-n", 2, "--restarts", 5, "--", "sh", "-c", script)
    deadline = time.monotonic() + TIMEOUT
    while not all((tmp_path / f"ready.{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + signal.SIGTERM
    assert "restart 2" not in errors
