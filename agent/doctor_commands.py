"""The command `doctor`: everything an operator would look at, each with a remedy, in three forms."""

import sys

import click

from agent.command_options import load_settings, settings_options, settings_or_exit, tell_warnings
from common.command_line import output_option


@click.command(short_help="Look at everything the agent needs; changes nothing.")
@output_option
@settings_options
def doctor(output: str, config_file: str | None, **options: str | None) -> None:
    """Look at everything the agent needs, beside a running agent or without one. Changes nothing.

    Give it the agent's own settings, and call it as the agent's user. Exit status 1 when a check has failed; warnings
    are trouble to come.
    """
    loaded = load_settings(config_file, options)
    settings = settings_or_exit(loaded)
    tell_warnings(loaded)
    from agent.doctor.examination import examine
    from agent.doctor.findings import Status
    from common.logging import printable
    from common.printing import new_console, new_table, print_data

    findings = examine(settings)
    if output != "table":
        shown = [
            {"check": each.check, "status": each.status.value, "message": each.message, "remedy": each.remedy}
            for each in findings
        ]
        print_data(shown, output)
    else:
        table = new_table("CHECK", "STATUS", "FOUND", "REMEDY")
        for each in findings:
            table.add_row(each.check, each.status.value, printable(each.message), printable(each.remedy) or "-")
        new_console().print(table)
    sys.exit(int(any(each.status is Status.FAILED for each in findings)))
