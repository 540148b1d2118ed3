"""`mpd-agl completion bash|zsh`: a completion script made from the commands' own options and the registries.

eval "$(mpd-agl completion bash)"
"""

import argparse
from importlib import import_module
from typing import get_args

from mpd_agl.cli import COMMANDS
from mpd_agl.cli.arguments import Parser
from mpd_agl.cli.options import FLAGS, VALUES
from mpd_agl.train.presets import list_presets
from mpd_agl.train.resolve import fields_of, registries

SCRIPT = r"""_mpd_agl() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then words="@COMMANDS@ --help --version"; else
    case $prev in
@VALUES@
      *) case "${COMP_WORDS[1]} ${COMP_WORDS[2]} " in
@OPTIONS@
      esac;;
    esac
  fi
  if [ -n "$words" ] && { [ "$COMP_CWORD" -le 2 ] || [[ $cur == -* ]] || [[ $prev == --* ]]; }; then
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
  fi
  [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "$cur"))
}
complete -o filenames -F _mpd_agl mpd-agl
"""


def run(argv: list[str]) -> int:
    """Print the script."""
    p = Parser(prog="mpd-agl completion", description='Use: eval "$(mpd-agl completion bash)"')
    p.add_argument("shell", choices=("bash", "zsh"))
    shell = p.parse_args(argv).shell
    print(("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + script(), end="")
    return 0


def script() -> str:
    """The script for bash; zsh reads it through bashcompinit."""
    fields = fields_of()
    choices = {path: sorted(registry.entries) for path, registry in registries().items()}
    choices["preset"] = sorted(list_presets())
    choices |= {n: list(map(str, get_args(f.annotation))) for n, f in fields.items() if "Literal" in str(f.annotation)}
    options = {"train": [f"--{n}" for n in (*VALUES, *FLAGS, *fields)]}
    for command in COMMANDS:
        if command not in ("train", "completion"):
            parser: argparse.ArgumentParser = import_module(f"mpd_agl.cli.{command.replace('-', '_')}").parser()
            options |= options_of(command, parser)
    value_lines = "\n".join(f'      --{n}) words="{" ".join(known)}";;' for n, known in choices.items())
    option_lines = "\n".join(f'        "{c} "*) words="{" ".join(known)}";;' for c, known in options.items())
    return (
        SCRIPT.replace("@COMMANDS@", " ".join(COMMANDS))
        .replace("@VALUES@", value_lines)
        .replace("@OPTIONS@", option_lines)
    )


def options_of(command: str, parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The words that may follow a command: first for each of its subcommands, then its own with their names."""
    own = [s for a in parser._actions for s in a.option_strings if s.startswith("--")]
    found: dict[str, list[str]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                found |= options_of(f"{command} {name}", inner)
            own += action.choices
    return {**found, command: own}
