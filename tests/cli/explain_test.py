"""`pipewright explain` on hand-made flight records. PIPEWRIGHT_BIN names the program."""

import json
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

TIMEOUT = 60
SECOND = 1_000_000
BEGIN = 1_700_000_000 * SECOND
NOW = BEGIN + 60 * SECOND
SVG = "{http://www.w3.org/2000/svg}"


def action(name, start, ready=None, end=None, need="", step=12):
    """Times in seconds from the beginning; None: not yet."""
    return [name, step, need, *(0 if t is None else BEGIN + int(t * SECOND) for t in (start, ready, end))]


def record(process, actions, process_of=((0, 1, 2, 3),), **changes):
    """A process in step 12, with the same actions on each of its ranks."""
    ranks = [(replica, rank) for replica, row in enumerate(process_of) for rank, p in enumerate(row) if p == process]
    return {
        "format": "pipewright flight record 1",
        "process": process,
        "processes": 1 + max(max(row) for row in process_of),
        "pid": 4711 + process,
        "host": f"node{process}",
        "written": NOW,
        "because": f"reason {process}\nmore of it",
        "placement": list(range(len(process_of[0]))),
        "microbatches": 8,
        "process_of": [list(row) for row in process_of],
        "step": 12,
        "in_step": True,
        "since": BEGIN,
        "wait": None,
        "ranks": [{"replica": replica, "rank": rank, "actions": actions} for replica, rank in ranks],
        **changes,
    }


def hang():
    """Rank 2 does not come out of 2F0; the others wait for it, one by way of another."""
    return [
        record(0, [action("0F0", 0, end=10), action("0B0", 10, need="message")]),
        record(1, [action("1F0", 0, 10, 20, "message"), action("1B0", 20, need="message")]),
        record(2, [action("2F0", 0, 20, need="message")]),
        record(3, [action("3F0", 0, need="message")]),
    ]


@pytest.fixture
def write(tmp_path):
    def write(records):
        paths = []
        for number, content in enumerate(records):
            paths.append(tmp_path / f"record{number}.json")
            paths[-1].write_text(content if isinstance(content, str) else json.dumps(content))
        return paths

    return write


@pytest.fixture
def call(program):
    def run(*arguments):
        return subprocess.run(
            [program, "explain", *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT
        )

    return run


@pytest.fixture
def explain(call, write):
    """What it prints of records that it must understand, as lines."""

    def run(records, *options):
        result = call(*write(records), *options)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout.splitlines()

    return run


@pytest.fixture
def refused(call, write):
    """What it says of records that it must refuse, and their paths."""

    def run(records):
        paths = write(records)
        result = call(*paths)
        assert (result.returncode, result.stdout) == (1, "")
        assert 0 < len(result.stderr) < 1000
        return result.stderr, [str(path) for path in paths]

    return run


# ---- what it prints ----------------------------------------------------------------------------


def test_all_of_a_hang(explain):
    assert explain(hang(), "--columns", 60) == [
        "process 0 (rank 0) on node0, pid 4711: in step 12; written because: reason 0",
        "process 1 (rank 1) on node1, pid 4712: in step 12; written because: reason 1",
        "process 2 (rank 2) on node2, pid 4713: in step 12; written because: reason 2",
        "process 3 (rank 3) on node3, pid 4714: in step 12; written because: reason 3",
        "",
        "Who waits for whom:",
        "  rank 0 (process 0) has waited 50 s in 0B0 for the gradients of stage 1 from rank 1 (process 1)",
        "  rank 1 (process 1) has waited 40 s in 1B0 for the gradients of stage 2 from rank 2 (process 2)",
        "  rank 3 (process 3) has waited 60 s in 3F0 for the activations of stage 2 from rank 2 (process 2)",
        "",
        "Culprit: rank 2 (process 2) has been running 2F0 of step 12 for 40 s",
        "",
        "Step 12: the last on record, in ms; the last 40 s, in which nothing happened, are cut short",
        "rank 0 |" + "F0".ljust(20, "-") + "?B0".ljust(40, "?"),
        "rank 1 |" + 20 * "." + "F0".ljust(20, "-") + "?B0".ljust(20, "?"),
        "rank 2 |" + 40 * "." + "F0".ljust(19, "-") + ">",
        "rank 3 |" + "?F0".ljust(60, "?"),
        "... waited, ??? still waits, > still runs",
    ]


def test_order_of_files_does_not_matter(explain):
    assert explain(hang()[::-1]) == explain(hang())


def test_processes_without_a_file(explain):
    lines = explain([hang()[1]])
    assert lines[1] == "no file of process 0, 2-3"
    assert "Culprit: process 2 (rank 2) has left no record: it was killed or stopped, or cannot be reached" in lines


def test_other_culprits_follow_the_likeliest(explain):
    records = hang()
    records[0]["ranks"][0]["actions"] = [action("0F1", 0)]
    records[3]["ranks"][0]["actions"].append(action("3F1", 30))
    records[1]["ranks"][0]["actions"].append(action("1F1", 20, need="message"))
    culprits = [line for line in explain(records) if line.startswith(("Culprit: ", "   also: "))]
    assert culprits == [
        "Culprit: rank 0 (process 0) has been running 0F1 of step 12 for 60 s",
        "   also: rank 2 (process 2) has been running 2F0 of step 12 for 40 s",
        "   also: rank 3 (process 3) has been running 3F1 of step 12 for 30 s",
    ]


def test_nobody_waits(explain):
    records = [record(0, [action("0F0", 0, end=1)], ((0,),), in_step=False)]
    lines = explain(records)
    assert lines[0] == "process 0 (rank 0) on node0, pid 4711: after step 12; written because: reason 0"
    assert lines[2] == "Nobody waits for anybody."
    assert not [line for line in lines if "Culprit" in line]


def test_before_the_first_step(explain):
    records = [record(0, [], ((0,),), in_step=False, step=0)]
    assert ": before its first step;" in explain(records)[0]


def test_record_without_a_pipeline(explain, call, write, tmp_path):
    records = [{**record(0, [], ((0,),)), "placement": [], "process_of": [], "ranks": []}]
    assert explain(records) == [
        "process 0 on node0, pid 4711: in step 12; written because: reason 0",
        "",
        "Nobody waits for anybody.",
    ]
    result = call(*write(records), "--timeline", tmp_path / "none.svg")
    assert result.returncode == 1
    assert "no pipeline to draw" in result.stderr


def test_wait_of_a_process(explain):
    wait = {"what": "sum of the gradients of stage 0", "among": [0, 1], "since": NOW - 5 * SECOND}
    records = [
        record(0, [action("0F0", 0, end=50)], ((0,), (1,)), wait=wait),
        record(1, [action("0F0", 20)], ((0,), (1,))),
    ]
    lines = explain(records)
    assert (
        "  process 0 (rank 0 of replica 0) has waited 5.00 s for the sum of the gradients of stage 0 with process 1"
        in lines
    )
    assert "Culprit: rank 0 of replica 1 (process 1) has been running 0F0 of step 12 for 40 s" in lines
    # The drawing is of the culprit's replica.
    assert [line for line in lines if line.startswith("Step 12 of replica 1: ")]


@pytest.mark.parametrize(("known", "drawn"), [([0], 0), ([0, 2], 1)])
def test_replica_of_a_process_that_is_missing(known, drawn, explain):
    """The drawing is of the culprit's replica, if something of it is on record."""
    of = ((0, 0), (1, 2))
    wait = {"what": "sum", "among": [0, 1], "since": NOW - 5 * SECOND}
    records = [record(0, [action("0F0", 0, end=1)], of, wait=wait), None, record(2, [action("1F0", 0, end=1)], of)]
    lines = explain([records[process] for process in known])
    assert [line for line in lines if line.startswith("Culprit: process 1 (rank 0 of replica 1) has left no record")]
    assert [line for line in lines if line.startswith(f"Step 12 of replica {drawn}: ")]


def test_latest_step_alone_is_drawn(explain):
    records = [record(0, [action("0F0", 0, end=1, step=11), action("0F1", 2, end=3)], ((0,),))]
    lines = explain(records, "--columns", 10)
    assert lines[-2:] == ["Step 12: the last on record, in ms", "rank 0 |F1--------"]


@pytest.mark.parametrize("columns", [1, 30, 200])
def test_columns(columns, explain):
    lanes = [line for line in explain(hang(), "--columns", columns) if line.startswith("rank ")]
    assert max(len(lane.partition("|")[2]) for lane in lanes) == columns


def test_color(explain):
    assert "\x1b" not in "".join(explain(hang()))
    assert "\x1b" not in "".join(explain(hang(), "--color", "never"))
    assert "\x1b[38;2;194;38;75m" in "".join(explain(hang(), "--color", "always"))


def test_nothing_in_a_record_commands_the_terminal(explain):
    wait = {"what": "sum\x1b[2J", "among": [0, 1], "since": NOW}
    records = [record(0, [], ((0, 1),), host="a\x1b[2J", because="b\x07\x1b[2J", wait=wait)]
    text = "".join(explain(records))
    assert "a?[2J" in text and "b??[2J" in text and "sum?[2J" in text
    assert "\x1b" not in text and "\x07" not in text


# ---- files -------------------------------------------------------------------------------------


def test_timeline_as_a_page(call, write, tmp_path):
    path = tmp_path / "hang.html"
    result = call(*write(hang()), "--timeline", path)
    assert (result.returncode, result.stderr) == (0, f"wrote {path}\n")
    assert "Culprit: rank 2" in result.stdout
    page = path.read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert '["3F0",0.0,30000.0,"3F0 has waited 60 s for the activations of stage 2",true]' in page


def test_timeline_as_svg(call, write, tmp_path):
    path = tmp_path / "hang.svg"
    assert call(*write(hang()), "--timeline", path).returncode == 0
    titles = [title.text for title in ElementTree.parse(path).iter(SVG + "title")]
    assert "3F0 has waited 60 s for the activations of stage 2" in titles
    assert "1F0 waited for the activations of stage 0" in titles
    assert "2F0, still runs" in titles


def test_timeline_of_hostile_text_is_xml(call, write, tmp_path):
    wait = {"what": "sum \x00\x1b<&\"'>", "among": [0], "since": BEGIN}
    path = tmp_path / "hang.svg"
    assert call(*write([record(0, [action("0F0", 0, end=1)], ((0,),), wait=wait)]), "--timeline", path).returncode == 0
    assert [t.text for t in ElementTree.parse(path).iter(SVG + "title") if "sum ??<&\"'>" in t.text]


# ---- what it refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 1_000_000, "nested too deeply"),
        ("[]", "format"),
        ({**record(0, []), "process": 4}, "process must be from 0 to 3"),
        (record(0, [action("4F0", 0)]), "'4F0' is no action"),
        (record(0, [action("0F0", -BEGIN)]), "an action's start"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "record",
)
def test_bad_file_is_named(content, told, refused):
    message, paths = refused([hang()[1], content])
    assert message.startswith(f"pipewright: {paths[1]}: ") and told in message


def test_large_file_is_refused(call, tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    result = call(path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"pipewright: {path} is larger than 64 MiB\n"


def test_folder_is_refused(call, tmp_path):
    result = call(tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert str(tmp_path) in result.stderr


def test_two_files_of_one_process(refused):
    message, paths = refused([hang()[0], hang()[1], hang()[0]])
    assert message == f"pipewright: {paths[0]} and {paths[2]} are both of process 0\n"


@pytest.mark.parametrize(
    "changes", [{"processes": 5}, {"placement": [3, 2, 1, 0]}, {"process_of": [[1, 0, 2, 3]], "ranks": []}], ids=str
)
def test_files_of_different_worlds(changes, refused):
    message, paths = refused([hang()[1], hang()[2], {**hang()[0], **changes}])
    assert message == f"pipewright: {paths[0]} and {paths[2]} are not of the same run\n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "files"),
        (["missing.json"], "missing.json"),
        (["{}", "--timeline", "hang.png"], "hang.png must end in .html or .svg"),
        (["{}", "--timeline", "missing/folder/hang.svg"], "missing/folder/hang.svg"),
        (["{}", "--columns", "4001"], "--columns"),
        (["{}", "--color", "blue"], "blue"),
        (["{}", "--fast"], "--fast"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(options, told, call, write):
    path = str(write(hang()[:1])[0])
    result = call(*(path if option == "{}" else option for option in options))
    assert result.returncode == 2
    assert told in result.stderr
