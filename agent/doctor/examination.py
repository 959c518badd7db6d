"""All checks, in the order in which a person would look."""

from agent.config import Settings
from agent.doctor import access_checks, host_checks, snapshot_checks
from agent.doctor.findings import Finding, guarded, unreadable
from agent.doctor.ledger_copy import LedgerLook, look_at_ledger
from agent.doctor.running import find_running


def examine(settings: Settings) -> list[Finding]:
    """Look at everything; nothing is changed, and an agent that runs is only asked."""
    running = find_running(settings)
    findings = guarded("agent", lambda: host_checks.check_process(running))
    look: LedgerLook | None = None
    if running is None:
        try:
            look = look_at_ledger(settings.state_dir)
        except OSError as error:
            findings.append(unreadable("ledger", error))
    findings += guarded("node-name", lambda: host_checks.check_name(settings, look))
    findings += guarded("clock", lambda: host_checks.check_clock(look, running))
    findings += guarded("host", lambda: host_checks.check_readings(settings, running))
    findings += guarded("tls", lambda: access_checks.check_tls(settings))
    findings += guarded("listen", lambda: access_checks.check_addresses(settings, running))
    findings += guarded("http-listen", lambda: access_checks.check_http(settings, running))
    findings += guarded("state-dir", lambda: snapshot_checks.check_state_directory(settings))
    if running is not None or look is not None:
        findings += guarded("ledger", lambda: snapshot_checks.check_ledger(look, running))
        findings += guarded("store", lambda: snapshot_checks.check_store(settings, look, running))
    findings += guarded("disk", lambda: snapshot_checks.check_disk(settings))
    findings += guarded("engine", lambda: snapshot_checks.check_engine(settings))
    findings += guarded("owner-sync", lambda: snapshot_checks.check_sync(settings, look, running))
    return findings
