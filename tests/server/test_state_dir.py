"""What a server leaves behind in its state directory."""

from pathlib import Path

from keepstep.server.state_dir import StateDir


def test_the_url_of_a_server_goes_with_it_and_that_of_another_stays(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.publish(state.http_file, "http://127.0.0.1:7447")
    state.withdraw_http("http://127.0.0.1:9")
    assert state.http() == "http://127.0.0.1:7447"
    state.withdraw_http("http://127.0.0.1:7447")
    assert state.http() is None
