"""Writes a section of graph/python/libraries.txt, the facts about libraries that memplan knows."""
from pathlib import Path

LIBRARIES = Path(__file__).resolve().parents[2] / "graph" / "python" / "libraries.txt"


def read(name: str, path: str | Path = LIBRARIES) -> list[str]:
    """The rows of a section."""
    text = Path(path).read_text(encoding="utf-8")
    _, _, rest = text.partition(f"\n## {name}\n")
    return rest.partition("\n## ")[0].rstrip("\n").split("\n")


def write(name: str, rows: list[str]) -> None:
    """Puts rows in the place of those that a section has."""
    before, header, rest = LIBRARIES.read_text(encoding="utf-8").partition(f"\n## {name}\n")
    if not header:
        raise SystemExit(f"{LIBRARIES} has no section {name}")
    _, following, after = rest.partition("\n## ")
    body = "\n".join(rows) + "\n"
    LIBRARIES.write_text(before + header + body + (following and "\n## " + after.lstrip("\n")), encoding="utf-8")
