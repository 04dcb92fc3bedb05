"""A command that wraps session keys, and one that misbehaves on request. Arguments: file of its secret, what to do.

Not a cipher to copy: the key is masked with HMAC of its context, which is enough to see what is asked and answered.
"""

import base64
import hmac
import json
import sys
import time
from pathlib import Path


def mask(secret: bytes, context: dict[str, str]) -> bytes:
    return hmac.digest(secret, json.dumps(context, sort_keys=True).encode(), "sha256")


def answer(asked: dict[str, object], secret: bytes, how: str) -> dict[str, str]:
    data = base64.b64decode(str(asked["plaintext" if asked["action"] == "wrap" else "wrapped"]))
    context = asked["context"]
    assert isinstance(context, dict)
    if how == "plain":
        return {"wrapped": base64.b64encode(data).decode(), "key": "none"}
    done = bytes(a ^ b for a, b in zip(data, mask(secret, context), strict=True))
    if how == "short":
        done = done[:31]
    text = base64.b64encode(done).decode()
    return {"wrapped": text, "key": "v1"} if asked["action"] == "wrap" else {"plaintext": text}


def main() -> None:
    path, how = sys.argv[1], sys.argv[2]
    if how == "deaf":
        sys.stdin.close()
        print("no ears", file=sys.stderr)
        sys.exit(4)
    request = sys.stdin.read()
    if how == "hang":
        time.sleep(600)
    if how == "flood":
        while True:
            sys.stdout.write("x" * 4096)
    if how == "leak":
        told = json.loads(request)
        print(
            "debug:",
            told.get("plaintext"),
            base64.b64decode(told.get("plaintext", "")).hex(),
            "\x1b[31m",
            file=sys.stderr,
        )
        sys.exit(3)
    if how == "babble":
        print("Password: ")
        return
    if how in ("missing", "stale", "wrong", "other"):
        print(json.dumps({"error": how, "message": f"the service said {how}"}))
        sys.exit(1)
    print(json.dumps(answer(json.loads(request), Path(path).read_bytes(), how)))


main()
