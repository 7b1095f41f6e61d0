"""Finds the plug-ins of a folder of this package, and those that other packages announce by entry points."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
from typing import Any

from thrice.errors import ConfigError, nearest


@functools.cache
def plugins(room: str) -> dict[str, Any]:
    """Give name -> plug-in for one room, sorted by name.

    room: the folder's name, such as "tasks". Every module in `thrice.<room>` with a module-level `PLUGIN`
    offers it under `PLUGIN.name`; an installed package offers more through the entry-point group
    `thrice.<room>`, each entry naming one plug-in object.
    Raises ConfigError if two plug-ins claim one name.
    """
    package = importlib.import_module(f"thrice.{room}")
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    found = [m.PLUGIN for m in modules if hasattr(m, "PLUGIN")]
    found += [entry.load() for entry in importlib.metadata.entry_points(group=f"thrice.{room}")]
    by_name: dict[str, Any] = {}
    for plugin in sorted(found, key=lambda p: p.name):
        if plugin.name in by_name:
            raise ConfigError(
                f"two plug-ins in {room} are called {plugin.name!r}: {by_name[plugin.name]!r}, {plugin!r}"
            )
        by_name[plugin.name] = plugin
    return by_name


def plugin(room: str, name: str) -> Any:
    """Give the plug-in of that name; raises ConfigError with the nearest names where there is none."""
    known = plugins(room)
    if name not in known:
        raise ConfigError(f"no {room} called {name!r}; {nearest(name, known)}")
    return known[name]
