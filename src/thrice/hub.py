"""A study's report or a trained model on the Hugging Face hub, with a card that states its scores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thrice.errors import CheckpointError, ConfigError, DataError, first_line
from thrice.files import read_json

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

REPORT = ("report.html", "report.md", "rows.csv", "rows.parquet", "study.json", "cost.json")
"""Files of a study that go to the hub, with its charts; items.json stays, since it quotes the user's texts."""

CARD = "README.md"

LOG_IN = "the hub does not know who you are: hf auth login, or set HF_TOKEN to a token that may write"

TASK_TYPES = {
    "classification": "text-classification",
    "tagging": "token-classification",
    "spans": "question-answering",
    "reading": "question-answering",
}
"""Kind of task -> what the hub calls it; other kinds keep their name."""


def push(folder: str | Path, repo: str, *, private: bool = True) -> str:
    """Put a study's report or a trained model's folder on the hub, in one commit, and give its address.

    repo: OWNER/NAME, made where it is absent. private: whether others may not read it; a repo that is there stays what
    it is. Of a study, REPORT and the charts are put; study.json and the report name data files and the command as they
    were typed, and the report shows some test texts. Of a model, the files of its folder, subfolders and hidden files
    aside, and of a pre-trained one its generator/ too; recipe.toml names the text as it was typed. The card is the
    folder's own README.md, or else made here, with the scores of the task in the hub's form.
    The token is the hub's own: HF_TOKEN or `hf auth login`.
    Raises ConfigError where the folder is neither, the repo's name is none or is public and should be private, or
    nobody is logged in; DataError where the hub does not answer or refuses, and then nothing was put.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    if repo.count("/") != 1:
        raise ConfigError(f"{repo!r} is no name of a repo: give OWNER/NAME")
    folder = Path(folder)
    files, card = _study(folder, repo) if (folder / "study.json").is_file() else _model(folder, repo)
    api = HfApi(library_name="thrice")
    with _told(repo):
        api.create_repo(repo, private=private, exist_ok=True)
        public = private and not api.repo_info(repo).private
    if public:
        raise ConfigError(
            f"{repo} is there and public: what is put there can be read by everybody - say so (private=False), or "
            "choose another name"
        )
    content: dict[str, str | bytes] = {path.relative_to(folder).as_posix(): str(path) for path in files}
    if CARD not in content:
        content[CARD] = card.encode("utf-8")
    operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=held) for name, held in content.items()]
    with _told(repo):
        done = api.create_commit(repo, operations, commit_message=f"{folder.resolve().name}, put here by thrice")
    return str(done.repo_url)


def _study(folder: Path, repo: str) -> tuple[list[Path], str]:
    from thrice.compare.summary import summarise
    from thrice.report.markdown import markdown_report

    if not any((folder / name).is_file() for name in ("report.html", "report.md")):
        raise ConfigError(f"{folder} holds a study and no report yet: thrice report {folder}")
    files = [folder / name for name in (*REPORT, CARD) if (folder / name).is_file()]
    files += sorted(path for path in folder.glob("charts/*") if path.is_file() and not path.name.startswith("."))
    summary = summarise(folder)
    results = [result for part in summary["tasks"] for result in _results_of_part(part)]
    if (folder / "report.md").is_file():
        body = (folder / "report.md").read_text(encoding="utf-8")
    else:
        body = markdown_report(summary)
    return files, _card(repo, body, results)


def _results_of_part(part: Mapping[str, Any]) -> Iterator[EvalResult]:
    for arm in part["arms"]:
        score = arm[part["deciding"]]
        if score["mean"] is not None:
            of = f"{part['metric']} of {arm['arm']}, mean of {score['n']} seed{'s' * (score['n'] != 1)}"
            yield _result(part["kind"], part["task"], part["deciding"], part["metric"], score["mean"], of)


def _model(folder: Path, repo: str) -> tuple[list[Path], str]:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} holds neither a study (study.json) nor a model (config.json)")
    files = _files_of(folder)
    kind, made_of, results = None, None, []
    try:
        sidecar = read_json(folder / "thrice.json")
        if (task := sidecar.get("task")) is not None:  # an encoder that was pre-trained or un-shared has none
            kind = task["name"]
            made_of = sidecar.get("run") or _row(folder)
            results = list(_results_of_run(kind, made_of)) if made_of else []
        elif "pretraining" in sidecar and (folder / "generator" / "config.json").is_file():
            files += _files_of(folder / "generator")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / 'thrice.json'} is not as thrice writes it: {error!r}") from error
    lines = [f"# {repo.rpartition('/')[2]}", ""]
    if made_of:
        training = made_of.get("training") or {}
        lines += [f"Trained with thrice from `{made_of['model']}`.", "", "| | |", "|:--|--:|"]
        lines += [f"| {result.metric_name} | {result.metric_value:.4f} |" for result in results]
        lines += [f"| {name} | {value} |" for name, value in training.items() if value is not None]
    return files, _card(repo, "\n".join(lines) + "\n", results, kind)


def _files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _row(folder: Path) -> dict[str, Any] | None:
    """Give the result row of a model that a study kept, where it still lies in the study's folder."""
    path = folder.resolve().parent.parent / "cells" / f"{folder.resolve().name}.json"
    row: dict[str, Any] | None = read_json(path) if path.is_file() else None
    return row


def _results_of_run(kind: str, run: Mapping[str, Any]) -> Iterator[EvalResult]:
    metric, name = run["metric"], run.get("task") or kind
    if run.get("test") is None:
        yield _result(kind, name, "best_dev", metric, run["best_dev"], f"{metric} on dev, best epoch")
        return
    for key, value in run["test"].items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield _result(kind, name, "test", key, value, f"{key} on test")


def _result(kind: str, dataset: str, part: str, metric: str, value: float, said: str) -> EvalResult:
    from huggingface_hub import EvalResult

    return EvalResult(
        task_type=TASK_TYPES.get(kind, kind),
        dataset_type=dataset,
        dataset_name=dataset,
        dataset_split="test" if part == "test" else "validation",
        metric_type=metric,
        metric_name=said,
        metric_value=value,
    )


def _card(repo: str, body: str, results: list[EvalResult], kind: str | None = None) -> str:
    from huggingface_hub import ModelCard, ModelCardData

    data = ModelCardData(
        model_name=repo.rpartition("/")[2],
        eval_results=results or None,
        library_name=None if kind is None else "transformers",
        pipeline_tag=TASK_TYPES.get(kind or ""),
        tags=["thrice"],
    )
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}"))


@contextlib.contextmanager
def _told(repo: str) -> Iterator[None]:
    """Turn the errors of the hub's client into ours."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        yield
    except HFValidationError as error:
        raise ConfigError(f"{repo!r} is no name of a repo: {first_line(error)} - give OWNER/NAME") from error
    except LocalTokenNotFoundError as error:
        raise ConfigError(LOG_IN) from error
    except HfHubHTTPError as error:
        if error.response.status_code == 401:
            raise ConfigError(LOG_IN) from error
        raise DataError(f"the hub refused {repo}: {first_line(error)} - may this token write there?") from error
    except Exception as error:  # of whichever library speaks HTTP for the client
        raise DataError(f"the hub did not take {repo}: {first_line(error)} - start the same command again") from error
