#!/usr/bin/env python3
"""Measures how long deltas of weights are: `tools/versions/measure.py PHUB_SERVER > docs/figures/versions.csv`.

A small language model learns the pages of this repository, with Adam at a hub. Then, for each learning rate and precision, a
version is published before a step, after the step, and after ten more steps. This script reads each version with PyPI's
zstandard and xxhash, by the rules of docs/formats.md only. Needs phub, torch, zstandard and xxhash, and ten minutes of one core.
"""

import csv
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import torch
import xxhash
import zstandard

import phub
import phub.torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
LENGTH, WIDTH, LAYERS, BATCH = 64, 192, 4, 16
WARM_STEPS = 300
RATES = (1e-3, 1e-4, 1e-5, 3e-6, 1e-6)
PRECISIONS = {"bf16": 2, "f32": 4}


class Model(torch.nn.Module):
    """A transformer that predicts the next byte."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.letters = torch.nn.Embedding(256, WIDTH)
        self.places = torch.nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = torch.nn.Linear(WIDTH, 256)
        future = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, text):
        return self.out(self.layers(self.letters(text) + self.places, mask=self.future))


class Reader:
    """A reader of a directory of versions, without this project's code."""

    def __init__(self, directory):
        self.directory, self.state, self.at = directory, {}, 0

    def advance(self):
        """Reads the next version. Returns the number of bytes of its tensors in the files, and the state before the version."""
        version = self.directory / f"weight_v{self.at + 1:06d}"
        index = json.loads((version / "model.safetensors.index.json").read_text())
        about, before = index["metadata"], dict(self.state)
        if is_delta := "delta_encoding" in about:
            assert int(about["base_version"]) == self.at
        length = 0
        for file in sorted(set(index["weight_map"].values())):
            content = (version / file).read_bytes()
            (header,) = struct.unpack("<Q", content[:8])
            tensors = json.loads(content[8 : 8 + header])
            sums = tensors.pop("__metadata__")
            assert set(tensors) == {name for name, of in index["weight_map"].items() if of == file}
            for name, tensor in tensors.items():
                begin, end = (8 + header + offset for offset in tensor["data_offsets"])
                new, length = content[begin:end], length + end - begin
                if is_delta:
                    changes = zstandard.ZstdDecompressor().decompress(new)
                    assert len(changes) == len(before[name])
                    number = int.from_bytes(changes, "little") ^ int.from_bytes(before[name], "little")
                    new = number.to_bytes(len(changes), "little")
                assert xxhash.xxh3_128_hexdigest(new) == sums[name if is_delta else f"checksum/{name}"], name
                self.state[name] = new
        self.at += 1
        return length, before


def changed(before, after, size):
    """Returns the number of elements of `size` bytes that differ, and the number of all elements."""
    kind = torch.int16 if size == 2 else torch.int32

    def elements(content):
        return torch.frombuffer(bytearray(content), dtype=kind)

    pairs = [(elements(after[name]), elements(old)) for name, old in before.items()]
    return sum(int((new != old).sum()) for new, old in pairs), sum(len(new) for new, _ in pairs)


def main(program):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    text = torch.tensor(list(b"".join(page.read_bytes() for page in sorted((ROOT / "docs").glob("*.md")))))
    model, hub = Model(), phub.serve(cores=1)
    optimizer = phub.torch.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=RATES[0]), model, hub=hub, rank=0, world_size=1, job="versions"
    )

    def steps(count):
        for _ in range(count):
            begins = torch.randint(len(text) - LENGTH - 1, (BATCH,))
            pieces = torch.stack([text[begin : begin + LENGTH + 1] for begin in begins])
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
            loss.backward()
            optimizer.step()
        return loss.item()

    loss = steps(WARM_STEPS)
    print(f"{sum(each.numel() for each in model.parameters())} parameters, loss {loss:.2f}", file=sys.stderr)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["learning_rate", "precision", "steps", "changed", "bytes_whole", "bytes_delta"])
    with tempfile.TemporaryDirectory() as directory:
        for rate in RATES:
            for group in optimizer.param_groups:
                group["lr"] = rate
            steps(5)
            readers = {name: Reader(pathlib.Path(directory) / f"{name}-{rate}") for name in PRECISIONS}
            for count in (0, 1, 10):
                if count:
                    steps(count)
                for name, reader in readers.items():
                    command = [program, "publish", "versions", hub.address, "--to", reader.directory, "--once"]
                    subprocess.run([*command, "--dtype", name, "--whole-each", "9"], check=True, capture_output=True)
                    length, before = reader.advance()
                    if count:
                        differ, all_ = changed(before, reader.state, PRECISIONS[name])
                        out.writerow([f"{rate:g}", name, count, f"{differ / all_:.4f}", all_ * PRECISIONS[name], length])
                        sys.stdout.flush()


main(sys.argv[1])
