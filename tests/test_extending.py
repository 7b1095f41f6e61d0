"""The plug-ins in docs/extending.md run as they stand there and keep their contracts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from thrice.registry import plugins

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run_block(holding: str, *, name: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """Run the one block of the page that holds a piece of text, as a module of that name, known until the test ends."""
    (block,) = [block for block in BLOCKS if holding in block]
    module = ModuleType(name)
    patch.setitem(sys.modules, name, module)  # a dataclass looks up its types there
    exec(compile(block, f"{PAGE.name}: {name}", "exec"), module.__dict__)
    return module


def test_the_objective_of_the_page_keeps_the_contract_and_checks_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = run_block("class SwappedNeighbours", name="thrice.objectives.swapped", patch=monkeypatch).PLUGIN
    assert plugin.name not in plugins("objectives")
    page = run_block("def test_swapped", name="page", patch=monkeypatch)
    page.test_swapped_neighbours_keep_the_contract_of_objectives()
    with pytest.raises(ValueError, match=r"objective swapped: rate is 1.5, expected a fraction between 0 and 1"):
        plugin(rate=1.5)


def test_the_task_of_the_page_keeps_the_contract(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = run_block("class Rating(Task)", name="thrice.tasks.rating", patch=monkeypatch).PLUGIN
    monkeypatch.setitem(plugins("tasks"), "rating", plugin)
    page = run_block("def test_rating", name="page", patch=monkeypatch)
    page.test_rating_keeps_the_task_contract(tiny_checkpoint, tmp_path)
