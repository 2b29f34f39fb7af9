# SPDX-License-Identifier: Apache-2.0
"""Runs the model on the device that was asked for, and prints speed, routes and differences."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator

import torch
from torch import distributed

from . import InputError, comparison
from .work import Work


def run(options: argparse.Namespace) -> int:
    """The program's exit code: 1 when results are not those of the other device."""
    title = find_device(options.device)
    with processes(options) as is_first:
        work = Work(options)
        results = work.results(options.device, options.ddp)
        if not is_first:
            return 0
        say(title, results["model"])
        show(results)
        if options.save:
            torch.save(results, options.save)
        for what, lines in work.routes.items():
            for line in lines:
                say(f"{what} by", line)
    if options.device != "anyop" or options.no_compare:
        return 0
    return compare(options, work, results)


def find_device(name: str) -> str:
    """Its name, with what is below. Raises InputError where it is not there."""
    if name == "anyop":
        try:
            import anyop.torch.device
        except ImportError as error:
            raise InputError(str(error)) from None
        return f"anyop ({anyop.torch.device.platform()})"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("torch finds no CUDA device")
    return name


@contextlib.contextmanager
def processes(options: argparse.Namespace) -> Iterator[bool]:
    """Joins the others that torchrun started; whether this one is to print."""
    if not options.ddp:
        yield True
        return
    if "RANK" not in os.environ:
        raise InputError("--ddp needs: torchrun --nproc-per-node 2 -m examples.qwen3 --ddp")
    if options.rows % int(os.environ["WORLD_SIZE"]):
        raise InputError(f"--rows {options.rows} cannot be divided among the processes")
    if options.device != "cpu":
        module = getattr(torch, options.device)
        module.set_device(int(os.environ["LOCAL_RANK"]) % module.device_count())
    distributed.init_process_group()
    try:
        yield distributed.get_rank() == 0
    finally:
        distributed.destroy_process_group()


def compare(options: argparse.Namespace, work: Work, results: dict) -> int:
    name, expected = comparison.reference(options, work)
    say(name, "the same work")
    show(expected)
    lines, good = comparison.compare(results, expected)
    for line in lines:
        say(f"like {name}", line)
    return 0 if good else 1


def show(results: dict) -> None:
    for name in ("greedy", "sampled"):
        if name in results:
            tokens = " ".join(map(str, results[name][0, :8].tolist()))
            say(name, f"{results[f'{name}_per_s']:,.0f} tokens/s: {tokens} ...")
    if "losses" in results:
        losses, speed = results["losses"].tolist(), results["training_per_s"]
        text = f"loss {losses[0]:.4f} to {losses[-1]:.4f} in {len(losses)} steps"
        say("training", f"{speed:,.0f} tokens/s: {text}")


def say(what: str, text: str) -> None:
    print(f"{what:<14}{text}", flush=True)
