# SPDX-License-Identifier: Apache-2.0
"""`python -m anyop` is the command `anyop`."""

import sys

from anyop.command import main

sys.exit(main())
