"""A second place for what a study has finished: any URL that fsspec knows, such as a bucket or a mounted folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from thrice.compare.grid import changes
from thrice.errors import ConfigError, DataError
from thrice.files import read_json, written_beside
from thrice.training import TrainingConfig

STUDY = "study.json"

ROOMS = ("cells", "items", "models")
"""The rooms of a study's folder that hold finished things; what is being computed is no matter for a store."""

SHOWS_HALVES = ("file", "local", "memory", "sftp", "ssh", "smb", "hdfs", "arrow_hdfs", "webhdfs", "ftp")
"""Kinds of stores in which a half-written file can be seen, and a rename is one act. A bucket shows whole objects."""


class Store:
    """The finished rows, answers and models of one study at a URL, under their names in the study's folder.

    Credentials are what the client of the URL's kind reads from its environment; none are taken or kept here.
    """

    def __init__(self, url: str) -> None:
        """Find the client for a URL; raises ConfigError where there is none or the URL is none, or holds a password."""
        import fsspec

        if _has_password(url):
            raise ConfigError(
                "--store: the URL holds a password, which study.json and error messages would show; leave it to the "
                "environment or the settings of the URL's client"
            )
        self.url = url.rstrip("/")
        try:
            found = fsspec.url_to_fs(url)
        except ImportError as error:
            raise ConfigError(f"--store {url}: {_said(error)}") from error
        except ValueError as error:
            raise ConfigError(
                f"--store {url}: {_said(error)} - give a URL such as s3://bucket/study or file:///mnt/shared/study"
            ) from error
        except Exception as error:  # every client has errors of its own
            raise DataError(f"the store {url} does not answer: {_said(error)} - check the address") from error
        self._fs: Any = found[0]
        self._root = str(found[1]).rstrip("/")
        kinds = self._fs.protocol
        self._renames = any(kind in SHOWS_HALVES for kind in ((kinds,) if isinstance(kinds, str) else kinds))

    def push(self, folder: Path, names: Iterable[str | Path]) -> list[str]:
        """Put files of a study's folder, and all files below folders of it, into the store; gives their names there.

        names: relative to `folder`. Each file arrives whole or not at all, and replaces one that is there. Rows come
        last, and of a model config.json, without which nobody takes it for one.
        Raises DataError for a name that leads out of the folder or is not there, and where the store refuses.
        """
        files = sorted((name for given in names for name in _files(folder, given)), key=_late)
        for name in files:
            target = f"{self._root}/{name}"
            with self._told(f"take {name}"):
                self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
                if self._renames:
                    self._put_beside(folder / name, target)
                else:
                    self._fs.put_file(str(folder / name), target)
        return files

    def pull(self, folder: Path, rooms: Sequence[str] = ROOMS) -> list[str]:
        """Fetch study.json and what the store's rooms hold, where the folder lacks it; gives the names fetched.

        What the folder has is left as it is. Rows come last, since a row says that its cell is finished.
        Raises DataError where the store holds another study than the folder, or a name that leads out of it, or does
        not answer; then nothing of the rooms was fetched.
        """
        with self._told("list what it holds"):
            self._fs.invalidate_cache()
            holds_study = self._fs.exists(f"{self._root}/{STUDY}")
            listed = [name for room in rooms for name in self._listed(room)]
        paths = {name: _inside(folder, name) for name in sorted(listed, key=_late)}
        fetched = []
        if holds_study and self._is_missing_or_agrees(folder):
            fetched += self._fetch(STUDY, folder / STUDY)
        for name, path in paths.items():
            if not path.exists() and not path.name.startswith("."):
                fetched += self._fetch(name, path)
        return fetched

    def forget(self) -> None:
        """Remove what the store holds of the study, as --restart does in its folder; other things there stay."""
        for name in (*ROOMS, STUDY):
            with self._told(f"remove {name}"), contextlib.suppress(FileNotFoundError):
                self._fs.rm(f"{self._root}/{name}", recursive=True)

    def _fetch(self, name: str, path: Path) -> list[str]:
        with self._told(f"give {name}"), written_beside(path) as beside:
            self._fs.get_file(f"{self._root}/{name}", str(beside))
        return [name]

    def _is_missing_or_agrees(self, folder: Path) -> bool:
        """Whether the folder holds no study yet; raises DataError where it holds another one than the store."""
        if not (folder / STUDY).exists():
            return True
        with self._told(f"give {STUDY} as one can read it"):
            theirs = json.loads(self._fs.cat_file(f"{self._root}/{STUDY}"))
            ours = read_json(folder / STUDY)
            # Either may be of a time when training had fewer fields.
            ours["training"] = dataclasses.asdict(TrainingConfig()) | ours["training"]
            changed = list(changes(theirs, ours))
        if changed:
            raise DataError(
                f"the store {self.url} holds another study than {folder}: {'; '.join(changed)} - use another --store, "
                "or start both anew with --restart"
            )
        return False

    def _listed(self, room: str) -> list[str]:
        try:
            found = self._fs.find(f"{self._root}/{room}")
        except FileNotFoundError:
            return []
        root = self._root.lstrip("/") + "/"
        return [str(path).lstrip("/").removeprefix(root) for path in found]

    def _put_beside(self, path: Path, target: str) -> None:
        place, _, name = target.rpartition("/")
        beside = f"{place}/.{name}.{socket.gethostname()}-{os.getpid()}.partial"
        try:
            self._fs.put_file(str(path), beside)
            self._fs.mv(beside, target)
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm_file(beside)
            raise

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # every client has errors of its own
            raise DataError(
                f"the store {self.url} did not {what}: {_said(error)} - what is finished lies in the study's folder; "
                "check the address, the credentials in the environment and the space there, and start the same "
                "command again"
            ) from error


def _files(folder: Path, given: str | Path) -> list[str]:
    """Give the names of a file, or of all files below a folder but hidden ones, which are locks and halves."""
    path = _inside(folder, given)
    if not path.exists():
        raise DataError(f"{path} is not there, so it cannot be put into the store")
    found = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")]
    return [p.relative_to(folder).as_posix() for p in found]


def _inside(folder: Path, name: str | Path) -> Path:
    """Give the path of a name in a folder; raises DataError where it leads out of it."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in str(name) or not pure.parts:
        raise DataError(f"{str(name)!r} is no name inside the study's folder {folder}; nothing was copied for it")
    path = folder / pure
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{name} leads out of the study's folder {folder} by a link; nothing was copied for it")
    return path


def _late(name: str) -> tuple[bool, bool, str]:
    """Sort names so that what says that others are whole comes after them."""
    return name.startswith("cells/"), name.endswith("/config.json"), name


def _has_password(url: str) -> bool:
    try:
        return urlsplit(url).password is not None
    except ValueError:
        return False


def _said(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
