# SPDX-License-Identifier: Apache-2.0
"""Show what anyop finds on this machine, what is missing, and the command that mends it.

Compilers, frameworks, devices, the cache and settings: what a bug report needs. Exit code 0 where a folder of C++
operators can be built, else 1.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

_SIGNS = {"ok": "ok", "missing": "MISSING", "problem": "PROBLEM", "note": "-"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `anyop doctor` takes."""
    parser.add_argument("--json", action="store_true", help="the same as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Looks, prints, judges."""
    from anyop.doctor import can_build, examine, system

    findings, about = examine(), system()
    able = can_build(findings)
    if options.json:
        report = {**about, "can_build": able, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return 0 if able else 1
    print(f"anyop {about['anyop']} in {about['folder']}")
    print(f"Python {about['python']} ({about['executable']}), {about['system']}, {about['machine']}, "
          f"{about['threads']} threads")  # fmt: skip
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            print(f"\n{group}")
        print(f"  {_SIGNS[finding.state]:<9}{finding.name:<20}{finding.text}")
        if finding.mend and finding.state in ("missing", "problem"):
            print(f"  {'':<29}mend: {finding.mend}")
    if optional := [f for f in findings if f.state == "note" and f.mend]:
        print("\noptional")
        for finding in optional:
            print(f"  {finding.name}: {finding.mend}")
    print(
        "\na folder of C++ operators " + ("can be built here" if able else "cannot be built here")
    )
    return 0 if able else 1
