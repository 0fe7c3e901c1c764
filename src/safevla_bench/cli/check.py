"""`safevla verify`, `doctor` and `serve`: check a run folder, a machine or a policy server; serve a policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import click

from safevla_bench.cli import GATE_FAILED, OK, USER_ERROR, completion, echo, echo_message, options, progress, rules
from safevla_bench.cli.options import flag, option
from safevla_bench.cli.run_options import parse_arguments
from safevla_bench.jobs import doctor, verify
from safevla_bench.jobs.doctor.server import examine_server
from safevla_bench.jobs.evaluation import judgement, request
from safevla_bench.jobs.verify.files import Verification
from safevla_bench.policies import make_policy, split_name
from safevla_bench.policies.servers import KINDS, endpoint, require_library, serve
from safevla_bench.sources.runs.folder import REPORT, read_host
from safevla_bench.text import count_noun

_MARGIN = " " * 11  # indentation of the second and later lines of a check's result


@options.command("verify", starts_host=True)
def verify_command(
    context: click.Context,
    run: Path = options.argument("RUN", type=options.FILE),
    replay: int = option("Replay K episodes in the simulator.", "K", type=options.NATURAL, default=0),
    audit: verify.AuditPlan | None = options.AUDIT,
    library: str | None = rules.library_option("The library that judged the run, if it is a file."),
    rule_files: tuple[Path, ...] = rules.rules_option(
        "A file that was passed to --rules when the run was judged; as-judged: the rules stored in the run."
    ),
    form: str = options.format_option(),
) -> None:
    """Check that a run folder agrees with its manifest, its scores and, with --replay, the simulator.

    The archive must match the digests in the manifest and the table of episodes. Library, registry and version must be
    those that judged the run. Judging the records again must reproduce scores.json and report.html byte for byte, and
    scores.parquet row for row. --replay plays the recorded actions of K episodes again in the simulator, from the
    planned initial state, and compares the records bit for bit. --audit chooses the episodes at random.

    The output gives the reason for each check that could not be made. Only a replay can detect that both a record and
    its digest were changed.

    \b
    Exit codes: 0 everything agrees, 1 something differs, 2 the run or a file
      could not be read, or a check could not be made, such as a replay without
      the host, or a check of scores by other rules (pass --rules as-judged).

    \b
    For instance:
      safevla verify runs/mine --replay 3
    """  # noqa: D301  (click needs the control character)
    is_as_judged = rules.is_as_judged(rule_files)
    # None = the default rules, by which `verify_run` cannot check the scores of a run that other rules judged.
    ruleset = None
    if library or any(file != Path(rules.AS_JUDGED) for file in rule_files):
        own_rules = rules.load_rules(library or "default", rule_files, settings={})
        ruleset = judgement.add_host_registries(own_rules, [run], as_judged=is_as_judged)
    elif is_as_judged:  # --rules as-judged is the only judging option
        ruleset = judgement.find_rules([run], as_judged=True)
    with progress.show_status("checking digests, episodes and scores") as update:

        def observe(done: int, episode_id: str) -> None:
            # Show in the status line which replay starts. `done` is the number of finished replays.
            update(f"replay {done + 1}: {episode_id}")

        verification = verify.verify_run(run, ruleset, replay=replay, audit=audit, observer=observe)
    if form == "json":
        findings = [asdict(finding) for finding in verification.findings]
        options.print_json({"agrees": verification.agrees, "open": verification.has_open_checks, "findings": findings})
    else:
        counts = Counter[str](finding.verdict for finding in verification.findings)
        words = {"agrees": "agree", "differs": "differ", "unchecked": "not checked"}
        count_texts = [f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict]]
        echo(f"{_summarize_verification(verification)} {run}: {', '.join(count_texts)}.", "")
        for finding in verification.findings:
            echo_message(f"{finding.verdict:<10} {finding.check}: {finding.said}", _MARGIN)
        next_step = _suggest_next_step(run, verification, is_as_judged=is_as_judged, has_replays=bool(replay or audit))
        echo("", f"Next: {next_step}")
    if not verification.agrees:
        context.exit(GATE_FAILED)
    context.exit(USER_ERROR if verification.has_open_checks else OK)


def _suggest_next_step(run: Path, verification: Verification, *, is_as_judged: bool, has_replays: bool) -> str:
    # Return the next step after a verification, as a phrase or a command, for the line that begins with `Next:`.
    rescore_command = judgement.format_rescore_command(run)
    verify_command = f"safevla verify {options.quote_paths(run)}"
    if verification.can_be_rescored:  # the only files that differ are those that judging writes
        return f"restore what differs, or write the scores again: {rescore_command}"
    if not verification.agrees:
        return "restore what differs from a copy of the run folder"
    if verification.is_by_other_rules and not is_as_judged and judgement.describes_rules(run):
        return f"check the scores by the rules that judged the run: {verify_command} --rules as-judged"
    # A replay needs the name of the host, which only the folders of `safevla eval` record.
    if read_host(run)[0] and not (verification.has_open_checks or has_replays):
        command = f"{verify_command} --replay 3{request.format_host_trust(run)}"
        return f"replay episodes, since only a replay detects a changed record: {command}"
    return f"safevla open {options.quote_paths(run)}" if (run / REPORT).is_file() else rescore_command


def _summarize_verification(verification: Verification) -> str:
    # Return one sentence on the results of all checks. A check is open if it was needed but could not be made.
    if not verification.agrees:
        return "Some checks found differences: see the lines below that begin with `differs`."
    if verification.has_open_checks:
        return "All completed checks agree, but some checks could not be made."
    return "Everything that was checked agrees."


@options.command("doctor")
def doctor_command(
    context: click.Context,
    host: str | None = option(
        "Check this simulator; a missing part is an error.", "NAME", shell_complete=completion.HOSTS
    ),
    out: Path | None = options.out_option("Check the disk of this folder, for a planned run.", "DIR"),
    quick: bool = flag("Do not render a frame or roll out an episode in the simulator."),
    server: str | None = option(
        f"Check a policy server instead of this machine; KIND is {', '.join(KINDS)}.",
        "KIND:URL",
        shell_complete=completion.SERVERS,
    ),
    arguments: tuple[str, ...] = options.policy_arguments_option(
        "An argument for the server's client, such as `dialect=NAME`."
    ),
    form: str = options.format_option(),
) -> None:
    """Check this machine: Python, disk, graphics, simulators and their versions; roll out and judge one episode.

    With --server, check a policy server instead, without a simulator. The server receives a made-up scene five times,
    then five recorded scenes of LIBERO in four orientations. The output shows the dialect, the keys and shapes of
    request and reply, the latency, how often repeated requests get different replies, statistics of the actions,
    whether the model expects images in another orientation, and the command that evaluates the server. With --host,
    only the dialects of that simulator are tried.

    Each check reports ok, a warning or an error; warnings and errors come with a remedy. The exit code is 2 if there is
    an error, else 0.

    \b
    For instance:
      safevla doctor --server openpi:localhost:8000
    """  # noqa: D301  (click needs the control character)
    if server is None:
        options.refuse_given(["arguments"], "needs a policy server: also pass --server KIND:URL.")
        all_findings = doctor.examine_machine(host, out, quick=quick)
    else:
        options.refuse_given(["out", "quick"], "applies to this machine: leave out --server.")
        all_findings = examine_server(server, parse_arguments(arguments, (server,))[server], host)
    findings = []  # results of the checks, which run while `all_findings` is iterated
    # Successive results with the same remedy share one line for the remedy. Each result is printed at once.
    for remedy, same_remedy in groupby(all_findings, key=lambda finding: finding.remedy):
        for finding in same_remedy:
            findings.append(finding)
            if form == "text":
                echo_message(f"{finding.level:<8} {finding.check}: {finding.found}", _MARGIN)
        if remedy and form == "text":
            echo_message(f"{'':<8}   → {remedy}", _MARGIN)
    counts = Counter[str](finding.level for finding in findings)
    if form == "json":
        options.print_json({"ok": not counts["error"], "findings": [asdict(finding) for finding in findings]})
    else:
        tally = ", ".join(count_noun(counts[level], level) for level in ("error", "warning") if counts[level])
        summary = f"No error, {tally}." if tally else "All is well."
        # After warnings, the demo is suggested, because it needs no simulator.
        next_step = "safevla demo" if tally else "safevla eval --help"
        if counts["error"]:
            echo("", f"{tally}. Fix the errors, then check again.")
        else:
            echo("", f"{summary} Next: {'run the eval command above' if server else next_step}")
    context.exit(USER_ERROR if counts["error"] else OK)


_LOCAL_ADDRESSES = ("127.0.0.1", "::1", "localhost")
_COPY_COUNT = options.WholeNumber(1, serve.MAX_CONNECTIONS)


@options.command("serve")
def serve_command(
    policy: str = option(
        "A policy, as `python:module:factory`.", "[NAME=]POLICY", required=True, shell_complete=completion.POLICIES
    ),
    arguments: tuple[str, ...] = options.policy_arguments_option("An argument for the policy."),
    port: int = option("The port; 0 = any free port.", default=8000, type=options.PORT),
    bind: str = option("Address to listen on; 0.0.0.0 also serves other machines.", "ADDRESS", default="127.0.0.1"),
    seed: int = option("Seed of the policy's randomness, the same in every episode.", default=0, show_default=True),
    copies: int = option("Number of copies of the policy; each serves one episode.", "N", default=1, type=_COPY_COUNT),
    key_file: str | None = option(f"File with the key that clients send; default: the key in {endpoint.KEY}.", "FILE"),
) -> None:
    """Serve a policy over openpi's protocol until Ctrl-C, to run it in a separate environment or to test a client.

    Each connection is an episode. Policies that see the simulator's internal state cannot be served.
    """
    require_library("websockets", "openpi")
    own_name, spec = split_name(policy)
    name = own_name or spec  # without NAME=, the text POLICY is the name
    policy_settings = parse_arguments(arguments, (name,))[name]
    # The server calls the function once for each copy of the policy.
    served = serve.ServedPolicy(name, lambda: make_policy(spec, policy_settings), seed, policy_settings, copies)
    key = endpoint.read_key(key_file)
    server = serve.start_server(served, bind, port, key)
    # The actual port differs from `port` if `port` is 0. For IPv6, the tuple contains two further items.
    host, actual_port = server.socket.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host  # in a URL, an IPv6 address is in brackets
    echo(f"Serving {name} on ws://{host}:{actual_port} (GET /healthz returns OK). Press Ctrl-C to stop.")
    echo(f"The server runs {count_noun(copies, 'episode')} at the same time. Further connections wait (see --copies).")
    echo(f"To check the server: safevla doctor --server openpi:ws://{host}:{actual_port}")
    echo(f"Next: safevla eval --policy openpi:ws://{host}:{actual_port} ...")
    if key is None and bind not in _LOCAL_ADDRESSES:
        click.echo(f"Anyone who can reach {bind} may use the policy: set a key in {endpoint.KEY}.", err=True)
    try:
        server.serve_forever()
    finally:
        server.shutdown()
        served.close()
