"""The `safevla` command line. Each command parses its options, makes one library call and prints the result."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from difflib import get_close_matches
from types import FrameType, ModuleType
from typing import Any, TextIO, cast

import click
from click.shell_completion import CompletionItem

from safevla_bench import errors, version
from safevla_bench.cli import completion
from safevla_bench.text import break_log_commands, escape_controls, indent_further, redact_secrets, wrap_text

# Exit codes of every command.
OK, GATE_FAILED, USER_ERROR, UNDECIDED, CRASHED, TIME_UP, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 5, 130, 143

# OS errors that a full, read-only or failing disk causes.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
# Optional package imported by a command's module -> the pip extra that installs this package.
_EXTRAS = {"matplotlib": "figures"}

# Group -> command -> (module, one line of help). A command's module is imported only when the command is used.
GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Run": {
        "eval": ("rollout", "Roll out policies, judge every episode and write a report."),
        "search": ("rollout", "Search for initial states that lead to unsafe successes."),
        "merge": ("score", "Join the shards of a run into one run folder."),
        "demo": ("score", "Judge recorded LIBERO rollouts, without a simulator."),
        "serve": ("check", "Serve a policy over openpi's protocol."),
        "doctor": ("check", "Check this machine or a policy server, and suggest remedies."),
    },
    "Judge": {
        "score": ("score", "Judge recorded episodes and write scores and a report."),
        "episodes": ("inspect", "List, filter and sort judged episodes."),
        "show": ("inspect", "Explain one episode, or evaluate a formula on every episode."),
        "frames": ("inspect", "Render pictures of episodes: the start, violations, the end."),
        "sensitivity": ("compare", "Show how the metrics depend on the thresholds."),
        "open": ("inspect", "Open a report, or an index of runs, in the browser."),
    },
    "Compare": {
        "compare": ("compare", "Compare policies on the same episodes, or plan a comparison."),
        "select": ("gate", "Choose the best policy or checkpoint under a constraint."),
        "gate": ("gate", "Check a run's metrics against limits (continuous integration)."),
        "tables": ("tables", "Print the paper's result tables for any runs."),
        "figures": ("figures", "Draw figures of judged episodes as SVG, PDF or PNG."),
    },
    "Publish": {
        "export": ("tables", "Export results and episodes for other programs."),
        "board": ("tables", "Write a static site that ranks policies by Safety."),
    },
    "Reference": {
        "specs": ("catalog", "List or explain safety specifications, or check your own."),
        "tasks": ("catalog", "List tasks and applicable specifications, or propose tags."),
        "protocols": ("catalog", "List evaluation protocols, server dialects and paper entries."),
        "help": ("rules", "Explain options that many commands share."),
    },
    "Data": {
        "convert": ("score", "Convert archives to another file format without loss."),
        "validate": ("score", "Check archives and logs, or print the JSON Schema."),
        "verify": ("check", "Verify a run: digests, episodes, scores, replays."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

_EPILOG = """\b
Examples:
  safevla demo
  safevla eval --host libero --suite libero-object --task 0,9 --episodes 2 \\
      --policy scripted:careful --policy scripted:hasty --out runs/first
  safevla score runs/first --library paper-text --out runs/rescored
  safevla episodes runs/first --unsafe --sort vsi
  safevla show runs/first :3
  safevla specs --explain held_object_tilt_world_15deg

\b
Exit codes: 0 done, 1 a gate failed, 2 wrong input, 3 a gate is undecided,
4 done with crashed episodes, 5 stopped by --stop-after, 130 by Ctrl-C,
143 by SIGTERM.
"""


def _import_once(name: str) -> ModuleType:
    """Return a module. Import it if needed, without garbage collection, which saves 0.2 s at startup."""
    if name not in sys.modules:
        gc.disable()
        try:
            importlib.import_module(name)
        finally:
            gc.freeze()  # the module's objects live until the end, so later garbage collections ignore them
            gc.enable()
    return sys.modules[name]


class LazyCommandGroup(click.Group):
    """A command group that imports each command's module on first use. This keeps help and completion fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        # Return the names of all commands, which are known without the import of any command's module.
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # Import the module of a command, and return the command; None for an unknown name, as click requires.
        # `COMMANDS` maps each command's name to its module's name and a summary.
        if cmd_name not in COMMANDS:
            return None
        module_name, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(_import_once(f"safevla_bench.cli.{module_name}"), f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return (name, command, further words). The error for an unknown first word suggests similar commands."""
        # During shell completion (`resilient_parsing`), click expects no error.
        similar = [] if args[0] in COMMANDS else get_close_matches(args[0], COMMANDS)
        if similar and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, similar))}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Write the commands into the help, under the headings of their groups.
        # `GROUPS` maps each heading to its commands: name -> (module, summary).
        width = max(map(len, COMMANDS))  # so that the columns of all groups have the same width
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Return the commands that begin with the typed text. click's own method would import every command.
        # `COMMANDS` maps each name to (module, summary).
        return [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]


@click.group(cls=LazyCommandGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version.__version__, prog_name="safevla")
def safevla() -> None:
    """Was a success also safe, and if not, how bad was it?

    Record rollouts of robot policies on simulator benchmarks without changing them, judge each episode against
    task-aware safety specifications in signal temporal logic, and report SR (success rate), Safety, SBU (succeeded but
    unsafe) and VSI (severity of violations) with confidence intervals.
    """
    # This function has no code, only the help text. `LazyCommandGroup` finds the commands.


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code. User errors print a message on stderr, never a traceback.

    The first Ctrl-C or SIGTERM ends the command and reports which results are kept. A second signal ends the process.
    """
    # Handlers that a calling program has installed are kept.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _handle_interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _handle_interrupt)
    code = run_command_line(arguments)
    if code in (INTERRUPTED, TERMINATED):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # otherwise a second Ctrl-C would kill Python during exit
    sys.exit(code)


# All received signals. Without this list they could be lost, because Ray may replace a KeyboardInterrupt.
_received_signals: list[int] = []


def _handle_interrupt(signal_number: int, frame: FrameType | None) -> None:
    # Handle SIGINT or SIGTERM: end the command as Ctrl-C does, so that results can be kept and reported.
    _received_signals.append(signal_number)  # for `_run_arguments`, in case Ray replaces the KeyboardInterrupt
    # A second signal ends the process at once, with the exit status that shells use for this signal.
    signal.signal(signal_number, lambda signal_number, frame: os._exit(128 + signal_number))
    raise KeyboardInterrupt


class _EscapedStream:
    """A wrapper of a text stream that escapes CI-log commands and terminal control sequences in everything printed,
    including the output of libraries. Line ends, tabs and the carriage returns of progress bars pass unchanged.
    """

    def __init__(self, stream: TextIO | None) -> None:
        # Wrap a stream. The package `rich` writes to `rich_proxied_file` directly, so this text is not escaped.
        # `stream` is None if Python closed it.
        self.rich_proxied_file = stream or open(os.devnull, "w")  # noqa: SIM115

    def __getattr__(self, name: str) -> Any:
        # All other attributes, such as `isatty` and `encoding`, are those of the wrapped stream.
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        # Write the escaped text, and return the length of the original text, as streams do.
        line = text.lstrip("\r")
        carriage_returns = text.removesuffix(line)  # a progress bar begins with carriage returns
        # The pattern matches all characters except line ends, tabs and printable ASCII; most text has none of these.
        escaped = re.sub(r"[^\n\t -~]+", lambda match: escape_controls(match[0]), line)
        # A CI log would obey commands such as `::error::`, so a space is inserted into each command.
        self._call_stream("write", carriage_returns + break_log_commands(escaped))
        return len(text)

    def flush(self) -> None:
        # Flush the wrapped stream. If the program that reads a pipe has ended, no error is raised.
        self._call_stream("flush")

    def _call_stream(self, method: str, *arguments: str) -> None:
        # Call a method of the wrapped stream. After a broken pipe, discard this and all later output.
        try:
            getattr(self.rich_proxied_file, method)(*arguments)
        except BrokenPipeError:  # the program that reads the output, such as `head`, has ended; the command continues
            _discard_output(self.rich_proxied_file)


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, escape control sequences in all that it prints, and return its exit code."""
    for descriptor in range(3):  # stdin, stdout and stderr
        try:
            os.fstat(descriptor)
        except OSError:  # the stream is closed; a file opened later could get its descriptor, and thus the output
            os.open(os.devnull, os.O_RDWR)  # `open` returns the lowest free descriptor, which is this one
    with escape_output():
        return _run_arguments(arguments)


@contextmanager
def escape_output() -> Iterator[None]:
    """Escape control sequences in all text that is printed in the `with` block, on stdout and stderr."""
    # `_EscapedStream` forwards all other attributes, so it can be used as a `TextIO`.
    stdout, stderr = cast(TextIO, _EscapedStream(sys.stdout)), cast(TextIO, _EscapedStream(sys.stderr))
    with redirect_stdout(stdout), redirect_stderr(stderr):
        yield


def _run_arguments(arguments: Sequence[str] | None) -> int:
    # Run the command line and return the exit code. If the user made an error, print its message.
    # If `arguments` is None, use the arguments of the process.
    stdout = sys.stdout  # to detect later that click has replaced the stream
    if completion.VARIABLE in os.environ:  # a shell requests completions
        return completion.answer(safevla)
    try:
        words = None if arguments is None else list(arguments)
        code = safevla.main(args=words, prog_name="safevla", standalone_mode=False)
        sys.stdout.flush()
        # Without click's standalone mode, `main` returns the exit code or a command's return value, which is None.
        return code if isinstance(code, int) else OK
    except click.UsageError as error:
        if isinstance(error, click.exceptions.NoArgsIsHelpError):  # `safevla` without arguments shows the help
            error.show()
            return error.exit_code
        command = error.ctx.command_path if error.ctx else "safevla"
        message = error.format_message().rstrip(".")  # click's messages are sentences; ours begin in lower case
        if not message[:2].isupper():
            message = message[:1].lower() + message[1:]
        return _report_error(f"{message}\n  `{command} --help` lists the accepted arguments.")
    except errors.TimeUpError as error:  # --stop-after ended the run as requested, so this is not a user error
        echo(error.problem, err=True)
        return TIME_UP
    except (click.ClickException, errors.SafevlaError) as error:
        click.echo(getattr(error, "mapping", ""), nl=False)  # a MappingNeededError contains a template to print
        return _report_error(str(error))
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:  # not an optional package, so the installation or the program is faulty
            raise
        from safevla_bench.plugins import install_command

        remedy = install_command(_EXTRAS[error.name])
        return _report_error(f"a required package is not installed: {error.name}\n  {remedy}")
    except (KeyboardInterrupt, click.Abort):  # click converts Ctrl-C into its own exception, `Abort`
        click.echo("interrupted", err=True)
        return TERMINATED if signal.SIGTERM in _received_signals else INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _discard_output(sys.stdout)
        return OK
    except SystemExit as error:
        if sys.stdout is stdout:  # only plug-ins raise SystemExit; this package's commands return exit codes
            return _report_error(f"a plug-in ended the command: SystemExit: {error}")
        _discard_output(sys.stdout)  # click replaces stdout and exits with 1 if the pipe closes while a command prints
        return OK
    except OSError as error:
        remedy = "Check that the file exists and that you may read and write it."
        if error.errno in _DISK_ERRORS:
            remedy = "Free some space or write elsewhere, then run the command again; --resume continues a run."
            _discard_output(sys.stdout)  # stdout may be on the full disk, and its flush at exit would fail again
        elif error.filename is None:  # the error names no file, so it may be a fault of the program
            raise
        problem = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        return _report_error(f"{problem}\n  {remedy}")
    except UnicodeEncodeError as error:
        return _report_error(f"{error.object[:200]!a}: this invalid Unicode text cannot be written as UTF-8")
    except MemoryError:
        return _report_error("out of memory\n  Free some memory or use fewer --workers; --resume continues a run.")


def _report_error(message: str) -> int:
    # Print an error with its remedy on stderr. Return the exit code for errors that the user made.
    echo_message(f"error: {message}", err=True)
    return USER_ERROR


def _discard_output(stream: TextIO) -> None:
    # Redirect all further output of a stream to the null device.
    # Python flushes stdout at exit; without this, the flush would fail and print an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def echo(*lines: str, err: bool = False) -> None:
    """Print lines. Mask secrets, and escape control characters and line ends. On a terminal, wrap long lines."""
    # With `err`, print on stderr instead of stdout.
    click.echo(wrap_text("\n".join(escape_controls(redact_secrets(line)) for line in lines)), err=err)


def echo_message(text: str, margin: str = "", *, err: bool = False) -> None:
    """Print a text of several lines, such as an error with its remedy. Indent all lines after the first by at least
    `margin`. A name with a line end then cannot imitate a line of output.
    """
    # `margin` is a text of spaces. With `err`, print on stderr instead of stdout.
    echo(*indent_further(text, margin).split("\n"), err=err)
