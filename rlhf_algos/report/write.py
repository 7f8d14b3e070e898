"""From folders of runs to a page, pictures and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_algos.metrics import EVALUATION
from rlhf_algos.report.groups import Group, group_runs
from rlhf_algos.report.metrics import IS_HELD_OUT, overview_of, sections_for
from rlhf_algos.runs.discovery import read_runs
from rlhf_algos.runs.run import Run


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes:
        page: the HTML page.
        pictures: the PNG files: the overview, if there is anything to draw, and one per section of charts.
        table: the final values as Markdown; None if every run failed.
        notes: what the page warns of, such as a file that was cut off.
        runs: how many runs it is about.
        groups: the names of the groups.
    """

    page: Path
    pictures: tuple[Path, ...]
    table: Path | None
    notes: tuple[str, ...]
    runs: int
    groups: tuple[str, ...]


def write_report(paths: Sequence[str | Path], output: str | Path, *, title: str | None = None) -> Report:
    """Writes a report on all runs found in the paths.

    Args:
        paths: run folders, trial folders of Ray Tune, or folders that contain such folders at any depth.
        output: the page if it ends in ".html", else a folder that gets "report.html". The other files stand beside
            the page, and their names begin with its name.
        title: of the page; without one, it is made of the names of the paths.

    Raises:
        FileNotFoundError: if a path does not exist.
        ValueError: if a path holds no run, or if a file of a run is damaged, of a later version or not ours; names
            the path or file. Nothing is written then.
    """
    # Plotly, Matplotlib and SciPy take seconds to import, and a run that only writes its folder needs none of them.
    from rlhf_algos.report.final_values import final_values, markdown
    from rlhf_algos.report.page import Content, render
    from rlhf_algos.report.pictures import draw_picture
    from rlhf_algos.report.series import charts_of

    folders = [Path(path) for path in paths]
    runs = read_runs(folders)
    groups, differences = group_runs(runs)
    title = title or f"Report on {', '.join(path.resolve().name for path in folders)}"
    sections = sections_for(held_out=not any(_evaluates_what_it_trains_on(run) for run in runs))
    charts = charts_of(sections, groups)
    table = final_values(groups, sections)
    notes = _notes(runs, groups)
    text = render(Content(title, groups, differences, charts, table, notes))

    page = Path(output) if Path(output).suffix == ".html" else Path(output) / "report.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    pictures = [
        draw_picture(section.title, drawn, groups, page.with_name(f"{page.stem}-{section.name}.png"))
        for section, drawn in (*charts_of([overview_of(sections)], groups).sections, *charts.sections)
    ]
    final = page.with_name(f"{page.stem}-final-values.md") if table.rows else None
    if final is not None:
        final.write_text(markdown(table), encoding="utf-8")
    return Report(page, tuple(pictures), final, tuple(notes), len(runs), tuple(group.name for group in groups))


def _evaluates_what_it_trains_on(run: Run) -> bool:
    """Whether the run has an evaluation that is not known to be held out."""
    evaluated = run.values(f"{EVALUATION}/episode_return_mean")
    known = run.values(IS_HELD_OUT)
    return any(known.get(iteration) != 1.0 for iteration in evaluated)


def _notes(runs: Sequence[Run], groups: Sequence[Group]) -> list[str]:
    notes = [note for run in runs for note in run.notes]
    notes += [f"{run.path}: no complete iteration ({run.state})." for run in runs if not run.rows and not run.failed]
    for group in groups:
        reached = sorted({max(run.rows) for run in group.compared})
        if len(reached) > 1:
            notes.append(
                f"{group.name}: its runs end at iterations {reached[0]} to {reached[-1]}; a mean is over the runs "
                "that got that far, and a final value is taken at each run's own end."
            )
        seeds = [str(run.seed) for run in group.runs]
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            notes.append(
                f"{group.name}: more than one run with seed {', '.join(twice)}; the confidence intervals count each."
            )
    if any(run.state == "running" for run in runs):
        notes.append('A run that was killed by force could not record it and counts as "running".')
    return list(dict.fromkeys(notes))
