# SPDX-License-Identifier: Apache-2.0
"""Check that a device does what include/anyop/device.h says: plugins of vendors, `host`, `cuda`.

Each check prints one line with what it measured. They run in a process of their own, so that a crash or a hang is
reported as one; after it, the checks that are left run in another. Exit code 1 when anything is wrong. --operators
runs the standard tests of every operator that has a kernel for the device, from NumPy: a folder of sources, where the
references lie.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator
from typing import Any

from anyop._nearest import did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop device-check` takes."""
    parser.add_argument(
        "device",
        metavar="PLUGIN",
        help="path of a plugin's library, or a device's name: host, cuda",
    )
    parser.add_argument(
        "--only", metavar="CHECK", action="append", help="this check; may be given again"
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=int,
        default=60,
        help="seconds a check, or one case of an operator, may take (default: 60)",
    )
    parser.add_argument(
        "--operators",
        metavar="DIR",
        nargs="?",
        const="ops",
        help="test those of this folder, too (default: ops, in the folder of anyop's sources)",
    )
    parser.add_argument(
        "-k", metavar="TEXT", default="", help="only operators with TEXT in the name"
    )
    parser.add_argument(
        "--report", metavar="FILE", help="write versions, chip, hashes and results, as JSON"
    )


def run(options: argparse.Namespace) -> int:
    """Prints a line for each check, then how many passed."""
    checks = _chosen(options.only)
    failed = 0
    about: dict[str, Any] = {}
    results: dict[str, dict[str, Any]] = {}
    if options.operators is not None:
        checks |= _of_operators(options)
    for name, good, text, ms in _all_results(options, checks, about):
        failed += not good
        results[name] = {"good": good, "text": text, "ms": round(ms)}
        print(f"{'ok   ' if good else 'WRONG'} {name:<18}{ms:>7.0f} ms  {text}", flush=True)
    operators = sum(name.startswith("op ") for name in results)
    more = f", {operators} of them operators" if options.operators is not None else ""
    print(f"{options.device}: {len(checks) - failed} of {len(checks)} checks passed{more}")
    if options.report:
        from anyop.command._device_report import write_report

        write_report(options.report, options.device, about, results, options.operators)
    return 1 if failed else 0


def _chosen(only: list[str] | None) -> dict[str, Callable]:
    from anyop.conformance import device_checks, device_stream_checks

    named = {check.__name__: check for check in device_checks.CHECKS + device_stream_checks.CHECKS}
    unknown = [name for name in only or [] if name not in named]
    if unknown:
        near = did_you_mean(unknown[0], named)
        raise ValueError(f"there is no check '{unknown[0]}'; there are {', '.join(named)}{near}")
    return {name: named[name] for name in only} if only else named


def _of_operators(options: argparse.Namespace) -> dict[str, Callable]:
    """A check for each operator with a kernel for the device, which a process of its own opens."""
    from anyop.command._child import events
    from anyop.conformance.device_table import Device
    from anyop.conformance.on_chip import operator_checks, operators_on

    def ask(tell: Callable[[dict[str, Any]], None]) -> None:
        tell({"names": operators_on(options.operators, Device(options.device), options.k)})

    (answer,) = events(ask, options.timeout)
    if "names" not in answer:
        raise ValueError(answer.get("error") or f"the plugin {answer['died']} when it was opened")
    return operator_checks(options.operators, answer["names"], options.timeout)


def _all_results(
    options: argparse.Namespace, checks: dict[str, Callable], about: dict[str, Any]
) -> Iterator[tuple[str, bool, str, float]]:
    """(check, good, text, milliseconds); what is left after a crash goes on in a new process."""
    from anyop.command._child import events

    left = list(checks)
    while left:
        for event in events(
            lambda tell: _work(options, {name: checks[name] for name in left}, tell)
        ):
            if "error" in event:  # the device cannot even be opened
                raise ValueError(event["error"])
            if "about" in event:
                about.update(event["about"])
                continue
            if "died" in event:
                how = event["died"]
                if how == "died of SIGALRM":
                    how = f"did not end within {options.timeout} s"
                yield left.pop(0), False, how, 0.0
                break
            left.pop(0)
            yield event["name"], event["good"], event["text"], event["ms"]


def _work(
    options: argparse.Namespace,
    checks: dict[str, Callable],
    tell: Callable[[dict[str, Any]], None],
) -> None:
    """Runs checks in this process, which an alarm ends when one hangs."""
    import time

    from anyop.command._device_report import describe
    from anyop.conformance.device_table import Device

    device = Device(options.device)
    if options.report:
        signal.alarm(options.timeout)
        tell({"about": describe(device)})
    for name, check in checks.items():
        signal.alarm(options.timeout)
        begin = time.perf_counter()
        good, text = _result(check, device)
        tell(
            {
                "name": name,
                "good": good,
                "text": text,
                "ms": (time.perf_counter() - begin) * 1000,
            }
        )
    signal.alarm(0)


def _result(check: Callable, device: Any) -> tuple[bool, str]:
    from anyop.conformance.device_checks import Wrong
    from anyop.conformance.device_table import Missing, Refused

    try:
        return True, check(device)
    except (Wrong, Missing, Refused) as error:
        return False, str(error)
