#!/usr/bin/env python3
"""Statements with casts that a file of float32 does not show whole: section casts of graph/python/libraries.txt.

    python3 scripts/libraries/casts.py

The exporter writes beside each call the one line of source that it stands in. A cast of
float32 to float32 makes no call: a statement that does nothing but cast has no line in
the file, and of a statement over several lines the one with the cast may lack. This reads
the sources of transformers, timm, diffusers and torchvision and writes, for each line of a
forward function that makes calls, the whole expression on one line, with the casts of
earlier statements in the places of the variables that they named:

    x = x.float()                  (no line in the file)
    y = x.pow(2).mean(-1)    ->    x.to__(torch.float32).pow(2).mean(-1)

to__ is a cast whose result a variable names: all that read the variable share it. Where a
line stands for different statements in files of one name it is left out, and in classes of
one file it has a row for each, FILE:CLASS. Where branches differ in what they cast it is left
out, too, but for those that half precision takes and float32 has no need of.
"""
import ast
import importlib.util
import pathlib
import re

import section

PACKAGES = ("transformers", "timm", "diffusers", "torchvision")
FUNCTIONS = ("forward",)  # frames that the exporter keeps
MOST = 1000  # characters of a statement


def casts(node):
    """What an expression casts to as source text, or None."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name, args = node.func.attr, node.args
    if name == "float" and not args and not node.keywords:
        return "torch.float32"
    if name == "type_as" and len(args) == 1:
        return ast.unparse(args[0]) + ".dtype"
    if name in ("to", "type"):
        of = [k.value for k in node.keywords if k.arg == "dtype"] + args
        for a in of:
            text = ast.unparse(a)
            if text in ("torch.float32", "torch.float") or re.fullmatch(r"[\w.\[\]]*(dtype|_type)", text) and not text.startswith("torch."):
                return "torch.float32" if text == "torch.float" else text
    return None


class Replace(ast.NodeTransformer):
    """Puts casts in the places of variables, and takes the first of two alternatives."""

    def __init__(self, named):
        self.named, self.used = named, False

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load) and node.id in self.named:
            self.used = True
            to = ast.parse(self.named[node.id], mode="eval").body
            return ast.Call(ast.Attribute(node, "to__", ast.Load()), [to], [])
        return node

    def visit_IfExp(self, node):
        return self.visit(node.orelse if isinstance(node.body, ast.Constant) else node.body)

    def visit_Attribute(self, node):
        if isinstance(node.value, ast.Name) and node.attr in ("dtype", "device", "shape", "size", "ndim", "dim"):
            return node
        return self.generic_visit(node)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("size", "dim", "numel"):
            return node
        return self.generic_visit(node)


def half(test):
    """A branch that half precision takes, and that float32 has no need of: what it casts has its type already there."""
    text = ast.unparse(test)
    return re.fullmatch(r"[\w.]*dtype in [\[({]torch\.float16, torch\.bfloat16[\])}]|[\w.]*dtype != (torch\.float32|[\w.]*dtype)", text) is not None


def names(target):
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}


class Function:
    """The statements of one function, with the casts that its variables stand for."""

    def __init__(self, lines):
        self.lines, self.out, self.dtypes = lines, [], {}
        self.made = {}  # variable -> the statement that assigned it, and what variables stood for there

    def block(self, body, named):
        for s in body:
            named = self.statement(s, named)
        return named

    def statement(self, s, named):
        if isinstance(s, ast.If):
            a, b = self.block(s.body, dict(named)), self.block(s.orelse, dict(named))
            if half(s.test):
                return a
            ends = lambda body: body and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))
            if ends(s.body):
                return b
            if ends(s.orelse):
                return a
            return {k: v for k, v in a.items() if b.get(k) == v}
        if isinstance(s, (ast.For, ast.While)):
            gone = set().union(*[names(t) for n in ast.walk(s) for t in targets(n)] or [set()])
            inner = self.block(s.body, {k: v for k, v in named.items() if k not in gone})
            return {k: v for k, v in inner.items() if named.get(k) == v}
        if isinstance(s, (ast.With, ast.AsyncWith)):
            return self.block(s.body, named)
        if isinstance(s, ast.Try):
            return self.block(s.body, named)
        if isinstance(s, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)) and getattr(s, "value", None) is not None:
            return self.simple(s, named)
        return named

    def simple(self, s, named):
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) and s.targets[0].id.endswith("type") and ast.unparse(s.value).endswith("dtype"):
            self.dtypes[s.targets[0].id] = ast.unparse(s.value)
            return named
        pairs = self.known(pure(s))
        if pairs is None:
            self.note(s, named)
            self.made = {n: (s, named) for t in targets(s) for n in names(t)} | {k: v for k, v in self.made.items() if k not in {n for t in targets(s) for n in names(t)}}
        if isinstance(s, ast.Return):
            self.returned(s.value, named)
        named = dict(named)
        for t in targets(s):
            for n in names(t):
                named.pop(n, None)
        for name, to in pairs or []:
            named[name] = to
        return named

    def known(self, pairs):
        """Casts with the types that variables stand for; None where one is not known."""
        out = []
        for name, to in pairs or []:
            to = to if "." in to else self.dtypes.get(to, "")
            if to != "torch.float32" and not re.fullmatch(r"[\w.]+\.dtype", to):
                return None
            out.append((name, to))
        return out or None

    def returned(self, value, named):
        """A statement that returns the cast of a variable makes no call: the cast stands at what made the variable."""
        to = casts(value)
        if to is None or not isinstance(value.func.value, ast.Name):
            return
        name = value.func.value.id
        known = self.known([(name, to)])
        if known and name not in named and name in self.made:
            self.note(*self.made[name], result=known[0][1])

    def note(self, s, named, result=None):
        r = Replace(named)
        value = ast.parse(ast.unparse(s)).body[0].value
        if isinstance(s, ast.AugAssign):
            value = ast.BinOp(ast.Name(ast.unparse(s.target), ast.Load()), s.op, value)
        value = r.visit(value)
        if result is not None:
            value, r.used = ast.Call(ast.Attribute(value, "to", ast.Load()), [ast.parse(result, mode="eval").body], []), True
        if not r.used and (s.lineno == s.end_lineno or not any(casts(n) for n in ast.walk(s.value))):
            return
        text = ast.unparse(value)
        if len(text) > MOST or "\n" in text:
            return
        for line in range(s.lineno, s.end_lineno + 1):
            key = self.lines[line - 1].strip()
            if len(key) > 5 and ("(" in key or re.search(r"[-+*/@]", key)):
                self.out.append((key, text))


def targets(s):
    if isinstance(s, ast.Assign):
        return s.targets
    if isinstance(s, (ast.AugAssign, ast.AnnAssign, ast.For)):
        return [s.target]
    return []


def pure(s):
    """Variables and types of a statement that does nothing but cast variables."""
    if not isinstance(s, ast.Assign) or len(s.targets) != 1:
        return None
    t, v = s.targets[0], s.value
    pairs = list(zip(t.elts, v.elts)) if isinstance(t, ast.Tuple) and isinstance(v, ast.Tuple) and len(t.elts) == len(v.elts) else [(t, v)]
    out = []
    for to, of in pairs:
        c = casts(of)
        if c is None or not isinstance(to, ast.Name) or not isinstance(of.func.value, (ast.Name, ast.Attribute)):
            return None
        out.append((to.id, c))
    return out


def read(path, table):
    source = path.read_text(encoding="utf-8")
    if "float" not in source and ".to(" not in source and "type_as" not in source:
        return
    lines = source.splitlines()
    every = {}  # line -> class -> what it stands for there
    for node in ast.walk(ast.parse(source)):
        for fn in node.body if isinstance(node, ast.ClassDef) else ():
            if not isinstance(fn, ast.FunctionDef) or fn.name not in FUNCTIONS:
                continue
            f = Function(lines)
            f.block(fn.body, {})
            mine = dict(f.out)
            for n in range(fn.lineno, fn.end_lineno + 1):  # the same line elsewhere may stand for another statement
                key = lines[n - 1].strip()
                every.setdefault(key, {}).setdefault(node.name, set()).add(mine.get(key, ""))
    for key, classes in every.items():
        found = set().union(*classes.values())
        if len(found) == 1 and found != {""}:
            table.setdefault((path.name, key), set()).update(found)
        for name, of in classes.items() if len(found) > 1 else ():
            if len(of) == 1 and of != {""}:
                table.setdefault((path.name + ":" + name, key), set()).update(of)


def main():
    table = {}
    for package in PACKAGES:
        root = pathlib.Path(importlib.util.find_spec(package).origin).parent
        for path in sorted(p for p in root.rglob("*.py") if not p.name.startswith("modular_")):
            read(path, table)
    rows = {}
    for (name, key), found in table.items():
        if len(found) == 1:
            rows.setdefault((key, found.pop()), []).append(name)
    section.write("casts", ["\t".join([key, text, " ".join(sorted(files))]) for (key, text), files in sorted(rows.items())])


if __name__ == "__main__":
    main()
