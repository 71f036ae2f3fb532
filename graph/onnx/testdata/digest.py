"""Prints digests of everything that graph/onnx reads from the shared test
models, as the onnx package (1.23) reads it: one line a model, or for folders of
many small models one line for each sixteenth of them. Models that are broken on
purpose are named on standard error and left out. digest_test.go computes the
same from our graphs.

    python3 digest.py ../../../../shared/data > digests.tsv
    python3 digest.py --dump MODEL.onnx      # what is digested, to compare
"""
import hashlib
import heapq
import os
import re
import struct
import sys

import numpy as np
import onnx
from onnx import AttributeProto as A, TensorProto as T, numpy_helper

NAMES = dict(enumerate(
    "undefined float uint8 int8 uint16 int16 int32 int64 string bool float16 double uint32 uint64 complex64 complex128 "
    "bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz uint4 int4 float4e2m1 float8e8m0 uint2 int2".split()))
FLOATS = {T.FLOAT, T.FLOAT16, T.DOUBLE, T.BFLOAT16, T.FLOAT8E4M3FN, T.FLOAT8E4M3FNUZ, T.FLOAT8E5M2,
          T.FLOAT8E5M2FNUZ, T.FLOAT4E2M1, T.FLOAT8E8M0}
FOLDERS = (("models", True), ("onnx/real", True), ("onnx/shape-cases/cpp_text", True),
           ("onnx/backend/models", False), ("onnx/shape-cases/models", False))


def esc(s):
    return s.encode("utf-8", "surrogateescape").hex() if re.search(r"[\s|]", s) else s


def num(v):
    v = float(v)
    return "nan" if v != v else struct.pack(">d", v).hex()


def dim(d):
    if d.HasField("dim_value"):
        return str(d.dim_value) if d.dim_value >= 0 else "?"
    p = d.dim_param
    if p in ("", "?"):
        return "?"
    if re.fullmatch(r"\d+", p):
        return p
    if re.search(r"[*(+%]|//| - | / ", p):
        return "expr"
    return "$" + esc(p)


def shape(t):
    if not t.HasField("shape"):
        return "unranked"
    return "[" + ",".join(dim(d) for d in t.shape.dim) + "]"


def typ(t):
    k = t.WhichOneof("value")
    if k is None:
        return "none"
    v = getattr(t, k)
    if k in ("tensor_type", "sparse_tensor_type"):
        return k + ":" + NAMES[v.elem_type] + shape(v)
    if k in ("sequence_type", "optional_type"):
        return k + "(" + (typ(v.elem_type) if v.HasField("elem_type") else "") + ")"
    if k == "map_type":
        return k + "(" + NAMES[v.key_type] + "," + typ(v.value_type) + ")"
    return k


def tensor(t):
    dims = list(t.dims)
    out = [esc(t.name), NAMES[t.data_type], "[" + ",".join(map(str, dims)) + "]"]
    n = int(np.prod(dims, dtype=object)) if dims else 1
    if t.data_location == T.EXTERNAL:
        e = {p.key: p.value for p in t.external_data}
        return " ".join(out + ["external", esc(e.get("location", "")), e.get("offset", "0"), e.get("length", "-1")])
    if t.HasField("raw_data") and len(t.raw_data) == 0 and n > 0:
        return " ".join(out + ["stripped"])
    if not t.HasField("raw_data") and n > 0 and not (
            len(t.float_data) or len(t.int32_data) or len(t.int64_data) or len(t.double_data) or len(t.uint64_data)
            or len(t.string_data)):
        return " ".join(out + ["stripped"])
    if t.data_type == T.UNDEFINED:
        raise ValueError(f"tensor {t.name} has elements and no type")
    if t.data_type in FLOATS:
        limit = 1024
    elif t.data_type == T.STRING:
        limit = 1024
    elif t.data_type in (T.COMPLEX64, T.COMPLEX128):
        limit = 0
    else:
        limit = 4096
    if n > limit:
        return " ".join(out + ["large"])
    if t.data_type == T.STRING:
        return " ".join(out + [s.hex() for s in t.string_data])
    a = numpy_helper.to_array(t).reshape(-1)
    if t.data_type in FLOATS:
        return " ".join(out + [num(v) for v in a.astype(np.float64)])
    return " ".join(out + [str(int(np.int64(int(v) - (1 << 64) if int(v) >= 1 << 63 else int(v)))) for v in a])


def sparse(s):
    v = T()
    v.CopyFrom(s.values)
    t = tensor(v)
    return "sparse [" + ",".join(map(str, s.dims)) + "] " + t + " at " + tensor(s.indices)


def props(lists):
    seen, out = set(), []
    for l in lists:
        for p in l:
            if p.key != "pkg.torch.onnx.stack_trace" and p.key not in seen:
                seen.add(p.key)
                out.append(f" {esc(p.key)}={p.value.encode('utf-8').hex()}")
    return "".join(out)


def kind(a):
    if a.type:
        return a.type
    for f, k in (("f", A.FLOAT), ("i", A.INT), ("s", A.STRING), ("t", A.TENSOR), ("g", A.GRAPH)):
        if a.HasField(f):
            return k
    for f, k in (("floats", A.FLOATS), ("ints", A.INTS), ("strings", A.STRINGS)):
        if len(getattr(a, f)):
            return k
    return 0


def attr(a, emit, pad):
    head = f"{pad} A {esc(a.name)} {kind(a)}"
    if a.ref_attr_name:
        emit(f"{head} ref {a.ref_attr_name}")
        return
    k = kind(a)
    value = {
        0: lambda: "", A.FLOAT: lambda: num(a.f), A.INT: lambda: str(a.i), A.STRING: lambda: a.s.hex(),
        A.FLOATS: lambda: " ".join(map(num, a.floats)), A.INTS: lambda: " ".join(map(str, a.ints)),
        A.STRINGS: lambda: " ".join(s.hex() for s in a.strings), A.TENSOR: lambda: tensor(a.t),
        A.TENSORS: lambda: " ; ".join(map(tensor, a.tensors)), A.SPARSE_TENSOR: lambda: sparse(a.sparse_tensor),
        A.SPARSE_TENSORS: lambda: " ; ".join(map(sparse, a.sparse_tensors)), A.TYPE_PROTO: lambda: typ(a.tp),
        A.TYPE_PROTOS: lambda: " ; ".join(map(typ, a.type_protos)), A.GRAPH: lambda: "", A.GRAPHS: lambda: "",
    }[k]()
    emit(f"{head} {value}")
    for g in ([a.g] if k == A.GRAPH else a.graphs if k == A.GRAPHS else []):
        graph(g, emit, pad + "  ")


def free(g):
    """Names that g uses and does not define, subgraphs included."""
    defined = {v.name for v in g.input} | {t.name for t in g.initializer} | {s.values.name for s in g.sparse_initializer}
    for n in g.node:
        defined.update(n.output)
    used = {v.name for v in g.output}
    for n in g.node:
        used |= uses(n)
    return used - defined - {""}


def uses(n):
    out = set(n.input)
    for a in n.attribute:
        for g in ([a.g] if a.HasField("g") else []) + list(a.graphs):
            out |= free(g)
    return out


def ordered(nodes):
    """Stable topological order: of the nodes that are ready, the first."""
    made = {}
    for i, n in enumerate(nodes):
        for o in n.output:
            if o in made:
                raise ValueError(f"{o} is defined twice")
            if o:
                made[o] = i
    waits, users = [], {}
    for i, n in enumerate(nodes):
        deps = {made[x] for x in uses(n) if x in made}
        waits.append(len(deps))
        for d in deps:
            users.setdefault(d, []).append(i)
    ready = [i for i, w in enumerate(waits) if w == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(nodes[i])
        for u in users.get(i, []):
            waits[u] -= 1
            if waits[u] == 0:
                heapq.heappush(ready, u)
    assert len(order) == len(nodes)
    return order


def body(name, inputs, outputs, decls, inits, sparses, nodes, meta, emit, pad):
    first = {}

    def lists(name, *ls):
        return [v.metadata_props for l in ls for v in l if v.name == name]

    index = []
    for l in (outputs, decls, inputs):
        d = {}
        for v in l:
            d.setdefault(v.name, []).append(v)
        index.append(d)

    def decl(name):
        for d in index:
            for v in d.get(name, []):
                if v.type.WhichOneof("value"):
                    return typ(v.type)
        return "none"

    def meta_of(name, own=()):
        return props(list(own) + [v.metadata_props for d in index for v in d.get(name, [])])

    names = {t.name for t in inits} | {s.values.name for s in sparses}
    emit(f"{pad}G {esc(name)}{props([meta])}")
    for v in inputs:
        if v.name not in names:
            emit(f"{pad}I {esc(v.name)} {typ(v.type) if v.type.WhichOneof('value') else decl(v.name)}{meta_of(v.name, [v.metadata_props])}")
    for t in inits:
        emit(f"{pad}W {tensor(t)}{meta_of(t.name, [t.metadata_props])}")
    for s in sparses:
        emit(f"{pad}W {sparse(s)}{meta_of(s.values.name, [s.values.metadata_props])}")
    for n in ordered(nodes):
        emit(f"{pad}N {'' if n.domain == 'ai.onnx' else n.domain}|{n.op_type}|{n.overload}|{esc(n.name)}{props([n.metadata_props])}")
        for x in n.input:
            emit(f"{pad} < {esc(x)}")
        for x in n.output:
            emit(f"{pad} > {esc(x)} {decl(x) + meta_of(x) if x else ''}")
        for a in sorted(n.attribute, key=lambda a: a.name.encode()):
            attr(a, emit, pad)
    for v in outputs:
        emit(f"{pad}O {esc(v.name)}")


def graph(g, emit, pad):
    body(g.name, g.input, g.output, g.value_info, g.initializer, g.sparse_initializer, list(g.node), g.metadata_props, emit, pad)


def opsets(l, emit):
    for o in l:
        emit(f"S {'' if o.domain == 'ai.onnx' else o.domain} {o.version}")


def reject_recursion(m):
    calls = {(f.domain, f.name, f.overload): {(n.domain, n.op_type, n.overload) for n in f.node} for f in m.functions}
    below = dict(calls)  # transitively
    for _ in calls:
        below = {k: v.union(*(below.get(c, set()) for c in v)) for k, v in below.items()}
    for k, v in below.items():
        if k in v:
            raise ValueError(f"function {k[1]} calls itself")


def model(m, emit):
    reject_recursion(m)
    emit(f"M {m.ir_version} {(m.producer_name + ' ' + m.producer_version).strip()}{props([m.metadata_props])}")
    opsets(m.opset_import, emit)
    graph(m.graph, emit, "")
    for f in m.functions:
        emit(f"F {'' if f.domain == 'ai.onnx' else f.domain}|{f.name}|{f.overload}")
        opsets(f.opset_import, emit)
        for name in f.attribute:
            emit(f" A {name} 0")
        for a in f.attribute_proto:
            attr(a, emit, "")
        info = onnx.ValueInfoProto
        body(f.name, [info(name=x) for x in f.input], [info(name=x) for x in f.output], f.value_info, [], [],
             list(f.node), f.metadata_props, emit, "")


def dump(path):
    lines = []
    model(onnx.load(path, load_external_data=False), lines.append)
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1] == "--dump":
        sys.stdout.write(dump(sys.argv[2]))
        return
    root, lines = sys.argv[1], {}
    for folder, each in FOLDERS:
        for name in sorted(os.listdir(os.path.join(root, folder))):
            if not name.endswith((".onnx", ".model.pb")):
                continue
            try:
                text = dump(os.path.join(root, folder, name))
            except ValueError as e:
                print(folder, name, e, file=sys.stderr)
                continue
            key = name if each else hashlib.sha256(name.encode()).hexdigest()[0]
            lines.setdefault(f"{folder}/{key}", hashlib.sha256()).update(text.encode())
    for key, h in lines.items():
        print(f"{key}\t{h.hexdigest()[:16]}")


main()
