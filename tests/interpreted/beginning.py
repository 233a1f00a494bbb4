"""What takes seconds: importing torch, Triton, the lab, and what ``torch.testing`` imports on its first call; and
replacing Triton's language by what is interpreted. Triton does that whenever a kernel calls a function, and searches
all of it.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import torch
from triton import language
from triton.language import core
from triton.runtime import interpreter

from hypatia_lab import check  # noqa: F401

torch.testing.assert_close(0, 0)
if hasattr(interpreter, "_patch_lang"):  # private: another version may do without
    replaced = interpreter._patch_lang(lambda: (language, core))
    interpreter._patch_lang = lambda function: type(replaced)()
