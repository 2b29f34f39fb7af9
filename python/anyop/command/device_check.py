# SPDX-License-Identifier: Apache-2.0
"""Check that a device does what include/anyop/device.h says: plugins of vendors, `host`, `cuda`.

Each check prints one line with what it measured. They run in a process of their own, so that a crash or a hang is
reported as one; after it, the checks that are left run in another. Exit code 1 when anything is wrong.
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
        help="seconds a check may take (default: 60)",
    )


def run(options: argparse.Namespace) -> int:
    """Prints a line for each check, then how many passed."""
    checks = _chosen(options.only)
    failed = 0
    for name, good, text, ms in _all_results(options, checks):
        failed += not good
        print(f"{'ok   ' if good else 'WRONG'} {name:<18}{ms:>7.0f} ms  {text}", flush=True)
    print(f"{options.device}: {len(checks) - failed} of {len(checks)} checks passed")
    return 1 if failed else 0


def _chosen(only: list[str] | None) -> dict[str, Callable]:
    from anyop.testing import device_checks, device_stream_checks

    named = {check.__name__: check for check in device_checks.CHECKS + device_stream_checks.CHECKS}
    unknown = [name for name in only or [] if name not in named]
    if unknown:
        near = did_you_mean(unknown[0], named)
        raise ValueError(f"there is no check '{unknown[0]}'; there are {', '.join(named)}{near}")
    return {name: named[name] for name in only} if only else named


def _all_results(
    options: argparse.Namespace, checks: dict[str, Callable]
) -> Iterator[tuple[str, bool, str, float]]:
    """(check, good, text, milliseconds); what is left after a crash goes on in a new process."""
    from anyop.command._child import events

    left = list(checks)
    while left:
        for event in events(lambda tell: _work(options, [checks[name] for name in left], tell)):
            if "error" in event:  # the device cannot even be opened
                raise ValueError(event["error"])
            if "died" in event:
                how = event["died"]
                if how == "died of SIGALRM":
                    how = f"did not end within {options.timeout} s"
                yield left.pop(0), False, how, 0.0
                break
            left.pop(0)
            yield event["name"], event["good"], event["text"], event["ms"]


def _work(
    options: argparse.Namespace, checks: list[Callable], tell: Callable[[dict[str, Any]], None]
) -> None:
    """Runs checks in this process, which an alarm ends when one hangs."""
    import time

    from anyop.testing.device_table import Device

    device = Device(options.device)
    for check in checks:
        signal.alarm(options.timeout)
        begin = time.perf_counter()
        good, text = _result(check, device)
        tell(
            {
                "name": check.__name__,
                "good": good,
                "text": text,
                "ms": (time.perf_counter() - begin) * 1000,
            }
        )
    signal.alarm(0)


def _result(check: Callable, device: Any) -> tuple[bool, str]:
    from anyop.testing.device_checks import Wrong
    from anyop.testing.device_table import Missing, Refused

    try:
        return True, check(device)
    except (Wrong, Missing, Refused) as error:
        return False, str(error)
