"""What takes seconds: the library of plans, and Dynamo, which PyTorch imports when a plan is recorded."""

from __future__ import annotations

import driver  # noqa: F401
import torch._dynamo  # noqa: F401
