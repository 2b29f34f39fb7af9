#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a tool of the environment that make set up: tools/in_venv.sh ruff check .
venv="${VENV:-.venv}"
if [ ! -x "$venv/bin/$1" ]; then
  echo "$venv/bin/$1 is missing; run 'make lint' once, or set VENV" >&2
  exit 1
fi
exec "$venv/bin/$@"
