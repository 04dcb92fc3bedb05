"""Every form in which a kernel line comes to us gives the same message, host and clock."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.evidence.document import Document
from keepstep.evidence.kernel import reader
from keepstep.evidence.kernel.frames import Record, frame
from keepstep.evidence.kernel.records import Framer, records

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, name=python, GPU has fallen off the bus."

FORMS = {
    "bare": (XID, "", None, ""),
    "kmsg": (f"4,1234,5678900,-;{XID}", "", 5.6789, "kernel"),
    "kmsg with caller": (f"4,1234,5678900,-,caller=T12;{XID}", "", 5.6789, "kernel"),
    "dmesg": (f"[ 1843.308145] {XID}", "", 1843.308145, "kernel"),
    "dmesg of a long uptime": (f"[1084456.074562] {XID}", "", 1084456.074562, "kernel"),
    "dmesg with caller": (f"[  201.650687][ T1234] {XID}", "", 201.650687, "kernel"),
    "dmesg with delta": (f"[  201.650687 <    0.000012>] {XID}", "", 201.650687, "kernel"),
    "dmesg, delta alone": (f"[  +0.000012] {XID}", "", None, ""),
    "dmesg, relative": (f"[Feb23 16:24] {XID}", "", None, ""),
    "dmesg with level": (f"<4>[  201.650687] {XID}", "", 201.650687, "kernel"),
    "dmesg --decode": (f"kern  :warn  : [  201.650687] {XID}", "", 201.650687, "kernel"),
    "dmesg --decode iso": (f"kern  :warn  : 2025-01-21T04:41:44,283302+00:00 {XID}", "", 1737434504.283302, "wall"),
    "dmesg iso": (f"2025-01-21T04:41:44,283302+00:00 {XID}", "", 1737434504.283302, "wall"),
    "dmesg iso of another zone": (f"2025-01-21T05:41:44,283302+01:00 {XID}", "", 1737434504.283302, "wall"),
    "dmesg -T": (f"[Tue Jan 21 04:41:44 2025] {XID}", "", 1737434504.0, "wall"),
    "dmesg -T, first days": (f"[Sat Feb  1 00:00:01 2025] {XID}", "", 1738368001.0, "wall"),
    "colours": (f"\x1b[32m[  201.650687] \x1b[0m\x1b[33mNVRM: \x1b[0m{XID.removeprefix('NVRM: ')}", "", 201.650687, "kernel"),
    "ellipsis": (f"[...] {XID}", "", None, ""),
    "RFC 3164": (f"Jan 21 04:41:44 node-7 kernel: {XID}", "node-7", 948429704.0, "syslog:node-7"),
    "RFC 3164 with uptime": (f"Jan  1 04:41:44 node-7 kernel: [68183.615790] {XID}", "node-7", 946701704.0, "syslog:node-7"),
    "RFC 3164 with priority": (f"<4>Jan 21 04:41:44 node-7 kernel: {XID}", "node-7", 948429704.0, "syslog:node-7"),
    "RFC 5424": (f"<4>1 2025-01-21T04:41:44.283302Z node-7 kernel - - - {XID}", "node-7", 1737434504.283302, "wall:node-7"),
    "RFC 5424 with data": (
        f'<4>1 2025-01-21T04:41:44.283302Z node-7 kernel - - [meta sequenceId="1"] {XID}',
        "node-7", 1737434504.283302, "wall:node-7",
    ),
    "rsyslog iso": (f"2025-01-21T04:41:44.283302+00:00 node-7 kernel: {XID}", "node-7", 1737434504.283302, "wall:node-7"),
    "rsyslog iso with uptime": (
        f"2025-01-21T04:41:44.283302+00:00 node-7 kernel: [  5.1] {XID}", "node-7", 1737434504.283302, "wall:node-7",
    ),
    "journalctl short-iso": (f"2025-01-21T04:41:44+0000 node-7 kernel: {XID}", "node-7", 1737434504.0, "wall:node-7"),
    "journalctl short-full": (f"Tue 2025-01-21 04:41:44 UTC node-7 kernel: {XID}", "node-7", 1737434504.0, "wall:node-7"),
    "journalctl short-monotonic": (f"[  201.650687] node-7 kernel: {XID}", "node-7", 201.650687, "kernel:node-7"),
    "journalctl short-unix": (f"1737434504.283302 node-7 kernel: {XID}", "node-7", 1737434504.283302, "wall:node-7"),
    "journalctl json": (
        json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel", "_HOSTNAME": "node-7", "__REALTIME_TIMESTAMP": "1737434504283302"}),
        "node-7", 1737434504.283302, "wall:node-7",
    ),
    "journalctl json, bytes": (
        json.dumps({"MESSAGE": list(XID.encode()), "SYSLOG_IDENTIFIER": "kernel", "__REALTIME_TIMESTAMP": "1737434504283302"}),
        "", 1737434504.283302, "wall",
    ),
    "container json": (json.dumps({"log": f"[  201.650687] {XID}\n", "stream": "stdout"}), "", 201.650687, "kernel"),
    "kmsg collector json": (json.dumps({"priority": 4, "sequence": 9, "sec": 5, "usec": 6, "msg": XID}), "", None, ""),
    "container": (f"2025-01-21T04:41:44.283302511Z stdout F [  201.650687] {XID}", "", 1737434504.283302511, "wall"),
    "Talos": (f"10.0.0.7: kern: warning: [2025-01-21T04:41:44.283302511Z]: {XID}",
              "10.0.0.7", 1737434504.2833025, "wall:10.0.0.7"),
    "parallel shell": (f"node-7: [  201.650687] {XID}", "node-7", 201.650687, "kernel:node-7"),
    "grep over files": (f"/var/log/kern.log:Jan 21 04:41:44 node-7 kernel: {XID}", "node-7", 948429704.0, "syslog:node-7"),
    "grep with number": (f"dmesg.txt:118:[  201.650687] {XID}", "", 201.650687, "kernel"),
    "journalctl verbose": (
        f"Tue 2025-01-21 04:41:44.283302 UTC [s=ab;i=1;b=cd;m=1;t=2;x=3]\n    _TRANSPORT=kernel\n    MESSAGE={XID}\n"
        "    _HOSTNAME=node-7\n    __REALTIME_TIMESTAMP=1737434504283302",
        "node-7", 1737434504.283302, "wall:node-7",
    ),
    "cloud logging": (
        json.dumps({"jsonPayload": {"message": XID, "_TRANSPORT": "kernel"}, "timestamp": "2025-01-21T04:41:44.283302Z"}),
        "", 1737434504.283302, "wall",
    ),
    "hypervisor": (f"2025-01-21T04:41:44.283Z In(182) vmkernel: cpu12:2098123){XID}", "", 1737434504.283, "wall"),
    "syslog in German": (f"Okt 06 17:59:27 node-7 kernel: {XID}", "node-7", 970855167.0, "syslog:node-7"),
    "syslog in French": (f"févr. 06 17:59:27 node-7 kernel: {XID}", "node-7", None, ""),
    "syslog in Chinese": (f"11月 15 14:15:47 node-7 kernel: {XID}", "node-7", 974297747.0, "syslog:node-7"),
    "collection of machines": (
        f"- 1131566461 2005.11.09 dn228 Nov 9 12:01:01 dn228/dn228 kernel: {XID}", "dn228", 1131566461.0, "wall:dn228",
    ),
    "tag alone": (f"kernel: {XID}", "", None, ""),
    "pstore": (f"<6>[  201.650687] {XID}", "", 201.650687, "kernel"),
}  # fmt: skip


def read(text: str) -> list[Record]:
    return list(records(Document("anything", text.encode())))


@pytest.mark.parametrize("name", FORMS)
def test_each_form_gives_the_same_message(name: str) -> None:
    line, node, at_s, clock = FORMS[name]
    (record,) = read(line)
    assert record.text == XID
    assert record.kernel
    assert (record.node, record.clock) == (node, clock)
    assert record.at_s == (None if at_s is None else pytest.approx(at_s, abs=1e-5))


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_recognised_and_gives_the_same_signal(name: str) -> None:
    document = Document("anything", FORMS[name][0].encode())
    assert reader.recognise(document) >= 0.3
    (seen,) = reader.read(document).observations
    assert (seen.signal, seen.part, seen.line) == ("xid.79", "gpu/0000:3b:00", 1)


NOT_KERNEL = [
    f"2025-01-21 04:41:44 WARN gpu-agent: new event {XID}",
    f"2025-01-21 04:41:44,283 - ERROR - watcher: {XID}",
    f"E0121 04:41:44.283302 1 watcher.go:17] ERROR {XID}",
    f"the driver said: '{XID}'",
    f"Jan 21 04:41:44 node-7 monitor[77]: saw {XID}",
    f"Jan 21 04:41:44 node-7 monitor[77]: {XID}",
    f"2025-01-21T04:41:44.1+00:00 node-7 gpu-agent[3]: {XID}",
    f"<30>1 2025-01-21T04:41:44Z node-7 gpu-agent 77 - - {XID}",
    f"[  201.650687] node-7 gpu-agent[3]: {XID}",
    json.dumps({"MESSAGE": XID, "_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "gpu-agent", "__REALTIME_TIMESTAMP": "1"}),
    json.dumps({"level": "warn", "caller": "xid.go:7", "msg": f"found {XID}"}),
    f'{{"level":"error","msg":"xid","line":"{XID}","logger":"health"}}',
    f"30,1234,5678900,-;agent[3]: {XID}",
]


@pytest.mark.parametrize("line", NOT_KERNEL)
def test_a_program_that_quotes_the_kernel_is_not_the_kernel(line: str) -> None:
    assert reader.read(Document("anything", line.encode())).observations == []


def test_python_training_log_is_no_kernel_log() -> None:
    text = "\n".join(f"2025-01-21 04:41:{second:02d},283 - INFO - step {second} loss 2.1" for second in range(60))
    assert reader.recognise(Document("train.log", text.encode())) < 0.3


def test_continuation_fields_of_the_device_belong_to_their_record() -> None:
    text = "6,1,10,-;usb 1-1: new device\n SUBSYSTEM=usb\n DEVICE=+usb:1-1\n6,2,20,-;next"
    assert [record.text for record in read(text)] == ["usb 1-1: new device", "next"]


def test_escaped_newline_of_the_device_is_undone() -> None:
    (record,) = read(r"4,1,10,-;NVRM: The NVIDIA GPU 0000:18:00.0\x0aNVRM: fallen off the bus")
    assert record.text.splitlines() == ["NVRM: The NVIDIA GPU 0000:18:00.0", "NVRM: fallen off the bus"]


def test_indented_lines_continue_a_record() -> None:
    text = "[ 1.0] one\n       two\n       three\n[ 2.0] four"
    assert [(record.line, record.text) for record in read(text)] == [(1, "one\ntwo\nthree"), (4, "four")]


def test_journal_export_is_read() -> None:
    entry = "__CURSOR=s=1\n__REALTIME_TIMESTAMP=1737434504283302\n_BOOT_ID=aa\n"
    entry += "_TRANSPORT=kernel\n_HOSTNAME=node-7\nMESSAGE={}\n\n"
    text = entry.format(XID) + entry.format("fine").replace("=aa", "=bb")
    got = read(text)
    assert [(record.text, record.node, record.boot) for record in got] == [(XID, "node-7", 0), ("fine", "node-7", 1)]


def test_binary_field_of_a_journal_export_is_read() -> None:
    message = f"{XID}\nsecond line".encode()
    data = b"__CURSOR=s=1\n_TRANSPORT=kernel\nMESSAGE\n" + len(message).to_bytes(8, "little") + message + b"\n\n"
    (record,) = records(Document("x", data))
    assert record.text.startswith(XID)


def test_pretty_journal_is_read() -> None:
    entry = {"MESSAGE": XID, "_TRANSPORT": "kernel", "_HOSTNAME": "node-7", "__REALTIME_TIMESTAMP": "1737434504283302"}
    (record,) = read(json.dumps(entry, indent="\t"))
    assert (record.text, record.node) == (XID, "node-7")


@pytest.mark.parametrize(
    ("text", "boots"),
    [
        ("[ 5000.0] a\n[    0.0] Linux version 6.8\n[ 10.0] b", [0, 1, 1]),
        ("[ 5000.0] a\n[ 10.0] b", [0, 1]),
        ("[ 5000.0] a\n[ 4999.9] b", [0, 0]),
        ("[    0.0] Linux version 6.8\n[ 10.0] b", [0, 0]),
        (f"Jan 21 04:41:44 n kernel: a\n-- Boot {'a' * 32} --\nJan 21 04:51:44 n kernel: b", [0, 1]),
        (
            "Jan 21 04:41:44 n kernel: a\n-- Reboot --\nJan 21 04:51:44 n kernel: Linux version 6\nJan 21 04:51:45 n kernel: c",
            [0, 1, 1],
        ),
        ("<6>[  5.0] a\nPanic#1 Part1\n<6>[  2.0] b", [0, 0, 0]),
    ],
)
def test_boots_are_told_apart(text: str, boots: list[int]) -> None:
    assert [record.boot for record in read(text)] == boots


def test_messages_whose_first_word_looks_like_a_host_keep_it() -> None:
    for message in (
        "nvme nvme0: I/O 1 QID 2 timeout",
        "EDAC MC0: 1 CE on A1",
        "NETDEV WATCHDOG: eth0: timed out",
        "usb 1-2: gone",
    ):
        for prefix in (
            "[ 12.5] ",
            "2025-01-21T04:41:44,283302+00:00 ",
            "kern  :err   : [ 12.5] ",
            "2025-01-21T04:41:44.28Z ",
        ):
            assert frame(prefix + message).text == message


@given(st.lists(st.binary(max_size=200), max_size=30))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_read(lines: list[bytes]) -> None:
    document = Document("x", b"\n".join(lines))
    reader.recognise(document)
    reader.read(document)


PIECES = [
    "[ 12.3] ",
    "<4>",
    "4,1,2,-;",
    "NVRM: Xid (PCI:0000:3b:00): ",
    "{",
    '{"MESSAGE": ',
    "Jan 21 04:41:44 ",
    "node ",
    "kernel: ",
    "2025-01-21T04:41:44,1+00:00 ",
    "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): ",
    "79, ",
    "Fatal, Link ",
    "__CURSOR=",
    "MESSAGE\n",
    "\n",
    "(0x",
    "NVRM: The NVIDIA GPU ",
    "fallen off the bus",
    "kern  :err   : ",
    "\x00",
    "\x1b[1m",
    "154, GPU recovery action",
]


@given(st.lists(st.sampled_from(PIECES), max_size=25))
@settings(max_examples=60, deadline=None)
def test_pieces_of_logs_in_any_order_are_read(pieces: list[str]) -> None:
    document = Document("x", "".join(pieces).encode())
    reader.recognise(document)
    reader.read(document)


def test_ten_megabytes_in_one_line_are_read() -> None:
    for piece in (b"NVRM: Xid (PCI:0000:3b:00): 31, ", b"[[[[", b'{"a":', b"0x0 ", b"   ", b"a:b "):
        data = piece * (10_000_000 // len(piece))
        assert reader.read(Document("x", data)).records <= 2


def test_a_live_source_gives_each_signal_once_and_counts_the_rest() -> None:
    log = reader.KernelLog()
    new = [
        seen
        for number in range(5)
        for seen in (*log.feed(number + 1, f"4,{number},{number}000000,-;{XID}"), *log.flush())
    ]
    assert [seen.line for seen in new] == [1]
    assert [seen.count for seen in log.bursts.settled()] == [5]


def test_a_framer_holds_back_one_record_at_most() -> None:
    framer = Framer()
    assert framer.feed(1, "[ 1.0] one") == []
    assert [record.text for record in framer.feed(2, "[ 2.0] two")] == ["one"]
    assert [record.text for record in framer.flush()] == ["two"]
    assert framer.flush() == []
