"""Files that are no exported models, or damaged, or hostile: one clear error each, and the program goes on.

PIPEWRIGHT_MODEL_PEER names the program that reads them.
"""

import json
import os
import random
import subprocess
import zipfile

import pytest
import torch
from models import MODELS

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    torch.manual_seed(0)
    model, inputs, dynamic = MODELS["gpt_tied"]()
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=dynamic), folder / "model.pt2")
    torch.save(list(inputs), folder / "inputs.pt")
    return folder


@pytest.fixture
def answer_to(good, tmp_path):
    """What the program says of a file; it must have lived through it, and still run the good one."""

    def ask(content: bytes) -> str:
        (tmp_path / "model.pt2").write_bytes(content)
        (tmp_path / "inputs.pt").write_bytes((good / "inputs.pt").read_bytes())
        result = subprocess.run(
            [os.environ["PIPEWRIGHT_MODEL_PEER"]],
            input=f"0 {tmp_path}\n0 {good}\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.endswith("\ndone\n"), result.stdout
        return result.stdout.removesuffix("done\n").strip()

    return ask


def changed(good, changes: dict) -> bytes:
    """The good file with records replaced by what a function makes of them, or left out."""
    path = good / "changed.pt2"
    with zipfile.ZipFile(good / "model.pt2") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            for ending, change in changes.items():
                if name.endswith(ending):
                    content = change(content)
            if content is not None:
                new.writestr(zipfile.ZipInfo(name), content)
    return path.read_bytes()


def edited(edit):
    """A change of a record's JSON."""

    def change(content: bytes) -> bytes:
        document = json.loads(content)
        edit(document)
        return json.dumps(document).encode()

    return change


def graph(document: dict) -> dict:
    return document["graph_module"]["graph"]


def set_version(document):
    document["schema_version"]["major"] = 99


def unknown_operators(document):
    graph(document)["nodes"][1]["target"] = "torch.ops.mine.first.default"
    graph(document)["nodes"][-1]["target"] = "torch.ops.mine.second.default"


def cycle(document):
    nodes = graph(document)["nodes"]
    nodes[1], nodes[-1] = nodes[-1], nodes[1]


def data_dependent(document):
    graph(document)["nodes"][1]["target"] = "torch.ops.higher_order.cond"


def no_nodes(document):
    del graph(document)["nodes"]


def nodes_are_text(document):
    graph(document)["nodes"] = "text"


def missing_argument(document):
    graph(document)["nodes"][-1]["inputs"].pop(0)


def strange_argument(document):
    graph(document)["nodes"][-1]["inputs"][0]["arg"] = {"as_nothing_known": 1}


def sizes(value):
    def edit(document):
        document["config"]["norm.weight"]["tensor_meta"]["sizes"] = [{"as_int": value}]

    return edit


def offset(document):
    document["config"]["norm.weight"]["tensor_meta"]["storage_offset"] = {"as_int": 1 << 60}


def strides(document):
    document["config"]["norm.weight"]["tensor_meta"]["strides"] = [{"as_int": 1 << 62}]


def negative(document):
    document["config"]["norm.weight"]["tensor_meta"]["sizes"] = [{"as_int": -4}]


def dtype(document):
    document["config"]["norm.weight"]["tensor_meta"]["dtype"] = 77


def integers_that_train(document):
    document["config"]["norm.weight"]["tensor_meta"]["dtype"] = 4


def no_weight(document):
    del document["config"]["norm.weight"]


def other_record(document):
    document["config"]["norm.weight"]["path_name"] = "../../../model"


CASES = {
    "version": ({MODEL: edited(set_version)}, "schema version"),
    "operators": ({MODEL: edited(unknown_operators)}, "not known here"),
    "cycle": ({MODEL: edited(cycle)}, "before that is given"),
    "control flow": ({MODEL: edited(data_dependent)}, "torch.ops.higher_order.cond"),
    "no nodes": ({MODEL: edited(no_nodes)}, "no field 'nodes'"),
    "nodes are text": ({MODEL: edited(nodes_are_text)}, "is no list"),
    "missing argument": ({MODEL: edited(missing_argument)}, "lacks its argument"),
    "strange argument": ({MODEL: edited(strange_argument)}, "as_nothing_known"),
    "no JSON": ({MODEL: lambda content: content[:100]}, "is not JSON"),
    "no model": ({MODEL: lambda content: None}, "it has no model"),
    "deep JSON": ({MODEL: lambda content: b"[" * 100_000}, "it is nested too deeply"),
    "large tensor": ({WEIGHTS: edited(sizes(1 << 40))}, "'norm.weight' does not fit"),
    "larger tensor": ({WEIGHTS: edited(sizes((1 << 63) - 1))}, "'norm.weight' does not fit"),
    "offset": ({WEIGHTS: edited(offset)}, "'norm.weight' does not fit"),
    "strides": ({WEIGHTS: edited(strides)}, "'norm.weight' does not fit"),
    "negative size": ({WEIGHTS: edited(negative)}, "'norm.weight' does not fit"),
    "dtype": ({WEIGHTS: edited(dtype)}, "dtype that is not known"),
    "integers that train": ({WEIGHTS: edited(integers_that_train)}, "'norm.weight' cannot have a gradient"),
    "no weight": ({WEIGHTS: edited(no_weight)}, "no tensor 'norm.weight'"),
    "other record": ({WEIGHTS: edited(other_record)}, "cannot be read"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said(case, good, answer_to):
    changes, told = CASES[case]
    answer = answer_to(changed(good, changes))
    assert answer.startswith("error ") and told in answer


def test_all_unknown_operators_are_named_at_once(good, answer_to):
    answer = answer_to(changed(good, {MODEL: edited(unknown_operators)}))
    assert "mine::first" in answer and "mine::second in head" in answer


def test_rewritten_file_is_fine(good, answer_to):
    assert answer_to(changed(good, {})) == "done"


@pytest.mark.parametrize("length", [0, 1, 100, 0.3, 0.7, 0.99, -1])
def test_truncated_files(length, good, answer_to):
    content = (good / "model.pt2").read_bytes()
    length = int(length * len(content)) if isinstance(length, float) else length
    assert answer_to(content[:length]).startswith("error ")


def test_files_of_other_kinds(answer_to, good):
    assert answer_to(b"no archive" * 1000).startswith("error ")
    assert answer_to((good / "inputs.pt").read_bytes()).startswith("error ")


def test_bytes_changed_at_random(good, tmp_path):
    """Whatever comes of it, the program lives."""
    original = (good / "model.pt2").read_bytes()
    rng = random.Random(1)
    folders = []
    for number in range(60):
        content = bytearray(original)
        for _ in range(rng.choice([1, 5, 50])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "model.pt2").write_bytes(content)
        (folder / "inputs.pt").write_bytes((good / "inputs.pt").read_bytes())
        folders.append(f"0 {folder}")
    result = subprocess.run(
        [os.environ["PIPEWRIGHT_MODEL_PEER"]], input="\n".join(folders), capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    answers = [line for line in result.stdout.splitlines() if line == "done" or line.startswith("error ")]
    assert len(answers) == len(folders)
