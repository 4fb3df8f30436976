"""What running and loading an exported model costs, beside Python in the same run.

    compare_frontend.py FRONTEND_BENCH [gpt] [nodes] [load]

FRONTEND_BENCH is the path of the benchmark program frontend_bench; without a choice, all is measured. Both sides
use one thread and take turns, so that other work on the machine meets both. A ratio is shown of the best times and
of the typical ones; the typical one is held against the goal.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "frontend"))
from models import GPT  # noqa: E402

TURNS, STEPS = 20, 20
NODE_ROUNDS = 200
LOAD_TURNS = 5
STAGES = 4
EAGER_GOAL = 0.8
NODE_GOAL = 150
LOAD_GOAL = 0.1


def verdict(reached: bool) -> str:
    return "reached" if reached else "MISSED"


def export(model: torch.nn.Module, inputs: dict, path: Path) -> None:
    torch.export.save(torch.export.export(model, (), kwargs=inputs), path)


def gpt(program: str, folder: Path) -> None:
    torch.manual_seed(0)
    model = GPT()
    inputs = {"ids": torch.randint(0, 23, (3, 7))}
    export(model, inputs, folder / "gpt.pt2")
    torch.save(inputs, folder / "inputs.pt")

    def eager() -> float:
        start = time.perf_counter()
        model(**inputs).sum().backward()
        taken = time.perf_counter() - start
        model.zero_grad()
        return taken

    command = [program, "steps", folder / "gpt.pt2", folder / "inputs.pt"]
    ours, theirs = [], []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for turn in range(TURNS):
            process.stdin.write(f"{STEPS}\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            taken = [eager() for _ in range(STEPS)]
            if turn > 0:  # the first is a warm-up
                ours += answer["seconds"]
                theirs += taken
        process.stdin.close()
    print(f"A GPT of {answer['nodes']} nodes, forward and backward, one thread")
    print(f"  Python eager   {1e6 * median(theirs):8.0f} µs typical, {1e6 * min(theirs):8.0f} µs best")
    print(f"  graph stage    {1e6 * median(ours):8.0f} µs typical, {1e6 * min(ours):8.0f} µs best")
    ratio = median(ours) / median(theirs)
    print(
        f"  ratio          {ratio:8.2f} typical, {min(ours) / min(theirs):8.2f} best; "
        f"goal {EAGER_GOAL}: {verdict(ratio <= EAGER_GOAL)}"
    )


def nodes(program: str, _: Path) -> None:
    lines = subprocess.run([program, "nodes", str(NODE_ROUNDS)], stdout=subprocess.PIPE, check=True, text=True).stdout
    rounds = [json.loads(line) for line in lines.splitlines()][NODE_ROUNDS // 10 :]
    extra = [1e9 * (each["interpreted"] - each["direct"]) for each in rounds]
    direct = median(1e9 * each["direct"] for each in rounds)
    print("A chain of 1000 operators on one number")
    print(f"  called directly from C++  {direct:6.0f} ns each")
    print(f"  the interpreter adds      {median(extra):6.0f} ns; goal {NODE_GOAL}: {verdict(median(extra) <= NODE_GOAL)}")


def load(program: str, folder: Path) -> None:
    width, layers = 1024, 24
    file = folder / "large.pt2"
    model = torch.nn.Sequential(*(torch.nn.Linear(width, 4 * width) if at % 2 == 0 else torch.nn.Linear(4 * width, width) for at in range(layers)))
    torch.export.save(torch.export.export(model, (torch.zeros(1, width),)), file)
    size = file.stat().st_size
    ours, theirs = [], []
    for _ in range(LOAD_TURNS):
        answer = subprocess.run([program, "load", file, str(STAGES)], stdout=subprocess.PIPE, check=True, text=True)
        ours.append(json.loads(answer.stdout))
        start = time.perf_counter()
        torch.export.load(file)
        theirs.append(time.perf_counter() - start)
    quarter = median(each["seconds"] for each in ours)
    print(f"A file of {size / 2**20:.0f} MiB, in the system's cache")
    print(f"  Python loads all of it                 {1e3 * median(theirs):8.1f} ms")
    print(f"  the second of {STAGES} stages, {ours[0]['bytes'] / 2**20:4.0f} MiB read   {1e3 * quarter:8.1f} ms")
    ratio = quarter / median(theirs)
    print(f"  ratio                                  {ratio:8.3f}; goal {LOAD_GOAL}: {verdict(ratio <= LOAD_GOAL)}")


PARTS = {"gpt": gpt, "nodes": nodes, "load": load}


def main() -> None:
    program, *chosen = sys.argv[1:] or sys.exit(__doc__)
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        sys.exit(f"there is no part '{unknown[0]}': {', '.join(PARTS)}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen or PARTS:
            PARTS[name](program, Path(folder))
            print()


if __name__ == "__main__":
    main()
