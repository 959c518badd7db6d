"""The commands behind `./run`, once `.venv` is ready. Each imports only what it needs."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import click

from devenv.errors import DevenvError
from devenv.help import HELP
from devenv.processes import until_interrupt
from devenv.progress import say
from devenv.toolchain import REPOSITORY

_PASS_ON = {"ignore_unknown_options": True, "help_option_names": []}


@click.group(help=HELP, add_help_option=False)
def main() -> None:
    """Commands of `./run`."""


@main.command("help")
def print_help() -> None:
    """Print the overview."""
    click.echo(HELP, nl=False)


@main.command(context_settings=_PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def test(arguments: tuple[str, ...]) -> None:
    """Run pytest over everything, in parallel, after building what the tests start."""
    from devenv import programs

    programs.ensure(programs.PROGRAMS)
    workers = max(2, min(4, os.cpu_count() or 2))
    chosen = any(argument in ("-n", "--numprocesses") or argument.startswith("-n") for argument in arguments)
    parallel = [] if chosen else ["-n", str(workers), "--dist", "worksteal"]
    _become([sys.executable, "-m", "pytest", *parallel, *arguments])


@main.command(context_settings=_PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lint(arguments: tuple[str, ...]) -> None:
    """Run the checks of form: they are tests too, so that `test` cannot forget them."""
    _become([sys.executable, "-m", "pytest", "-q", "tests/project", *arguments])


@main.command(context_settings=_PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Run the benchmarks."""
    _become([sys.executable, "-m", "benchmarks", *arguments])


@main.command()
def programs() -> None:
    """Build everything built from Go modules and print where it is."""
    from devenv.programs import PROGRAMS, ensure

    for name, path in ensure(PROGRAMS).items():
        click.echo(f"{name}\t{path}")


@main.command()
def images() -> None:
    """Build both container images and print their sizes and what is in them."""
    from devenv.images import NAMES, ensure

    for name in NAMES:
        image = ensure(name)
        entry = " ".join(image.config["Entrypoint"] + image.config["Cmd"])
        click.echo(f"cocoon-node-{name}: {image.size_bytes / 1e6:.1f} MB, user {image.config['User']}, runs {entry}")
        packages = image.packages()
        system_bytes = image.size_bytes - sum(packages.values())
        click.echo(f"  {system_bytes / 1e6:8.1f} MB  system and Python")
        for package, size_bytes in packages.items():
            click.echo(f"  {size_bytes / 1e6:8.1f} MB  {package}")


@main.command()
@click.option("--accept-breaking", is_flag=True, help="write a descriptor set that breaks existing clients")
def proto(accept_breaking: bool) -> None:
    """Generate the protobuf modules and the descriptor set."""
    from devenv.proto import regenerate

    regenerate(accept_breaking=accept_breaking)


@main.command()
def lock() -> None:
    """Resolve the requirement files again."""
    from devenv.locks import compile_all

    compile_all()


@main.command()
def docs() -> None:
    """Write the reference tables of docs/ again."""
    from devenv.reference import write_tables

    for page in write_tables():
        say(f"{page.relative_to(REPOSITORY)}: tables written")


@main.command("control-plane")
def control_plane() -> None:
    """Start a control plane and stay until Ctrl-C or SIGTERM."""
    from devenv.control_plane import ControlPlane

    folder = tempfile.TemporaryDirectory(prefix="cocoon-node-control-plane-")
    with folder as directory, ControlPlane(Path(directory)) as plane, until_interrupt():
        click.echo(f"KUBECONFIG={plane.kubeconfig()}")
        sys.stdout.flush()
        say("running; Ctrl-C ends it and removes its data")


@main.command()
@click.option("--once", is_flag=True, help="end when all is shown")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table")
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="use this cluster")
def demo(once: bool, output: str, kubeconfig: Path | None) -> None:
    """Show this machine as a Node."""
    from devenv.demo import Demo

    Demo(output=output, kubeconfig=kubeconfig).run(once=once)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _become(command: list[str]) -> None:
    os.chdir(REPOSITORY)
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 -- the program takes this one's place, exit status and all


if __name__ == "__main__":
    # Ended by a service manager or by Ctrl-C: everything started is stopped on the way out.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        main(prog_name="./run")
    except DevenvError as error:
        say(f"run: {error}")
        sys.exit(1)
