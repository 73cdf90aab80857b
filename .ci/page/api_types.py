"""The types of the HTTP API for the page's type check, from /openapi.json: `python .ci/page/api_types.py [--check]`."""

import sys
from pathlib import Path
from typing import Any

from holdfast.controller.http.auth import Auth
from holdfast.controller.http.routes import create_app

PLACE = Path(__file__).with_name("api.d.ts")
PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
HEAD = "// Made of /openapi.json by .ci/page/api_types.py: not to be edited.\n"


def type_of(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(type_of(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(repr(one).replace("'", '"') for one in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        inner = type_of(schema["items"]) if "items" in schema else "any"
        return f"({inner})[]" if "|" in inner else f"{inner}[]"
    if kind == "object" and isinstance(more := schema.get("additionalProperties"), dict):
        return f"Record<string, {type_of(more)}>"
    return PLAIN.get(str(kind), "any")


def rendered(schemas: dict[str, Any]) -> str:
    lines = [HEAD, "declare namespace Api {"]
    for name, schema in sorted(schemas.items()):
        if "properties" not in schema:
            continue
        lines.append(f"  interface {name} {{")
        required = schema.get("required", [])
        for field, of in schema["properties"].items():
            lines.append(f"    {field}{'' if field in required else '?'}: {type_of(of)};")
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def main() -> int:
    text = rendered(create_app(Nothing(), Auth()).openapi()["components"]["schemas"])  # type: ignore[arg-type]
    if "--check" not in sys.argv:
        PLACE.write_text(text)
        return 0
    if not PLACE.exists() or PLACE.read_text() != text:
        print(f"{PLACE.name} is not what the controller's API is: run `python .ci/page/api_types.py`", file=sys.stderr)
        return 1
    return 0


class Nothing:
    """A facade of which nothing is asked: only the routes are looked at."""


if __name__ == "__main__":
    sys.exit(main())
