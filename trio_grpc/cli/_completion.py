"""``trio-grpc completion``: the script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from trio_grpc.cli._failure import Failure
from trio_grpc.cli._output import Output, output_options

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@output_options
@click.pass_context
def command(context: click.Context, shell: str, output: Output) -> None:
    """Print the script that makes SHELL complete commands and options.

    For bash: eval "$(trio-grpc completion bash)" in ~/.bashrc; for zsh the same in ~/.zshrc; for fish, write it to
    ~/.config/fish/completions/trio-grpc.fish.
    """
    found = get_completion_class(shell)
    if found is None:
        raise Failure(f"there is no completion for {shell}")
    group = context.find_root().command
    completion = found(group, {}, "trio-grpc", "_TRIO_GRPC_COMPLETE")
    try:
        script = completion.source()
    except RuntimeError as error:
        # click looks at the version of bash.
        raise Failure(str(error)) from error
    if output.json:
        output.document({"shell": shell, "script": script})
    else:
        click.echo(script)


__all__ = ["SHELLS", "command"]
