"""The command line, as users and other programs call it. PIPEWRIGHT_BIN names the program."""

import json
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

TIMEOUT = 60
NAMES = [
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
    "ZB-H1",
    "ZB-H2",
    "V-Half",
    "V-Min",
    "ForwardOnly",
]
SIZE = ["--ranks", "2", "--microbatches", "3"]
SIZES = ["--ranks", "--microbatches", "--stages-per-rank", "--placement"]
COSTS = ["--f", "--i", "--w", "--comm", "--overlap", "--costs"]
LOWERING = ["--defer-recv", "--max-active-stages", "--merge-backward"]
OPTIONS = {
    "list": [],
    "generate": [*SIZES, "--lowered", *LOWERING, "--skip", "--output"],
    "lower": ["--skip", *LOWERING, "--output"],
    "validate": ["--lowered", "--capacity"],
    "simulate": [*SIZES, "--csv", "--skip", "--lowered", *COSTS, "--json", "--output"],
    "show": [*SIZES, "--csv", "--skip", "--lowered", *COSTS, "--format", "--columns", "--color", "--output"],
    "compare": [*SIZES, *COSTS, "--format", "--output"],
    "explain": ["--columns", "--color", "--timeline"],
}
# Both ranks send before they receive what the other sends.
DEADLOCK = (
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
    "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\n"
)


@pytest.fixture
def call(program):
    def run(*arguments, stdin="", timeout=TIMEOUT):
        return subprocess.run(
            [program, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=timeout
        )

    return run


@pytest.fixture
def output(call):
    """What a call prints that must succeed."""

    def run(*arguments, stdin=""):
        result = call(*arguments, stdin=stdin)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    return run


@pytest.fixture
def simulated(output):
    def run(*arguments, stdin=""):
        return json.loads(output("simulate", *arguments, "--json", stdin=stdin))

    return run


# ---- the program itself ------------------------------------------------------------------------


def test_program_needs_no_torch(program):
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True, timeout=TIMEOUT)
    libraries = [line.split()[0] for line in listed.stdout.splitlines()]
    assert "libc.so.6" in libraries
    assert [name for name in libraries if name.startswith(("libtorch", "libc10"))] == []


def test_help_names_every_command(output):
    text = output("--help")
    assert [command for command in OPTIONS if f"\n  {command} " not in text] == []


@pytest.mark.parametrize("command", OPTIONS)
def test_help_of_a_command_names_exactly_its_options(command, output):
    text = output(command, "--help")
    declared = [line.split()[0] for line in text.splitlines() if line.startswith("  -")]
    assert [names.split(",")[-1] for names in declared] == ["--help", *OPTIONS[command]]


def test_version(output):
    assert output("--version").strip().replace(".", "").isdigit()


# ---- wrong usage: exit 2 -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "subcommand"),
        (["plan"], "subcommand"),
        (["generate", *SIZE], "name"),
        (["generate", "GPipe", "--ranks", "2"], "--microbatches"),
        (["generate", "GPipe", "--microbatches", "2"], "--ranks"),
        (["generate", "GPipe", *SIZE, "--fast"], "--fast"),
        (["generate", "GPipe", "--ranks", "two", "--microbatches", "2"], "--ranks"),
        (["generate", "GPipe", "--ranks", "0", "--microbatches", "2"], "number of ranks"),
        (["generate", "GPipe", "--ranks", "2", "--microbatches", "0"], "number of microbatches"),
        (["generate", "GPipe", "--ranks", "2", "--microbatches", "16777217"], "16777216"),
        (["generate", "GPipe", "--ranks", "2", "--microbatches", "1000000000000"], "--microbatches"),
        (["generate", "GPipe", "--ranks", "65536", "--microbatches", "16777216"], "pipewright:"),
        (["generate", "ZBVZeroBubble", *SIZE, "--stages-per-rank", "3"], "exactly 2 stages"),
        (["generate", "GPipe", *SIZE, "--defer-recv"], "--lowered"),
        (["generate", "GPipe", *SIZE, "-o", "missing/folder/plan.csv"], "missing/folder/plan.csv"),
        (["validate", "missing.csv"], "missing.csv"),
        (["lower", "missing.csv"], "missing.csv"),
        (["show", "--csv", "missing.csv"], "missing.csv"),
        (["validate", "-", "--capacity", "1"], "--lowered"),
        (["validate", "-", "--lowered", "--capacity", "0-1"], "0-1"),
        (["show"], "--csv"),
        (["show", "GPipe"], "--ranks"),
        (["show", "GPipe", *SIZE, "--csv", "-"], "--csv"),
        (["show", "GPipe", *SIZE, "--format", "png"], "png"),
        (["simulate", "GPipe", *SIZE, "--f", "-1"], "--f: a time is a number of at least 0, not -1\n"),
        (["simulate", "GPipe", *SIZE, "--i", "nan"], "--i: a time is a number of at least 0, not nan\n"),
        (["simulate", "GPipe", *SIZE, "--w", "1e999"], "--w: a time is a number of at least 0, not 1e999\n"),
        (["simulate", "GPipe", *SIZE, "--comm", "soon"], "--comm"),
        (["simulate", "GPipe", *SIZE, "--costs", "missing.json"], "missing.json"),
        (["simulate", "GPipe", *SIZE, "--costs", "costs.json", "--f", "1"], "--costs"),
        (["compare", "GPipe", "GPipes", *SIZE], "GPipes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(arguments, told, call):
    result = call(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert told in result.stderr


@pytest.mark.parametrize(
    ("name", "near"),
    [("Interleved1F1B", "Interleaved1F1B"), ("zbvzerobuble", "ZBVZeroBubble"), ("V-Haf", "V-Half")],
)
def test_unknown_name_brings_near_ones(name, near, call):
    result = call("generate", name, *SIZE)
    assert (result.returncode, result.stdout) == (2, "")
    assert name in result.stderr and near in result.stderr
    assert "ForwardOnly" not in result.stderr


def test_a_folder_cannot_be_read(call, tmp_path):
    result = call("validate", tmp_path)
    assert result.returncode == 2
    assert str(tmp_path) in result.stderr


# ---- bad input: exit 1 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "quoted"),
    [
        ("0F0,0B0\n1F0,1X0\n", "row 2 (rank 1), column 2", "'1X0'"),
        ("0F0,0F\n", "row 1 (rank 0), column 2", "'0F'"),
        ("0F0,,B0\n", "row 1 (rank 0), column 3", "'B0'"),
        ("(0F0;0B0\n", "row 1 (rank 0), column 1", "'(0F0;0B0'"),
        ("1000000000000F0\n", "row 1 (rank 0), column 1", "'1000000000000F0'"),
        ("0F1000000000000\n", "row 1 (rank 0), column 1", "'0F1000000000000'"),
    ],
)
@pytest.mark.parametrize("from_file", [False, True])
def test_broken_text_is_placed(text, place, quoted, from_file, call, tmp_path):
    path = tmp_path / "broken.csv"
    path.write_text(text)
    result = call("validate", path) if from_file else call("validate", "-", stdin=text)
    assert (result.returncode, result.stdout) == (1, "")
    assert (str(path) if from_file else "standard input") in result.stderr
    assert place in result.stderr and quoted in result.stderr


@pytest.mark.parametrize("command", ["validate", "lower", "simulate --csv", "show --csv"])
def test_empty_input(command, call):
    result = call(*command.split(), "-")
    assert (result.returncode, result.stdout) == (1, "")
    assert "empty" in result.stderr


@pytest.mark.parametrize("letter", ["0", "F", " ", "("])
def test_endless_cell_is_refused_at_once(letter, call):
    result = call("validate", "-", stdin=letter * (64 << 20), timeout=10)
    assert (result.returncode, result.stdout) == (1, "")
    assert 0 < len(result.stderr) < 500


def test_diagnostics_name_rule_rank_and_step(call):
    result = call("validate", "-", stdin="0B0,0F0\n")
    assert result.returncode == 1
    assert "rank 0 step 0" in result.stdout and "0B0" in result.stdout
    assert all(line.startswith("[") for line in result.stdout.splitlines())


def test_invalid_schedule_is_not_lowered_nor_simulated(call):
    for command in (["lower", "-"], ["simulate", "--csv", "-"]):
        result = call(*command, stdin="0B0,0F0\n")
        assert (result.returncode, result.stdout) == (1, "")
        assert "0B0" in result.stderr


def test_full_disk_is_told(program):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [program, "generate", "GPipe", *SIZE], stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT
        )
    assert result.returncode == 1
    assert b"cannot write" in result.stderr


# ---- generate, lower, validate -----------------------------------------------------------------


def test_list(output):
    assert [line.split()[0] for line in output("list").splitlines()] == ["name", *NAMES]


def test_generate_writes_csv(output):
    assert output("generate", "GPipe", "-p", 2, "-m", 2) == "0F0,0F1,,,0B0,0B1\n,1F0,1F1,1B0,1B1\n"


@pytest.mark.parametrize("name", NAMES)
def test_names_in_any_case(name, output):
    expected = output("generate", name, *SIZE)
    assert output("generate", name.lower(), *SIZE) == expected == output("generate", name.upper(), *SIZE)


def test_output_file(call, output, tmp_path):
    path = tmp_path / "schedule.csv"
    result = call("generate", "1F1B", *SIZE, "-o", path)
    assert (result.returncode, result.stdout) == (0, "")
    assert str(path) in result.stderr
    assert path.read_text() == output("generate", "1F1B", *SIZE)


@pytest.mark.parametrize("name", NAMES)
def test_generated_is_valid(name, output):
    assert output("validate", "-", stdin=output("generate", name, *SIZE)) == "valid\n"


@pytest.mark.parametrize("options", ["", "--defer-recv", "--merge-backward", "--max-active-stages 1"])
@pytest.mark.parametrize("name", NAMES)
def test_lower_piped_into_validate(name, options, output):
    options = options.split()
    schedule = output("generate", name, *SIZE)
    plan = output("lower", "-", *options, stdin=schedule)
    assert output("validate", "-", "--lowered", stdin=plan) == "valid\n"
    assert plan == output("generate", name, *SIZE, "--lowered", *options)


def test_skips_are_planned_and_proven(output, call):
    size = ["--ranks", "3", "--microbatches", "2"]
    plan = output("generate", "1F1B", *size, "--lowered", "--skip", "0:2")
    assert "0SEND_F1:2" in plan and "2RECV_F1:0" in plan and "2SEND_B1:0" in plan and "0RECV_B1:2" in plan
    assert output("validate", "-", "--lowered", stdin=plan) == "valid\n"
    assert output("lower", "-", "--skip", "0:2", stdin=output("generate", "1F1B", *size)) == plan
    slow = output("simulate", "1F1B", *size, "--comm", "0.5", "--lowered", "--skip", "0:2", "--json")
    assert json.loads(slow)["makespan"] > 0
    assert "0SEND_F1:2" in output("show", "--csv", "-", "--format", "trace", stdin=plan)
    for wrong in ["0", "0:", ":2", "0:x", "0-2", "0:2:3"]:
        refused = call("lower", "-", "--skip", wrong, stdin="0F0\n")
        assert refused.returncode == 2 and "--skip" in refused.stderr, wrong
    refused = call("generate", "1F1B", *size, "--lowered", "--skip", "0:1")
    assert refused.returncode != 0 and "skips no stage" in refused.stderr


def test_lowering_options_change_the_plan(output):
    plain = output("generate", "ZBVZeroBubble", *SIZE, "--lowered")
    for options in (["--defer-recv"], ["--merge-backward"], ["--max-active-stages", "1"]):
        assert output("generate", "ZBVZeroBubble", *SIZE, "--lowered", *options) != plain


def test_crlf_and_quotes_are_read(output):
    text = '"0F0",0F1,,,0B0,"0B1"\r\n,1F0,1F1,1B0,1B1\r\n'
    assert output("validate", "-", stdin=text) == "valid\n"


def test_plan_in_the_wrong_format_is_told(call, output):
    plan = output("generate", "GPipe", *SIZE, "--lowered")
    result = call("validate", "-", stdin=plan)
    assert result.returncode == 1
    assert "lowered" in result.stdout


def test_forward_only_on_a_v(output):
    text = output("generate", "ForwardOnly", "-p", 2, "-m", 1, "-v", 2, "--placement", "v")
    stages = [sorted(cell for cell in row.split(",") if cell) for row in text.splitlines()]
    assert stages == [["0F0", "3F0"], ["1F0", "2F0"]]


def test_deadlock_names_both_ranks(call):
    result = call("validate", "-", "--lowered", stdin=DEADLOCK)
    assert result.returncode == 1
    assert sorted(result.stdout.splitlines()) == [
        "[deadlock] rank 0 step 4: 0SEND_F1 waits for 1RECV_F1 of rank 1",
        "[deadlock] rank 1 step 4: 1SEND_B0 waits for 0RECV_B0 of rank 0",
    ]


@pytest.mark.parametrize("capacity", [["1"], ["0:1=1"], ["1:0=1"], ["0", "0:1=1"]], ids=" ".join)
def test_capacity_resolves_the_deadlock(capacity, output):
    assert output("validate", "-", "--lowered", "--capacity", *capacity, stdin=DEADLOCK) == "valid\n"


# ---- simulate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "makespan", "peak"),
    [
        ("GPipe", 69, 16),
        ("1F1B", 69, 8),
        ("LoopedBFS -v 2", 58.5, 16),
        ("Interleaved1F1B -v 2", 58.5, 11.5),
        ("InterleavedZeroBubble -v 1", 55, 8),
        ("InterleavedZeroBubble -v 2", 51.5, 8),
        ("ZBVZeroBubble", 51.5, 8),
        ("DualPipeV", 55, 8.5),
        ("DualPipeV --overlap serial", 51.5, 8.5),
    ],
)
def test_times_and_memory_of_eight_ranks_and_sixteen_microbatches(arguments, makespan, peak, simulated):
    result = simulated(*arguments.split(), "-p", 8, "-m", 16)
    assert result["makespan"] == pytest.approx(makespan)
    assert max(result["peak_activation"]) == pytest.approx(peak)
    assert result["ideal"] == pytest.approx(48)
    assert result["bubble_rate_makespan"] == pytest.approx(1 - 48 / makespan)


def test_zbv_has_no_bubble_within_a_rank(simulated):
    result = simulated("ZBVZeroBubble", "-p", 8, "-m", 16)
    assert max(result["span"]) == pytest.approx(48)
    assert result["bubble_rate_span"] == pytest.approx(0)


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "rate", "chunks"),
    [
        ("V-Half", 4, 8, 0.0943, 6),
        ("V-Half", 8, 24, 0.1056, 10),
        ("V-Half", 16, 48, 0.1246, 18),
        ("V-Min", 4, 8, 0.1864, 4),
        ("V-Min", 8, 24, 0.1579, 8),
        ("V-Min", 16, 48, 0.1700, 12),
    ],
)
def test_controlled_memory(name, ranks, microbatches, rate, chunks, simulated):
    result = simulated(name, "-p", ranks, "-m", microbatches)
    assert result["bubble_rate_span"] == pytest.approx(rate, abs=5e-5)
    assert 2 * max(result["peak_activation"]) == pytest.approx(chunks)


def test_simulation_tells_everything(simulated):
    result = simulated("GPipe", "-p", 2, "-m", 1)
    assert result["name"] == "GPipe"
    assert (result["makespan"], result["ideal"]) == (6, 3)
    assert (result["bubble_rate_makespan"], result["bubble_rate_span"]) == (0.5, 0.5)
    assert (result["span"], result["busy"], result["idle"]) == ([6, 3], [3, 3], [3, 3])
    assert result["peak_activation"] == [1, 1]
    assert result["actions"] == [
        {"rank": 0, "action": "0F0", "start": 0, "end": 1},
        {"rank": 0, "action": "0B0", "start": 4, "end": 6},
        {"rank": 1, "action": "1F0", "start": 1, "end": 2},
        {"rank": 1, "action": "1B0", "start": 2, "end": 4},
    ]
    assert [step["action"] for step in result["critical_path"]] == ["0F0", "1F0", "1B0", "0B0"]


def test_simulation_of_a_file_and_of_a_plan(output, simulated):
    schedule = output("generate", "ZBVZeroBubble", *SIZE)
    by_name = simulated("ZBVZeroBubble", *SIZE)
    assert simulated("--csv", "-", stdin=schedule)["makespan"] == by_name["makespan"]
    plan = simulated("ZBVZeroBubble", *SIZE, "--lowered")
    assert plan["makespan"] == by_name["makespan"]
    assert "0SEND_F0" in [timed["action"] for timed in plan["actions"]]


def test_costs_by_option(simulated):
    costs = ["--f", 2, "--i", 3, "--w", 4, "--comm", 0.5]
    assert simulated("GPipe", "-p", 2, "-m", 1, *costs)["makespan"] == 2 * (2 + 3 + 4) + 2 * 0.5


def test_text_summary(output):
    text = output("simulate", "GPipe", "-p", 2, "-m", 1)
    assert "makespan        6\n" in text and "GPipe: 2 ranks, 1 microbatch, 2 stages" in text


# ---- costs from a file -------------------------------------------------------------------------


@pytest.fixture
def costs_file(tmp_path):
    def write(content):
        path = tmp_path / "costs.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_costs_by_stage_and_link(costs_file, simulated):
    path = costs_file(
        {
            "stages": [
                {"f": 1, "i": 2, "w": 3, "activation": 10, "message": 8},
                {"f": 2, "b": 5, "activation": 20, "held_for_w": 5, "message": 1},
            ],
            "link": {"latency": 0.25, "bandwidth": 4},
            "links": [{"from": 1, "to": 0, "latency": 1, "bandwidth": 8}],
            "overlap": "serial",
        }
    )
    result = simulated("GPipe", "-p", 2, "-m", 1, "--costs", path)
    there, back = 0.25 + 8 / 4, 1 + 8 / 8
    assert result["makespan"] == 1 + there + 2 + 5 + back + 5
    assert result["peak_activation"] == [10, 20]


def test_overlap_by_file(costs_file, simulated):
    size = ["DualPipeV", "-p", 8, "-m", 16]
    assert simulated(*size, "--costs", costs_file({"overlap": "serial"}))["makespan"] == 51.5
    assert simulated(*size, "--costs", costs_file({}))["makespan"] == 55


def test_overlap_by_option_goes_before_that_of_the_file(costs_file, simulated):
    size = ["DualPipeV", "-p", 8, "-m", 16]
    path = costs_file({"overlap": "serial"})
    assert simulated(*size, "--costs", path, "--overlap", "sum")["makespan"] == 55
    path = costs_file({"overlap": "sum"})
    assert simulated(*size, "--costs", path, "--overlap", "serial")["makespan"] == 51.5


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "JSON"),
        ([], "object"),
        ({"stage": []}, '"stage"'),
        ({"stages": [{}]}, "list of 2"),
        ({"stages": [{}, {"forward": 1}]}, '"forward"'),
        ({"stages": [{}, {"f": -1}]}, "stage 1 f"),
        ({"link": {"speed": 1}}, '"speed"'),
        ({"link": {"bandwidth": 0}}, "bandwidth"),
        ({"links": [{"from": 0, "to": 2}]}, "links[0] to"),
        ({"overlap": "none"}, "overlap"),
    ],
    ids=str,
)
def test_wrong_costs_name_the_field(content, told, costs_file, call):
    path = costs_file(content)
    result = call("simulate", "GPipe", "-p", 2, "-m", 1, "--costs", path)
    assert (result.returncode, result.stdout) == (1, "")
    assert str(path) in result.stderr and told in result.stderr


# ---- show and compare --------------------------------------------------------------------------


def test_show_grid(output):
    lines = output("show", "GPipe", "-p", 2, "-m", 1, "--format", "grid").splitlines()
    assert lines[0].split() == ["Rank", "0", "Rank", "1"]
    assert [line.split()[2:] for line in lines[1:]] == [["0F0"], ["1F0"], ["1B0"], ["0B0"]]


def test_show_timeline(output):
    plain = output("show", "1F1B", *SIZE)
    assert "\x1b[" not in plain
    assert [line[:8] for line in plain.splitlines()[1:3]] == ["rank 0 |", "rank 1 |"]
    assert "\x1b[" in output("show", "1F1B", *SIZE, "--color", "always")


def test_show_timeline_keeps_to_its_width(output):
    shown = output("show", "1F1B", "-p", 4, "-m", 64, "--columns", 80)
    rows = [line.partition("|")[2] for line in shown.splitlines() if line.startswith("rank")]
    assert len(rows) == 4
    assert max(map(len, rows)) <= 80


def test_show_svg_is_xml(output):
    root = ElementTree.fromstring(output("show", "DualPipeV", "-p", 2, "-m", 4, "--format", "svg"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.findall(".//{http://www.w3.org/2000/svg}rect")) >= 2 * 2 * 4


def test_show_trace_has_every_action(output, simulated):
    trace = json.loads(output("show", "1F1B", *SIZE, "--format", "trace"))
    blocks = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    timed = simulated("1F1B", *SIZE)["actions"]
    # A unit of time is a millisecond, and the format counts in microseconds.
    shown = sorted((event["pid"], event["name"], event["ts"], event["dur"]) for event in blocks)
    assert shown == sorted(
        (t["rank"], t["action"], 1000 * t["start"], 1000 * (t["end"] - t["start"])) for t in timed
    )
    assert [event for event in trace["traceEvents"] if event["ph"] == "C"]


def test_show_html_holds_its_data(output):
    page = output("show", "V-Min", *SIZE, "--format", "html")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "V-Min" in page and "3F2" in page
    assert "http-equiv" not in page and 'src="http' not in page


def test_compare_table(output):
    table = output("compare", "gpipe", "ZBVZeroBubble", "-p", 8, "-m", 16)
    rows = [line.split() for line in table.splitlines()]
    assert rows[0][:3] == ["schedule", "stages", "makespan"]
    assert rows[1] == ["GPipe", "8", "69", "48", "30.43", "30.43", "16"]
    assert rows[2] == ["ZBVZeroBubble", "16", "51.5", "48", "6.80", "0.00", "8"]


def test_compare_json_equals_simulate(output, simulated):
    size = ["-p", 4, "-m", 8]
    rows = json.loads(output("compare", *NAMES, *size, "--format", "json"))
    assert [row["name"] for row in rows] == NAMES
    for row in rows:
        alone = simulated(row["name"], *size)
        for field in ("makespan", "ideal", "bubble_rate_makespan", "bubble_rate_span"):
            assert row[field] == alone[field]
        assert row["longest_span"] == max(alone["span"])
        assert row["peak_activation"] == max(alone["peak_activation"])


def test_compare_gives_stages_to_those_that_leave_them_open(output):
    rows = json.loads(output("compare", "GPipe", "LoopedBFS", *SIZE, "-v", 3, "--format", "json"))
    assert [row["stages"] for row in rows] == [2, 6]


def test_compare_html_draws_all(output):
    page = output("compare", "1F1B", "V-Half", *SIZE, "--format", "html")
    assert "1F1B" in page and "V-Half" in page and "3F2" in page
