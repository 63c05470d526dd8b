"""Operators that another program computes: emulated_host.cpp, e.g. on an emulated processor."""

import re
import struct
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SCHEMAS = Path(__file__).parents[2] / "attention_ext" / "schema.cpp"
TYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32]
TYPES += [torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.bool]
NUMBERS = {dtype: number for number, dtype in enumerate(TYPES)} | {torch.bfloat16: 15}
DTYPES = {number: dtype for dtype, number in NUMBERS.items()}


class EmulatedLibrary:
    """Defines the operators of schema.cpp in PyTorch, and sends their calls to a program.

    Args:
        command: command line of the program.
        name: what it answers for the name of its instruction set.
    """

    def __init__(self, command: Sequence[str], name: str) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to, self.answers = self.process.stdin, self.process.stdout
        self.library = torch.library.Library("attention_ext", "DEF")
        for entry in re.findall(r"library\.def\((.*?)\);", SCHEMAS.read_text(), flags=re.S):
            schema = "".join(re.findall(r'"(.*?)"', entry))
            operator = schema.partition("(")[0]
            self.library.define(schema)
            if operator == "choose_instruction_set":
                self.library.impl(operator, partial(_chosen, name), "CompositeExplicitAutograd")
            else:
                self.library.impl(operator, self._caller(operator), "CPU")

    def _caller(self, operator: str) -> Any:
        schema = getattr(torch.ops.attention_ext, operator).default._schema

        def call(*arguments: Any) -> Any:
            given = [*arguments, *(x.default_value for x in schema.arguments[len(arguments) :])]
            self.to.write(_text(operator) + struct.pack("<qq", len(schema.returns), len(given)))
            for value, argument in zip(given, schema.arguments, strict=True):
                optional = isinstance(argument.type, torch.OptionalType) and value is not None
                self.to.write((b"?" if optional else b"") + _packed(value))
            self.to.flush()
            if error := self._read(*struct.unpack("<q", self._read(8))).decode():
                raise RuntimeError(error)
            results = [self._tensor() for _ in schema.returns]
            return results[0] if len(results) == 1 else tuple(results)

        return call

    def _read(self, size: int) -> bytes:
        content = self.answers.read(size)
        if len(content) < size:
            raise RuntimeError(f"the program ended with status {self.process.wait()}")
        return content

    def _tensor(self) -> Tensor:
        dtype, dims = struct.unpack("<qq", self._read(16))
        shape = struct.unpack(f"<{dims}q", self._read(8 * dims))
        result = torch.empty(shape, dtype=DTYPES[dtype])
        size = result.numel() * result.element_size()
        if size:
            flat = torch.frombuffer(bytearray(self._read(size)), dtype=torch.uint8)
            result.view(-1).view(torch.uint8).copy_(flat)
        return result


def _chosen(name: str, asked: str) -> str:
    if asked not in ("", name):
        raise RuntimeError(f"instruction set '{asked}' is not supported")
    return name


def _text(text: str) -> bytes:
    return struct.pack("<q", len(text)) + text.encode()


def _packed(value: Any) -> bytes:
    if value is None:
        return b"-"
    if isinstance(value, float):
        return b"F" + struct.pack("<d", value)
    if isinstance(value, int):
        return b"I" + struct.pack("<q", value)
    head = [NUMBERS[value.dtype], value.dim(), *value.shape, *value.stride()]
    span = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    flat = value.detach().as_strided((span if value.numel() else 0,), (1,))
    return b"T" + struct.pack(f"<{len(head)}q", *head) + flat.contiguous().view(torch.uint8).numpy().tobytes()
