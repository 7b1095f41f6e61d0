"""Curves of a pre-training run in trackers while it runs: what its log holds, given on at every save.

    OUT.run/trackers.json      the run's name in W&B and trackio, and how many lines of the log each tracker has
    OUT.run/tensorboard/       TensorBoard's files; in OUT/tensorboard/ once the model is written

A line of the log is given on once it is saved and not before. Saved lines stay as they are; those behind them are cut
off after a kill and written a second time, and neither W&B nor trackio take a point back. So nobody sees a point twice,
and curves are late by a save at most (`[run] save_seconds`). Who has fewer lines than are saved, because it failed, was
not asked before, or the run was killed between saving and giving on, gets the rest when the run goes on.

Of what is on its way a kill may still take something: points that W&B's or trackio's client had taken and not yet
sent. And a kill in the instant between giving and noting it in trackers.json gives the points of that save a second
time: TensorBoard and W&B let one of them go by their steps, trackio keeps both.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from thrice.errors import first_line
from thrice.files import read_json, write_json
from thrice.run_folder import CURVES
from thrice.schema import misfits
from thrice.trackers import Tracker, Values, numbers
from thrice.training.budget_loop import LOG
from thrice.training.resume import random_state, set_random_state

KEPT = {"key": str, "name": str, "lines": dict[str, int]}
"""What trackers.json holds; lines: tracker, and the project in it -> how many it has."""


class Curves:
    """The trackers of a run. One that fails is told of once and left out until the next start: it stops no run."""

    def __init__(
        self,
        trackers: Sequence[str],
        run: Path,
        *,
        folder: Path,
        project: str,
        group: str,
        config: Mapping[str, Any],
        device: torch.device,
        tell: Callable[[str], None],
    ) -> None:
        """Nothing is begun before `follow` is called.

        run, folder: OUT.run and OUT. project, group: under which W&B and trackio file the run. config: what it was made
        of. device: whose generators stay as they are. tell: is told what fails.
        """
        self._wanted = tuple(dict.fromkeys(trackers))
        self._run, self._folder = run, folder
        self._project, self._group, self._config = project, group, config
        self._device, self._tell = device, tell
        self._open: dict[str, Tracker] = {}
        self._kept: dict[str, Any] = {}
        self._lines = self._bytes = 0

    def follow(self, length: int) -> None:
        """Give on what the log holds up to a length in bytes; the first call begins the trackers."""
        if not self._wanted:
            return
        with self._same_draws():
            try:
                lines = self._read(length)
            except (OSError, ValueError) as error:
                self._wanted = ()
                self._tell(f"warning: no tracker gets more: {self._run / LOG} cannot be read: {first_line(error)}")
                return
            if not self._kept:
                self._begin(lines)
            for name in list(self._open):
                with self._left_out(name):
                    self._give(name, lines)
            self._lines += len(lines)

    def keep(self) -> None:
        """End the run in all trackers and put TensorBoard's files beside the model, for those of the one before."""
        self.close()
        own, place = self._run / CURVES, self._folder / CURVES
        try:
            if place.exists():
                shutil.rmtree(place)
            if own.exists():
                os.replace(own, place)
        except OSError as error:
            self._tell(f"warning: {place} could not be written: {error.strerror or error}; {LOG} has the curves")

    def close(self) -> None:
        """End the run in all trackers, for now or for good."""
        for name in list(self._open):
            with self._left_out(name):
                self._open[name].close()
        self._open.clear()

    def _begin(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._kept = self._known() or self._new()
        if not (self._run / CURVES).exists():
            self._kept["lines"].pop(CURVES, None)
        for name in self._wanted:
            has = self._kept["lines"].setdefault(self._entry(name), 0)
            with self._left_out(name):
                # First the name: a run that a kill leaves in a service without it would be nobody's.
                write_json(self._run / "trackers.json", self._kept)
                self._open[name] = Tracker(
                    name,
                    self._config,
                    place=self._run / CURVES,
                    project=self._project,
                    name=self._kept["name"],
                    group=self._group,
                    key=self._kept["key"],
                    since=lines[:has][-1]["step"] + 1 if has and lines else 0,
                )

    def _known(self) -> dict[str, Any] | None:
        """Give what trackers.json holds; None where there is none, or none that can be read."""
        path = self._run / "trackers.json"
        try:
            kept: dict[str, Any] = read_json(path)
            problems = misfits(kept, KEPT)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            problems = [first_line(error)]
        if problems:
            self._tell(f"warning: {path} is damaged ({problems[0]}); W&B and trackio get a new run")
            return None
        return kept

    def _new(self) -> dict[str, Any]:
        key = secrets.token_hex(4)  # the system's own: no generator of the run is drawn from
        return {"key": key, "name": f"{self._folder.resolve().name}-{key}", "lines": {}}

    def _read(self, length: int) -> list[dict[str, Any]]:
        """Give the lines of the log from where it was read last up to a length in bytes."""
        with open(self._run / LOG, "rb") as log:
            log.seek(self._bytes)
            content = log.read(max(0, length - self._bytes))
        self._bytes += len(content)
        return [json.loads(line) for line in content.splitlines()]

    def _entry(self, name: str) -> str:
        return name if name == CURVES else f"{name} {self._project}"

    def _give(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        noted = self._kept["lines"]
        first = noted[self._entry(name)] - self._lines
        try:
            for line in lines[max(0, first) :]:
                if values := _values(line):
                    self._open[name].log(line["step"], values)
                noted[self._entry(name)] += 1
        finally:
            write_json(self._run / "trackers.json", self._kept)

    @contextlib.contextmanager
    def _left_out(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # every client has errors of its own
            failed = self._open.pop(name, None)
            self._tell(
                f"warning: {name} is left out from here on: {type(error).__name__}: {first_line(error)}; {LOG} has "
                "everything, and a run that goes on gives it what it lacks"
            )
            if failed is not None:
                with contextlib.suppress(Exception):
                    failed.close()

    @contextlib.contextmanager
    def _same_draws(self) -> Iterator[None]:
        """Leave the global generators as they were, whatever a client draws from them."""
        before = random_state(self._device)
        try:
            yield
        finally:
            set_random_state(before, self._device)


def _values(line: Mapping[str, Any]) -> Values:
    """Give the points of a line of the log: train/* of steps, held_out/* and evaluation/* of evaluations."""
    own = {key: value for key, value in line.items() if key not in ("event", "step", "evaluation")}
    if line["event"] == "step":
        return numbers("train", own)
    if line["event"] == "evaluation":
        return numbers("held_out", own.pop("held_out")) | numbers("evaluation", own)
    return {}
