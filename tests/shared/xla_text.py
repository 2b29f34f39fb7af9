# SPDX-License-Identifier: Apache-2.0
"""What the text of a program of JAX's says about calls of operators."""

import json
import re


def call_sites(text: str) -> list[dict]:
    r"""Of each call the attribute _call, as MLIR and HLO write it: a quote is \22."""
    found = re.findall(r'_call = "([^"]*)"', text)
    return [json.loads(site.replace("\\22", '"')) for site in found]
