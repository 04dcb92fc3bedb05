"""Reads stacks of processes: py-spy (text and JSON), faulthandler, gdb and pstack. Owns their forms; compares nothing.

Of each process the main thread is handed on: it is the one that enters collectives. Who stands apart is for ``core/hangs.py``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reader, Reading

NAME = "stacks"
MAX_FRAMES = 40
MAX_PROCESSES = 20_000
MAX_SHARED = 1024
"""Threads that are printed above one stack."""
_FRAME_CHARS = 90

_PROCESS = re.compile(r"^(?:Process|PID|pid)[ :]+(\d{1,9})\b:?\s*(.{0,2000})")
_SPY = re.compile(r'^Thread (0x[0-9A-Fa-f]+|\d{1,19}) \((active|idle|active\+gil|idle\+gil)\)(?::? ?"?([^"]{0,80}))?')
_FAULT = re.compile(r"^(Current thread|Thread) (0x[0-9A-Fa-f]+)(?: \[[^\]]{0,80}\])? \(most recent call first\):")
_GDB = re.compile(r"^Thread (\d{1,6}) \(Thread 0x[0-9a-f]+ \(LWP (\d{1,9})\)(?:[^)]{0,80})?\)")
_SPY_FRAME = re.compile(r"^\s{2,12}(\S.{0,200}?) \(([^()\n]{1,300}?)(?::(\d{1,7}))?\)\s*$")
_FAULT_FRAME = re.compile(r'^\s{1,8}File "([^"]{1,400})", line (\d{1,7}) in (.{1,200})$')
_GDB_FRAME = re.compile(
    r"^#\d{1,4}\s{1,4}(?:0x[0-9a-f]+ in )?([^\s(]{1,200})[^\n]{0,400}?(?: (?:at|from) (\S{1,300}))?$"
)
_NODE = re.compile(r"^(?:#+ ?|=+ ?|-+ ?)?(?:[Nn]ode|[Hh]ost(?:name)?)[ :=]+([A-Za-z0-9][A-Za-z0-9._-]{0,120}):?\s*=*$")
_PREFIX = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]{1,80}): (?=\s{2,}|Thread |Process |Python v|Current thread)")
_ERROR = re.compile(r"^\s{0,4}(?:Error|error|ERROR): (.{1,200})")
_CRASH = re.compile(r"Fatal Python error|Traceback \(most recent call last\)|ProcessGroupNCCL")
"""The log of a crash may hold stacks: it is a log all the same."""
_LOCAL_RANK = re.compile(r"--local[_-]rank[= ](\d{1,4})")


class _Thread(Struct, kw_only=True):
    name: str
    ident: str
    state: str = ""
    line: int = 0
    frames: list[str] = field(default_factory=list)


class _Process(Struct, kw_only=True):
    pid: str
    node: str
    command: str = ""
    line: int = 0
    error: str = ""
    threads: list[_Thread] = field(default_factory=list)

    def main(self) -> _Thread | None:
        """The main thread: by its name, by its number, else the one that was printed first."""
        for thread in self.threads:
            if thread.name == "MainThread" or thread.ident == self.pid:
                return thread
        return self.threads[0] if self.threads else None


def recognise(document: Document) -> float:
    if document.is_binary:
        return 0.0
    if document.head.lstrip()[:1] in ("{", "["):
        return 0.85 if next(_json_threads(document.json), None) is not None else 0.0
    heads = frames = 0
    most = 0.5 if _CRASH.search(document.head) else 0.85
    for line in document.head.splitlines():
        line = _PREFIX.sub("", line)
        if _SPY.match(line) or _FAULT.match(line) or _GDB.match(line):
            heads += 1
        elif heads and (_SPY_FRAME.match(line) or _FAULT_FRAME.match(line) or _GDB_FRAME.match(line)):
            frames += 1
    if not heads or not frames:
        return 0.0
    return most if heads + frames >= 4 else 0.5


def read(document: Document) -> Reading:
    reading = Reading(reader=NAME, file=document.path)
    text_form = document.head.lstrip()[:1] not in ("{", "[")
    processes = _from_text(document, reading) if text_form else _from_json(document.json)
    for process in processes[:MAX_PROCESSES]:
        reading.observations.append(_observation(process, document.path))
    reading.records = sum(len(process.threads) for process in processes)
    return reading


def _observation(process: _Process, file: str) -> Observation:
    main = process.main()
    frames = main.frames if main is not None else []
    told = " < ".join(frames[:6]) if frames else process.error or "no frames"
    attributes = {"pid": process.pid, "frames": "\n".join(frames[:MAX_FRAMES]), "threads": str(len(process.threads))}
    if main is not None:
        attributes["state"] = main.state
    holders = [t.name for t in process.threads if t.state.endswith("+gil") and t is not main]
    if holders:
        attributes["gil"] = holders[0]
    if not frames:
        attributes["error"] = process.error or "no frames"
    rank = _LOCAL_RANK.search(process.command)
    if rank is not None:
        attributes["local_rank"] = rank[1]
    return Observation(
        signal="job.stack", source=NAME, file=file, node=process.node, part=f"process/{process.pid}",
        line=main.line if main is not None else process.line, detail=told[:500], attributes=attributes,
    )  # fmt: skip


# ---- text


class _Text:
    """Goes through the lines; knows the node, the process and the threads that the next frame belongs to."""

    def __init__(self) -> None:
        self.processes: list[_Process] = []
        self.node = ""
        self.open: list[_Thread] = []
        self.explicit = False
        """The current process was named by a line of its own, so that further threads are its."""

    def take(self, number: int, line: str) -> bool:
        prefix = _PREFIX.match(line)
        if prefix is not None:
            if prefix[1] != self.node:
                self.node, self.explicit = prefix[1], False
            line = line[prefix.end() :]
        node = _NODE.match(line)
        if node is not None:
            self.node, self.explicit = f"node{node[1]}" if node[1].isdecimal() else node[1], False
            return True
        return self._heading(number, line) or self._frame(line)

    def _heading(self, number: int, line: str) -> bool:
        process = _PROCESS.match(line)
        if process is not None:
            self.processes.append(_Process(pid=process[1], node=self.node, command=process[2], line=number))
            self.explicit, self.open = True, []
            return True
        spy, fault, gdb = _SPY.match(line), _FAULT.match(line), _GDB.match(line)
        if spy is not None:
            self._thread(_Thread(name=spy[3] or "", ident=spy[1], state=spy[2], line=number))
        elif fault is not None:
            current = fault[1] == "Current thread"
            self._thread(_Thread(name="MainThread" if current else "", ident=fault[2], line=number), own=True)
        elif gdb is not None:
            self._thread(_Thread(name="MainThread" if gdb[1] == "1" else "", ident=gdb[2], line=number), own=True)
        error = _ERROR.match(line)
        if error is not None and self.explicit and not self.processes[-1].threads:
            self.processes[-1].error = error[1]
            return True
        return bool(spy or fault or gdb)

    def _thread(self, thread: _Thread, *, own: bool = False) -> None:
        """Threads named one below the other share the frames that follow. ``own``: its process is the whole document."""
        if self.open and self.open[-1].frames:
            self.open = []
        if own and not self.explicit:
            self.processes.append(_Process(pid="0", node=self.node, line=thread.line))
            self.explicit = True
        if not self.explicit and thread.name not in ("MainThread", ""):
            self.open = [thread]
            return
        if not self.explicit:
            self.processes.append(_Process(pid=thread.ident, node=self.node, line=thread.line))
        self.processes[-1].threads.append(thread)
        if len(self.open) < MAX_SHARED:
            self.open.append(thread)

    def _frame(self, line: str) -> bool:
        if not self.open:
            return False
        spy, fault, gdb = _SPY_FRAME.match(line), _FAULT_FRAME.match(line), _GDB_FRAME.match(line)
        if fault is not None:
            frame = f"{fault[3]} ({_short(fault[1])})"
        elif spy is not None:
            frame = f"{spy[1]} ({_short(spy[2])})"
        elif gdb is not None:
            frame = f"{gdb[1]} ({_short(gdb[2] or '')})"
        else:
            return False
        for thread in self.open:
            if len(thread.frames) < 4 * MAX_FRAMES:
                thread.frames.append(frame[:_FRAME_CHARS])
        return True


def _from_text(document: Document, reading: Reading) -> list[_Process]:
    text = _Text()
    for number, line in document.lines():
        if not text.take(number, line) and text.open and line.startswith("    ") and not _is_locals(line):
            reading.puzzled(number, line)
    _only_thread_is_main(text.processes)
    return [process for process in text.processes if process.threads or process.error]


def _only_thread_is_main(processes: list[_Process]) -> None:
    """faulthandler prints the main thread last, unless the current one is named."""
    for process in processes:
        if process.pid == "0" and process.threads and all(t.name != "MainThread" for t in process.threads):
            process.threads[-1].name = "MainThread"


def _is_locals(line: str) -> bool:
    return ":" in line or "=" in line or not line.strip()


def _short(path: str) -> str:
    """The end of a path, so that two machines' copies of a library are the same."""
    words = path.replace("\\", "/").split("/")
    for mark in ("site-packages", "dist-packages"):
        if mark in words:
            return "/".join(words[words.index(mark) + 1 :])
    return "/".join(words[-3:])


# ---- JSON


def _json_threads(value: Any) -> Iterator[tuple[Mapping[str, Any], list[Any]]]:
    """Every thread in it, wherever the list of threads stands."""
    level = [value]
    for _ in range(4):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                frames = item.get("frames", item.get("frames_top_first", item.get("stack")))
                if isinstance(frames, list) and ("pid" in item or "thread_id" in item or "thread_name" in item):
                    yield item, frames
                else:
                    below.extend(x for x in item.values() if isinstance(x, (dict, list)))
            elif isinstance(item, list):
                below.extend(x for x in item[: 10 * MAX_PROCESSES] if isinstance(x, (dict, list)))
        level = below


def _from_json(value: Any) -> list[_Process]:
    found: dict[tuple[str, str], _Process] = {}
    for told, frames in _json_threads(value):
        node = str(told.get("node", told.get("host", told.get("hostname", ""))))
        pid = str(told.get("pid", told.get("thread_id", "0")))
        process = found.setdefault((node, pid), _Process(pid=pid, node=node))
        state = str(told.get("thread_state", "active" if told.get("active") else "idle"))
        name = str(told.get("thread_name", "MainThread" if "thread_id" not in told else ""))
        thread = _Thread(name=name, ident=str(told.get("os_thread_id", "")), state=state)
        thread.frames = [_json_frame(frame)[:_FRAME_CHARS] for frame in frames[:MAX_FRAMES]]
        process.threads.append(thread)
    return list(found.values())


def _json_frame(frame: Any) -> str:
    if isinstance(frame, dict):
        return f"{frame.get('name', '?')} ({_short(str(frame.get('filename', frame.get('short_filename', ''))))})"
    match = _SPY_FRAME.match(f"    {frame}")
    return f"{match[1]} ({_short(match[2])})" if match is not None else str(frame)


READER = Reader(
    name=NAME, text="stacks of processes: py-spy, faulthandler, gdb, pstack", recognise=recognise, read=read
)
