"""What model_fuzz begins with: small models and tensors, in all forms that it knows. model_seeds.py FOLDER"""

import io
import pathlib
import sys
import zipfile

import torch
from safetensors.torch import save
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, batch, scale: int):
        with torch.no_grad():
            shift = self.offset * scale
        x = torch.relu(self.first(batch["x"])).view(batch["x"].shape[0], 4) + shift
        return {"out": self.second(x), "parts": x.split(2, 1)}


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    rows = torch.export.Dim("rows", min=2, max=9)
    models = {
        "linear": torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)),
        "small": torch.export.export(
            Small(), ({"x": torch.zeros(3, 3)}, 2), dynamic_shapes=({"x": {0: rows}}, None)
        ),
    }
    for name, model in models.items():
        file = io.BytesIO()
        torch.export.save(model, file)
        (folder / f"{name}_archive").write_bytes(b"a" + file.getvalue())
        with zipfile.ZipFile(file) as archive:
            description = next(each for each in archive.namelist() if each.endswith("models/model.json"))
            (folder / f"{name}_graph").write_bytes(b"g" + archive.read(description))
    tensors = {"a": torch.ones(2, 3), "b": torch.arange(3), "c": torch.zeros(2, dtype=torch.bfloat16)}
    file = io.BytesIO()
    torch.save(tensors, file)
    (folder / "pickled").write_bytes(b"p" + file.getvalue())
    (folder / "safetensors").write_bytes(b"s" + save(tensors))


if __name__ == "__main__":
    main()
