"""``tracekit sweep``: rerun studies, and say which of their claims hold."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import completion
from tracekit.cli.console import Console
from tracekit.cli.options import (
    ForceOption,
    JobsOption,
    OnOption,
    QuietOption,
    TableOrJsonOption,
    VerboseOption,
)
from tracekit.cli.output import Output, check_file, written_whole
from tracekit.figures import printable
from tracekit.trace.errors import TracekitError

if TYPE_CHECKING:
    from tracekit.studies import FinishedWork, StudyResult


def sweep(
    study: Annotated[
        list[Path],
        typer.Argument(
            metavar="STUDY…",
            help="TOML files, for instance replays/cliff.toml.",
            autocompletion=completion.studies,
        ),
    ],
    traces: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="TRACEKIT_TRACES",
            help="Folder of the traces that do not come with tracekit.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Write no result table; fail unless every claim holds and the result table beside "
            "each study equals the new one.",
        ),
    ] = False,
    format: TableOrJsonOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the verdicts to this file, not to stdout."
        ),
    ] = None,
    force: ForceOption = False,
    jobs: JobsOption = None,
    on: OnOption = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Take what a former sweep has finished from x.finished.jsonl beside x.toml, if trace, "
            "parameters and version of tracekit are the same, and keep that file.",
        ),
    ] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Rerun studies and say which of their claims hold.

    The result table of a study is written beside it: `x.csv` for `x.toml`. It replaces a former one;
    another file of that name only with --force. A sweep that is broken off leaves what it has finished
    in `x.finished.jsonl`.
    """
    console = Console(quiet, verbose)
    destination = Output(console, output, format, force, formats=("table", "json"), inputs=study)
    from tracekit.studies import (
        FinishedWork,
        is_former_result,
        measured_paths,
        read_study,
        trace_paths,
    )
    from tracekit.studies import sweep as run
    from tracekit.studies.cluster import check_where, client_on

    if on is not None:
        check_where(on, jobs)
    studies = [read_study(path) for path in study]
    for each in [] if check else studies:
        # A trace of that name is not overwritten even with --force, a former result without it.
        tables = sum(measured_paths(each, traces).values(), ())
        inputs = [each.path, *trace_paths(each, traces).values(), *tables]
        check_file(each.result_path, True, inputs)
        check_file(each.result_path, force or is_former_result(each))
    kept = [FinishedWork(each.finished_path, resume) for each in studies]
    results, wrong = [], []
    with nullcontext() if on is None else client_on(on, jobs, console.note) as executor:
        for each, finished in zip(studies, kept, strict=True):
            keeps = resume or not check
            with _kept(finished, resume, console), console.progress(each.path.name) as progress:
                result = run(
                    each,
                    traces,
                    jobs=jobs,
                    progress=progress,
                    executor=executor,
                    finished=finished if keeps else None,
                )
            for sentence in result.warnings:
                console.warn(sentence)
            for sentence in result.notes:
                console.detail(sentence)
            results.append(result)
            if check:
                wrong += _faults(result)
            else:
                _write_table(result, console)
            if keeps and not resume and not finished.n_found:
                finished.remove()
    destination.write(
        table=lambda: "\n\n".join(map(_text, results)),
        document=lambda: {
            "schema": "tracekit.sweep/1",
            "studies": [result.to_json() for result in results],
        },
    )
    if wrong:
        raise TracekitError("; ".join(wrong) + ".")


@contextmanager
def _kept(finished: "FinishedWork", is_read: bool, console: Console) -> Iterator[None]:
    """Say what is kept of a sweep, before it begins and where it is broken off."""
    path = finished.path
    if finished.n_found and not is_read:
        console.note(f"{path} holds finished work of a former sweep; --resume takes it.")
    try:
        yield
    except BaseException:
        if path.exists():
            console.note(f"What was finished is kept in {path}; --resume goes on from there.")
        raise
    if is_read:
        console.note(
            f"{path}: took {finished.n_taken}, added {finished.n_added}; it is kept for the next "
            "--resume."
        )


def _text(result: "StudyResult") -> str:
    held = sum(verdict.holds for verdict in result.verdicts)
    return "\n".join(
        [
            printable(f"{result.study.title} ({result.study.path})"),
            *(f"  {printable(str(verdict))}" for verdict in result.verdicts),
            f"{held} of {len(result.verdicts)} claims hold.",
        ]
    )


def _write_table(result: "StudyResult", console: Console) -> None:
    path, text = result.study.result_path, result.csv.encode()
    if path.exists() and path.read_bytes() == text:
        console.note(f"{path} is unchanged.")
        return
    changed = "; it was different before" if path.exists() else ""
    with written_whole(path) as file:
        file.write(text)
    console.note(f"Wrote {path}{changed}.")


def _faults(result: "StudyResult") -> list[str]:
    path = result.study.path
    faults = [] if result.all_claims_hold else [f"{path}: a claim does not hold"]
    if not result.study.result_path.exists():
        return [*faults, f"{path}: there is no {result.study.result_path.name} beside it"]
    differences = result.differences(result.study.result_path)
    return faults + [f"{path}: {difference}" for difference in differences]
