"""The two consoles that commands write to: answers on `out`, everything else on `err`."""

from __future__ import annotations

from rich.console import Console

out = Console()
err = Console(stderr=True)
