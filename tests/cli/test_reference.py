"""docs/reference/cli.md is what the commands say of themselves."""

from pathlib import Path

import typer

from keepstep.cli.app import app
from keepstep.cli.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m keepstep.cli.reference > docs/reference/cli.md"


def test_every_command_and_option_is_documented_in_words():
    text = PAGE.read_text()

    def walk(path, command):
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                walk(f"{path} {name}", inner)
            return
        assert f"## `{path}" in text
        assert command.help, path
        for parameter in command.params:
            if getattr(parameter, "hidden", False):
                continue
            assert parameter.help, f"{path}: {parameter.name} has no help"
            if parameter.param_type_name == "option":
                assert all(f"`{spelling}" in text for spelling in parameter.opts), f"{path} {parameter.opts}"

    walk("keepstep", typer.main.get_command(app))
