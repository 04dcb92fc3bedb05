"""The programs that the how-to page shows do what it says."""

import re
from pathlib import Path

import pytest
from tests.web.served import Served
from tests.web.site import OWNER_TOKEN, running_site, story

from keepstep.server.state_dir import HttpSign, StateDir

PAGE = Path(__file__).parents[2] / "docs/how-to/use-the-api.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def served():
    running = Served(lambda: running_site(story()))
    yield running
    running.close()


@pytest.mark.parametrize(
    ("number", "says"),
    [(0, "inc-0005 blue-1 waiting no proof"), (1, "['inc-0005']"), (2, "")],
    ids=("ask", "watch", "policy"),
)
def test_a_program_of_the_page_runs(served, tmp_path, monkeypatch, capsys, number, says):
    state = StateDir(tmp_path)
    state.token_file.write_text(OWNER_TOKEN)
    sign = HttpSign(state, served.url)
    monkeypatch.setenv("KEEPSTEP_STATE_DIR", str(state.path))
    program = PROGRAMS[number].replace("https://control.example:7447", served.url).replace("kst_…", OWNER_TOKEN)
    # Endless otherwise; and the first event names no subject.
    program = program.replace("keepstep.events()", "[next(keepstep.events())]").replace("any(", "not any(")
    exec(compile(program, str(PAGE), "exec"), {})
    sign.take_down()
    assert says in capsys.readouterr().out
