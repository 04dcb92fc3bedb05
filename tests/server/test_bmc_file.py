"""``bmc.toml``: what it may say, and that every mistake is told with its place."""

import pytest

from keepstep.adapters.ipmi import IpmiBmc
from keepstep.server.bmc_file import open_bmc, read_bmc_file


def write(folder, text):
    path = folder / "bmc.toml"
    path.write_text(text)
    return path


def test_no_file_is_no_controllers(tmp_path):
    assert read_bmc_file(tmp_path / "bmc.toml") == {}


def test_a_node_is_opened_with_its_password(tmp_path):
    (tmp_path / "secret").write_text("tiger\n")
    path = write(
        tmp_path,
        '[node.n1]\naddress = "10.0.0.1:623"\nprotocol = "ipmi"\nuser = "root"\npassword_file = "secret"\n'
        f'[node."n2.rack"]\naddress = "https://10.0.0.2"\nfingerprint = "{"ab" * 32}"\n',
    )
    entries = read_bmc_file(path)
    assert list(entries) == ["n1", "n2.rack"]
    bmc = open_bmc(path, "n1", entries["n1"])
    assert isinstance(bmc, IpmiBmc) and bmc._environment["IPMI_PASSWORD"] == "tiger"
    assert "tiger" not in " ".join(bmc._command)
    pytest.importorskip("sushy", reason="the extra redfish is not installed")
    open_bmc(path, "n2.rack", entries["n2.rack"]).close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[node.n1\n", "line 1"),
        ('[node.n1]\nprotocol = "redfish"\n', "address"),
        ('[node.n1]\naddress = ""\n', "address is empty"),
        ('[node.n1]\naddress = "a"\nprotocol = "telnet"\n', "not one of redfish, ipmi"),
        ('[node.n1]\naddress = "a"\npassword = "x"\n', "password"),
        ('[node.n1]\naddress = "a"\nuser = "root"\n', "belong together"),
        ('[node.n1]\naddress = "a"\nprotocol = "ipmi"\nfingerprint = "ab"\n', "no certificates"),
        ('[node.n1]\naddress = "a"\nfingerprint = "ab"\nca_file = "b"\n', "not both"),
        ('[nodes.n1]\naddress = "a"\n', "nodes"),
        ("node = 3\n", "node"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, text, says):
    with pytest.raises(ValueError, match=says):
        read_bmc_file(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[node.n1]\naddress = "a"\nuser = "root"\npassword_file = "gone"\n', "cannot read the password"),
        ('[node.n1]\naddress = "-x"\nprotocol = "ipmi"\n', "node n1.*no address"),
        ('[node.n1]\naddress = "https://a"\nfingerprint = "ab"\n', "no SHA-256 fingerprint"),
    ],
)
def test_an_entry_that_cannot_be_opened_says_why(tmp_path, text, says):
    pytest.importorskip("sushy", reason="the extra redfish is not installed")
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=says):
        open_bmc(path, "n1", read_bmc_file(path)["n1"])
