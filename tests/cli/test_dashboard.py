"""The link to the dashboard: a token of one's own where a server leads, the owner's where nobody does, and no word too many."""

import pytest

from keepstep.adapters.server_link.tool import ToolClient
from keepstep.cli.app import add_late
from keepstep.cli.dashboard import _login
from keepstep.server.access_views import Tokens
from keepstep.server.state_dir import StateDir

add_late(["dashboard"])


@pytest.mark.parametrize("address", [None, "unix:/nowhere/keepstep.sock"])
def test_where_nobody_leads_the_link_has_the_owners_token_and_nothing_is_complained_of(tmp_path, capsys, address):
    state = StateDir(tmp_path / "state")
    state.create()
    if address is not None:
        state.address_file.write_text(address)
    assert _login(state) == state.token()
    assert capsys.readouterr() == ("", "")


def test_where_a_server_leads_the_link_has_a_token_that_ends(served):
    secret = _login(served)
    assert secret != served.token()
    with ToolClient(served.address(), secret) as tool:
        (made,) = tool.query("tokens", Tokens).tokens
    assert made.role == "admin" and made.expires_s is not None


def test_without_anything_recorded_it_says_what_begins(tmp_path, keepstep):
    done = keepstep("dashboard", "--state-dir", tmp_path / "none")
    assert done.returncode == 1 and "`keepstep server` begins" in done.stderr
