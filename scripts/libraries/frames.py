#!/usr/bin/env python3
"""How long variables of forward functions keep tensors alive: section frames of graph/python/libraries.txt.

    python3 scripts/libraries/frames.py [OTHER]

An exported graph has no variables, but a tensor lives for as long as a Python variable names it. This script reads the source of the
forward functions of torchvision, timm, transformers and diffusers (whichever are installed) and writes, for each class, what a variable
keeps alive for longer than the calls that read it:

    transformers.models.gpt2.modeling_gpt2.GPT2Block attn>$ ln_1>attn

says that the result of the child module attn lives until forward returns ($), and that of ln_1 until attn has returned; X>Y|Z until Y has, or
until Z has where Y is not called; X>Y+ until forward's own code has read what Y returned. <X stands
for the first argument that child X is called with, %softmax for what forward's own softmax is called with. A child in a list is called by its
pattern: layers.* . What the code of a class leaves open
(conditions, loops) is read in the order in which it stands; where that is wrong, the calls that read a tensor still bound its life from below.

Releases differ; a file does not say which runs it. OTHER is a libraries.txt of other releases, for classes that those
installed lack. The committed one is of transformers 5.17, which the measured runs had, and OTHER of 5.23; torchvision 0.29.2, timm 1.0.31, diffusers 0.42.1.
"""
import ast
import importlib
import inspect
import pkgutil
import sys
import textwrap
import warnings

warnings.filterwarnings("ignore")
import section
import torch.nn as nn

PACKAGES = ("torchvision.models", "timm.models", "timm.layers", "transformers.models", "diffusers.models", "segmentation_models_pytorch")
END = "$"
SKIP = ("gradient_checkpointing", "is_tracing", "is_scripting", "deepspeed", "fsdp")


class Value:
    """A tensor: the child that returned it or those called with it first, the event that read it last, the events after which
    it may be gone if they happen, and the tensors that its variable names where a condition does not hold."""

    def __init__(self, child=None, param=False):
        self.child, self.param, self.last = child, param, -1
        self.first_of, self.maybe, self.others = [], [], []


class Frame(ast.NodeVisitor):
    """Runs a forward function on values instead of tensors."""

    def __init__(self, cls):
        self.cls, self.events, self.out, self.env, self.depth, self.conditions = cls, [], [], {}, 0, 0
        self.aliases = {}  # loop variables that name children

    # ---- events

    def call(self, child, args):
        self.events.append(child)
        now = len(self.events) - 1
        for i, a in enumerate(args):
            if isinstance(a, Value):
                a.last = now
                if a.child is None and i == 0 and "<" + child not in a.first_of:
                    a.first_of.append("<" + child)
        v = Value(child)
        v.last = now
        return v

    def dies(self, v, at, own=False):
        """The last variable that names v goes after event at, or after the forward's own code has read what that returned; END for
        the return of forward."""
        others, v.others = v.others, []
        for other in others:
            self.dies(other, at, own)
        if v.param:
            return
        ends = [self.events[e] for e in v.maybe if e >= max(v.last, 0)]
        if at == END:
            ends.append(END)
        elif own and at >= max(v.last, 0):
            ends.append(self.events[at] + "+")
        elif at > v.last:
            ends.append(self.events[at])
        else:
            return
        for anchor in [v.child] if v.child else v.first_of:
            entry = anchor + ">" + "|".join(dict.fromkeys(ends))
            if entry not in self.out:
                self.out.append(entry)

    def drop(self, name, at=None, own=False):
        v = self.env.pop(name, None)
        if isinstance(v, Value) and not any(o is v for o in self.env.values()):
            self.dies(v, len(self.events) - 1 if at is None else at, own)

    def assign(self, target, v):
        if isinstance(target, (ast.Tuple, ast.List)):
            for i, t in enumerate(target.elts):
                t = t.value if isinstance(t, ast.Starred) else t
                self.assign(t, v if i == 0 else None)
            return
        if isinstance(target, ast.Name):
            old = self.env.get(target.id)
            # A dropout returns what it is called with in evaluation, and is no call where its probability is 0.
            unsure = self.conditions or isinstance(v, Value) and "drop" in (v.child or "").split(".")[-1]
            if isinstance(old, Value) and isinstance(v, Value) and v is not old and unsure and not old.param:
                if old not in v.others:
                    old.maybe.append(len(self.events) - 1)
                    v.others.append(old)
            elif old is not v or v is None:
                self.drop(target.id, own=isinstance(v, Value) and v.child is None and not v.param)
            if isinstance(v, Value):
                self.env[target.id] = v
            self.aliases.pop(target.id, None)

    # ---- expressions: return a Value or None

    def child(self, node):
        """The child module that an expression names, or None."""
        parts = []
        while True:
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Subscript):
                index = node.slice
                parts.append(str(index.value) if isinstance(index, ast.Constant) and isinstance(index.value, int) else "*")
                node = node.value
            elif isinstance(node, ast.Name):
                if node.id == "self" and parts:
                    return ".".join(reversed(parts))
                if node.id in self.aliases:
                    return ".".join([self.aliases[node.id], *reversed(parts)])
                return None
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                return None
            else:
                return None

    def value(self, node):
        if node is None:
            return None
        if isinstance(node, ast.Name):
            return self.env.get(node.id)
        if isinstance(node, ast.Call):
            return self.called(node)
        if isinstance(node, (ast.Tuple, ast.List)):
            vs = [self.value(e) for e in node.elts]
            return vs[0] if vs else None
        if isinstance(node, ast.Subscript):
            v = self.value(node.value)
            self.value(node.slice)
            return v  # of a tuple, or a view
        if isinstance(node, ast.Attribute):
            v = self.value(node.value)
            return v if node.attr in ("last_hidden_state", "hidden_states", "sample", "T", "mT") else None
        if isinstance(node, ast.IfExp):
            self.value(node.test)
            a, b = self.value(node.body), self.value(node.orelse)
            return a or b
        if isinstance(node, ast.NamedExpr):
            v = self.value(node.value)
            self.assign(node.target, v)
            return v
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            for g in node.generators:
                self.loop_target(g.target, g.iter)
            return self.value(node.elt) and None
        if isinstance(node, ast.Lambda):
            return None
        fresh = None
        for f in ast.iter_child_nodes(node):
            if isinstance(f, ast.expr):
                self.value(f)
        if isinstance(node, (ast.BinOp, ast.UnaryOp)):
            fresh = Value()
        return fresh

    VIEWS = {"view", "reshape", "transpose", "permute", "flatten", "unsqueeze", "squeeze", "expand", "contiguous", "to", "type_as", "float", "unflatten", "detach", "movedim", "swapaxes"}

    def called(self, node):
        f = node.func
        name = self.child(f)
        if name is not None and "." not in name and callable(getattr(self.cls, name, None)) and not isinstance(getattr(self.cls, name), type):
            return self.inline(getattr(self.cls, name), node)
        receiver = None
        if isinstance(f, ast.Attribute) and name is None:
            receiver = self.value(f.value)
        args = [self.value(a.value if isinstance(a, ast.Starred) else a) for a in node.args] + [self.value(k.value) for k in node.keywords]
        if name is not None:
            if name.split(".")[-1] in self.VIEWS and "." in name:
                return None
            return self.call(name, args)
        if isinstance(f, ast.Attribute) and f.attr in self.VIEWS and receiver is not None:
            return receiver  # a view, or near enough: one storage
        return Value()

    def inline(self, function, node):
        """A method of the class: its parameters name what it is called with, its variables go when it returns."""
        if self.depth >= 3:
            return None
        args = [self.value(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
        kwargs = {k.arg: self.value(k.value) for k in node.keywords}
        tree = parse(function)
        if tree is None:
            return Value()
        names = [a.arg for a in tree.args.args if a.arg != "self"]
        outer, outer_aliases = self.env, self.aliases
        # Names of the caller still count: prefix them.
        self.env = {("caller " * (self.depth + 1)) + k: v for k, v in outer.items()}
        for n, v in list(zip(names, args)) + list(kwargs.items()):
            if isinstance(v, Value) and n:
                self.env[n] = v
        self.aliases, self.depth = {}, self.depth + 1
        result = self.body(tree.body)
        for n in [n for n in self.env if not n.startswith("caller ")]:
            if self.env.get(n) is result:
                self.env.pop(n)
            else:
                self.drop(n)
        self.depth -= 1
        self.env, self.aliases = outer, outer_aliases
        return result if result is not None else Value()

    # ---- statements

    def body(self, statements):
        result = None
        for s in statements:
            r = self.statement(s)
            result = r if r is not None else result
        return result

    def loop_target(self, target, it):
        pattern = None
        if isinstance(it, ast.Call) and isinstance(it.func, ast.Name) and it.func.id in ("enumerate", "zip", "reversed") and it.args:
            iters = it.args
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            if it.func.id == "enumerate" and len(targets) == 2:
                return self.loop_target(targets[1], iters[0])
            for t, i in zip(targets, iters):
                self.loop_target(t, i)
            return
        base = it.value if isinstance(it, ast.Subscript) and isinstance(it.slice, ast.Slice) else it
        if isinstance(base, ast.Call) and isinstance(base.func, ast.Attribute) and base.func.attr in ("values", "children"):
            base = base.func.value
        c = self.child(base) if isinstance(base, (ast.Attribute, ast.Subscript)) else None
        if isinstance(base, ast.Name) and base.id == "self":
            c = ""
        if c is not None:
            pattern = (c + "." if c else "") + "*"
        else:
            self.value(it)
        for t in ast.walk(target):
            if isinstance(t, ast.Name):
                self.drop(t.id)
                if pattern:
                    self.aliases[t.id] = pattern

    def statement(self, s):
        if isinstance(s, ast.Assign):
            v = self.value(s.value)
            alias = self.child(s.value) if isinstance(s.value, (ast.Attribute, ast.Subscript)) else None
            for t in s.targets:
                self.assign(t, v)
                if alias and isinstance(t, ast.Name) and v is None:
                    self.aliases[t.id] = alias
        elif isinstance(s, ast.AnnAssign):
            self.assign(s.target, self.value(s.value))
        elif isinstance(s, ast.AugAssign):
            self.value(s.value)  # in place
        elif isinstance(s, ast.Expr):
            self.value(s.value)
        elif isinstance(s, ast.Return):
            return self.value(s.value)
        elif isinstance(s, ast.If):
            text = ast.unparse(s.test)
            result = None
            if any(x in text for x in SKIP):
                return self.body(s.body if "not" in text.split() else s.orelse)
            self.value(s.test)
            self.conditions += 1
            result = self.body(s.body)
            other = self.body(s.orelse)
            self.conditions -= 1
            return result if result is not None else other
        elif isinstance(s, (ast.For, ast.While)):
            for _ in range(2):
                if isinstance(s, ast.For):
                    self.loop_target(s.target, s.iter)
                result = self.body(s.body)
            return self.body(s.orelse)
        elif isinstance(s, ast.With):
            return self.body(s.body)
        elif isinstance(s, ast.Try):
            return self.body(s.body)
        elif isinstance(s, ast.Delete):
            for t in s.targets:
                if isinstance(t, ast.Name):
                    self.drop(t.id)
        return None


def parse(function):
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    except (OSError, TypeError, SyntaxError, IndentationError):
        return None
    return tree if isinstance(tree, ast.FunctionDef) else None


def frame(cls):
    tree = parse(cls.forward)
    if tree is None:
        return []
    f = Frame(cls)
    for a in tree.args.args + tree.args.kwonlyargs:
        if a.arg != "self":
            f.env[a.arg] = Value(param=True)
    result = f.body(tree.body)
    for n in list(f.env):
        if f.env.get(n) is not result:
            f.drop(n, END)
    if scores(tree):
        f.out.append("%softmax>" + END)
    return f.out


def scores(tree):
    """Whether the scores that softmax is called with have a variable of their own, as in probs = softmax(scores)."""
    kept = False
    for s in ast.walk(tree):
        if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call) or not isinstance(s.targets[0], ast.Name):
            continue
        f = s.value.func
        if isinstance(f, ast.Attribute) and f.attr in ("softmax", "Softmax") or isinstance(f, ast.Call) and isinstance(f.func, ast.Attribute) and f.func.attr == "Softmax":
            at = s.value.args[0] if s.value.args else None
            if isinstance(at, ast.Name):
                later = [a for a in ast.walk(tree) if isinstance(a, ast.Assign) and a.lineno > s.lineno and any(isinstance(t, ast.Name) and t.id == at.id for t in a.targets)]
                kept = kept or at.id != s.targets[0].id and not later
    return kept


def classes():
    seen = set()
    for package in PACKAGES:
        try:
            p = importlib.import_module(package)
        except ImportError:
            print("not installed:", package, file=sys.stderr)
            continue
        for info in pkgutil.walk_packages(p.__path__, package + ".", onerror=lambda name: None):
            if package == "transformers.models" and ".modeling_" not in info.name and info.name.count(".") > 2:
                continue
            if "_tf_" in info.name or "_flax_" in info.name or "modular" in info.name or "convert" in info.name:
                continue
            try:
                m = importlib.import_module(info.name)
            except BaseException:
                continue
            for c in vars(m).values():
                if inspect.isclass(c) and issubclass(c, nn.Module) and c.__module__ == m.__name__ and c not in seen and "forward" in dir(c):
                    seen.add(c)
                    yield c


def main():
    rows = {}
    if len(sys.argv) > 1:
        rows = {line.split()[0]: line.split()[1:] for line in section.read("frames", sys.argv[1])}
    for c in classes():
        try:
            out = frame(c)
        except RecursionError:
            continue
        rows[c.__module__ + "." + c.__qualname__] = out
    section.write("frames", [" ".join([name, *rows[name]]) for name in sorted(rows) if rows[name]])


if __name__ == "__main__":
    main()
