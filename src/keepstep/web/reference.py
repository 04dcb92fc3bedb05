"""Prints docs/reference/openapi.json: ``python -m keepstep.web.reference``."""

import json
import sys

from keepstep.web.app import api_routes
from keepstep.web.openapi import describe


def reference() -> str:
    return json.dumps(describe(api_routes()), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
