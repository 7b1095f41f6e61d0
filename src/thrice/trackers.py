"""TensorBoard, W&B and trackio by Accelerate's own clients: the one place that knows them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from thrice.errors import ConfigError, nearest

TRACKERS = ("tensorboard", "trackio", "wandb")
"""Names of the trackers, which are also the names of their packages."""

Values = dict[str, float]


def check_trackers(names: Sequence[str]) -> None:
    """Raise ConfigError that lists every tracker that nobody knows or that is not installed."""
    problems = []
    for name in names:
        if name not in TRACKERS:
            problems.append(f"no tracker is called {name!r}: {nearest(name, TRACKERS)}")
        elif not _installed(name):
            problems.append(f"{name} is not installed: pip install {name}")
    if problems:
        raise ConfigError("; ".join(problems))


def _installed(name: str) -> bool:
    # A folder of that name where Python looks, such as ./wandb/ with its runs, is a package too, but has no file.
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


class Tracker:
    """A run in one tracker, begun; one that is there already goes on.

    Credentials are what the client finds in its environment. Every client has errors of its own, and any of them may
    come out of any call.
    """

    def __init__(
        self,
        tracker: str,
        config: Mapping[str, Any],
        *,
        place: Path,
        project: str,
        name: str,
        group: str,
        key: str,
        since: int = 0,
    ) -> None:
        """Begin; tracker: one of TRACKERS. config: what the run was made of, JSON values.

        place: TensorBoard's folder of the run; a new file goes there, and viewers forget what older ones say of the
        step `since` and those after it. The others file the run under project, group and name: W&B finds one that is
        there by the key, which is the run's for ever and no other's, trackio by the name.
        """
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState()  # its clients log through it; a process that only watches others has not made one
        self._talks = tracker == "trackio"
        settings: dict[str, Any]
        if tracker == "tensorboard":
            where, settings = [place.name, str(place.parent)], {"purge_step": since}
        else:
            where, settings = [project], {"name": name, "group": group, "resume": "allow"}
            settings |= {"id": key} if tracker == "wandb" else {}
        self._client: Any = LOGGER_TYPE_TO_CLASS[tracker](*where, **settings)
        with self._aside():
            self._client.start()
        if tracker == "tensorboard" and since > 0:
            return  # each time it is told the config, it makes one more run to hold it
        try:
            self._client.store_init_configuration(_plain(config))
        except BaseException:
            with contextlib.suppress(Exception):
                self.close()
            raise

    def log(self, step: int, values: Values) -> None:
        """Give points of the curves at an optimiser step; steps never fall."""
        self._client.log(values, step=step)

    def close(self) -> None:
        """End the run here, once what was given has been sent."""
        # Accelerate's client leaves trackio holding the ended run, which is then ended again when the process ends.
        end = importlib.import_module("trackio").finish if self._talks else self._client.finish
        with self._aside():
            end()

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Let trackio say what it has to say on standard error: standard output may be one JSON value."""
        with contextlib.redirect_stdout(sys.stderr) if self._talks else contextlib.nullcontext():
            yield


def numbers(room: str, values: Mapping[str, Any]) -> Values:
    """Give the numbers among values, flags as 0 and 1, under tags of a room; tables and names are left out."""
    return {f"{room}/{k}": float(v) for k, v in values.items() if isinstance(v, int | float)}


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Give a config as flat values; trackers take no nested ones and TensorBoard no None."""
    told = {k: v for k, v in config.items() if v is not None}
    return {k: v if isinstance(v, bool | int | float | str) else json.dumps(v) for k, v in told.items()}
