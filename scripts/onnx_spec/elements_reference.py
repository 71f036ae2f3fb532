#!/usr/bin/env python3
"""Elements that operators compute, from ONNX's reference evaluator: the reference of graph/infer's TestElements.

    python3 scripts/onnx_spec/elements_reference.py [--out graph/infer/testdata/elements.jsonl] [--rounds N]

A case is one operator on small random tensors, with random attributes. Each line of the output has the operator, the opset, the inputs, the
attributes and what the reference evaluator makes of them. Cases that it refuses are left out. Needs onnx and numpy; the file in the repository
was written with onnx 1.23.2 and numpy 2.4.6.
"""
import argparse
import json
import random

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

r = random.Random(20)
F, I, B, U8, I32, I8, H = np.float32, np.int64, np.bool_, np.uint8, np.int32, np.int8, np.float16


def dims(lo=1, hi=3, n=4):
    return [r.randint(1, n) for _ in range(r.randint(lo, hi))]


def floats(shape, t=F):
    return np.array([r.choice([0, 0.5, -1.5, r.uniform(-4, 4), r.uniform(-1, 1), 3]) for _ in range(int(np.prod(shape)))], dtype=t).reshape(shape)


def ints(shape, lo=-5, hi=9, t=I):
    return np.array([r.randint(lo, hi) for _ in range(int(np.prod(shape)))], dtype=t).reshape(shape)


def numbers(shape):
    return r.choice([lambda: floats(shape), lambda: ints(shape), lambda: ints(shape, t=I32), lambda: floats(shape, H)])()


def smaller(shape):
    s = [1 if r.random() < 0.3 else n for n in shape]
    return s[r.randint(0, len(s) - 1) if s and r.random() < 0.3 else 0:]


def axis(shape):
    return r.randint(-len(shape), len(shape) - 1)


def vec(*n):
    return np.array(n, dtype=I)


def unary(t):
    return lambda: ([t(dims())], {})


def binary(make, **attrs):
    def case():
        s = dims()
        return [make(s), make(smaller(s))], {k: f() for k, f in attrs.items()}
    return case


def variadic():
    s = dims()
    return [floats(s)] + [floats(smaller(s)) for _ in range(r.randint(0, 2))], {}


def attributed(**attrs):
    return lambda: ([floats(dims())], {k: f() for k, f in attrs.items() if r.random() < 0.7})


def reduction(kinds=None):
    s = dims()
    attrs = {"keepdims": r.randint(0, 1)}
    ins = [r.choice(kinds)(s) if kinds else numbers(s)]  # the evaluator widens squares of int32, which the standard does not
    if r.random() < 0.7:
        ins.append(vec(*r.sample(range(len(s)), r.randint(1, len(s)))))
    return ins, attrs


def cumulative():
    s = dims()
    return [numbers(s), np.array(axis(s), dtype=I)], {"exclusive": r.randint(0, 1), "reverse": r.randint(0, 1)}


def along():
    s = dims()
    return [floats(s)], {"axis": axis(s)}


def matmul():
    m, k, n = r.randint(1, 4), r.randint(1, 4), r.randint(1, 4)
    batch = dims(0, 2, 3)
    a, b = r.choice([(batch + [m, k], smaller(batch) + [k, n]), ([k], batch + [k, n]), (batch + [m, k], [k]), ([k], [k])])
    t = r.choice([floats, ints])
    return [t(a), t(b)], {}


def onehot():
    s = dims()
    depth = r.randint(1, 5)
    return [ints(s, -depth, depth - 1), np.array(depth, dtype=I), floats([2])], {"axis": r.randint(-len(s) - 1, len(s))}


def reverse():
    s = [r.randint(1, 4), r.randint(1, 4)] + dims(0, 1)
    b = r.randint(0, 1)
    return [floats(s), ints([s[b]], 1, s[1 - b])], {"batch_axis": b, "time_axis": 1 - b}


def depth():
    b = r.randint(1, 2)
    return [floats([r.randint(1, 2), b * b * r.randint(1, 2), r.randint(1, 2), r.randint(1, 3)])], {"blocksize": b, "mode": r.choice(["DCR", "CRD"])}


def space():
    b = r.randint(1, 2)
    return [floats([r.randint(1, 2), r.randint(1, 3), b * r.randint(1, 2), b * r.randint(1, 3)])], {"blocksize": b}


def compress():
    s = dims()
    if r.random() < 0.3:
        return [floats(s), np.array([r.random() < 0.5 for _ in range(int(np.prod(s)))])], {}
    a = axis(s)
    return [floats(s), np.array([r.random() < 0.5 for _ in range(s[a])])], {"axis": a}


def topk():
    s = dims()
    a = axis(s)
    x = np.array(r.sample(range(200), int(np.prod(s))), dtype=F).reshape(s)
    return [x, vec(r.randint(1, s[a]))], {"axis": a, "largest": r.randint(0, 1)}


def arg():
    s = dims()
    return [numbers(s)], {"axis": axis(s), "keepdims": r.randint(0, 1), "select_last_index": r.randint(0, 1)}


def pad():
    s = dims(1, 3)
    mode = r.choice(["constant", "edge", "reflect", "wrap"])
    p = [r.randint(0, n - 1) if mode in ("reflect", "wrap") else r.randint(0, 2) for n in s + s]
    return [numbers(s), vec(*p)], {"mode": mode}


def gathernd():
    s = dims(2, 3)
    b = r.randint(0, 1)
    k = r.randint(1, len(s) - b)
    rows = s[:b] + [r.randint(1, 3)]
    return [numbers(s), np.stack([ints(rows, -n, n - 1) for n in s[b:b + k]], axis=-1)], {"batch_dims": b}


def scatternd():
    s = dims(1, 3)
    k = r.randint(1, len(s))
    rows = r.randint(1, 3)
    return [floats(s), np.stack([ints([rows], 0, n - 1) for n in s[:k]], axis=-1), floats([rows] + s[k:])], {"reduction": r.choice(["none", "add", "mul", "max", "min"])}


def scatterelements():
    s = dims(1, 3)
    a = axis(s)
    i = [n if k == a % len(s) else r.randint(1, n) for k, n in enumerate(s)]
    index = np.argsort(floats(i), axis=a).astype(I) if r.random() < 0.5 else ints(i, -s[a], s[a] - 1)
    red = r.choice(["add", "mul", "max", "min"])
    return [floats(s), index, floats(i)], {"axis": a, "reduction": red}


def gatherelements():
    s = dims(1, 3)
    a = axis(s)
    return [numbers(s), ints([r.randint(1, n) for n in s], -s[a], s[a] - 1)], {"axis": a}


def quantize():
    t = r.choice([U8, I8])
    return [floats(dims()), F(r.choice([0.1, 0.25, 0.03])).reshape(()), np.array(r.randint(0, 9), dtype=t)], {}


def dequantize():
    t = r.choice([U8, I8])
    return [ints(dims(), 0, 90, t), F(r.choice([0.1, 0.25, 0.03])).reshape(()), np.array(r.randint(0, 9), dtype=t)], {}


def crop():
    s = dims()
    return [numbers(s), vec(*[r.randint(1, 6) for _ in s])], {}


def slicing():
    s = dims(1, 3)
    n = r.randint(1, len(s))
    return [numbers(s), ints([n], -5, 5), ints([n], -5, 7), vec(*r.sample(range(len(s)), n)), np.array([r.choice([-2, -1, 1, 2, 3]) for _ in range(n)], dtype=I)], {}


def gemm():
    m, k, n = r.randint(1, 4), r.randint(1, 4), r.randint(1, 4)
    a, b = r.randint(0, 1), r.randint(0, 1)
    ins = [floats([k, m] if a else [m, k]), floats([n, k] if b else [k, n])]
    if r.random() < 0.6:
        ins.append(floats(r.choice([[m, n], [n], [1, n], [m, 1]])))
    return ins, {"transA": a, "transB": b, "alpha": 0.5, "beta": 2.0}


def einsum():
    size = {c: r.randint(1, 3) for c in "ijkb"}
    eq = r.choice(["ij,jk->ik", "bij,bjk->bik", "ij->ji", "ij->j", "ij,ij->", "ii->i", "i,j->ij", "bij,kj->bik"])
    t = r.choice([floats, ints])
    return [t([size[c] for c in term]) for term in eq.split("->")[0].split(",")], {"equation": eq}


def window():
    return [np.array(r.randint(2, 9), dtype=I)], {"periodic": r.randint(0, 1)}


def small(t):
    return lambda s: ints(s, 0, 9, t)


CASES = {
    "BitwiseAnd": binary(small(U8)), "BitwiseOr": binary(small(I)), "BitwiseXor": binary(lambda s: ints(s)), "BitwiseNot": unary(lambda s: ints(s, t=r.choice([I, I8, I32]))),
    "BitShift": binary(lambda s: ints(s, 0, 7, U8), direction=lambda: r.choice(["LEFT", "RIGHT"])),
    "Mean": variadic, "Sum": variadic, "Max": variadic, "Min": variadic, "IsNaN": unary(floats), "IsInf": unary(lambda s: np.array([r.choice([np.inf, -np.inf, np.nan, 1]) for _ in range(int(np.prod(s)))], dtype=F).reshape(s)),
    "LeakyRelu": attributed(alpha=lambda: 0.25), "Elu": attributed(alpha=lambda: 0.5), "Celu": attributed(alpha=lambda: 2.0), "Selu": attributed(alpha=lambda: 2.0, gamma=lambda: 3.0),
    "HardSigmoid": attributed(alpha=lambda: 0.5, beta=lambda: 0.25), "HardSwish": unary(floats), "Softplus": unary(floats), "Softsign": unary(floats), "Mish": unary(floats),
    "Gelu": attributed(approximate=lambda: "tanh"), "ThresholdedRelu": attributed(alpha=lambda: 0.5), "Shrink": attributed(lambd=lambda: 1.0, bias=lambda: 0.5),
    "PRelu": binary(floats), "Swish": attributed(alpha=lambda: 2.0), "Relu": unary(floats), "Sigmoid": unary(floats), "Erf": unary(floats), "Round": unary(floats),
    "Floor": unary(floats), "Ceil": unary(floats), "Sign": unary(numbers), "Abs": unary(numbers), "Neg": unary(numbers), "Tanh": unary(floats), "Exp": unary(floats),
    "Add": binary(lambda s: ints(s, 0, 200, U8)), "Sub": binary(lambda s: ints(s)), "Mul": binary(lambda s: ints(s, -90, 90, I8)), "Div": binary(lambda s: ints(s, 1, 9)),
    "Mod": binary(lambda s: ints(s, 1, 9)), "Pow": binary(lambda s: ints(s, 0, 4)), "Equal": binary(lambda s: ints(s, 0, 3)), "Less": binary(floats), "And": binary(lambda s: ints(s, 0, 1, B)),
    "Or": binary(lambda s: ints(s, 0, 1, B)), "Xor": binary(lambda s: ints(s, 0, 1, B)), "Not": unary(lambda s: ints(s, 0, 1, B)),
    "ReduceL1": reduction, "ReduceL2": reduction, "ReduceLogSum": reduction, "ReduceLogSumExp": reduction, "ReduceSumSquare": lambda: reduction([floats, ints]), "ReduceSum": reduction, "ReduceMax": reduction,
    "ReduceMin": reduction, "ReduceProd": reduction, "ReduceMean": reduction, "CumSum": cumulative, "CumProd": cumulative, "Softmax": along, "LogSoftmax": along, "Hardmax": along,
    "MatMul": matmul, "OneHot": onehot, "EyeLike": lambda: ([floats(dims(2, 2))], {"k": r.randint(-2, 2)}), "ReverseSequence": reverse, "DepthToSpace": depth, "SpaceToDepth": space,
    "Compress": compress, "Unique": lambda: ([ints(dims())], {"sorted": r.randint(0, 1)}), "TopK": topk, "ArgMax": arg, "ArgMin": arg, "Pad": pad, "GatherND": gathernd,
    "ScatterND": scatternd, "ScatterElements": scatterelements, "GatherElements": gatherelements, "QuantizeLinear": quantize, "DequantizeLinear": dequantize, "CenterCropPad": crop,
    "Slice": slicing, "Transpose": lambda: (lambda s: ([numbers(s)], {"perm": r.sample(range(len(s)), len(s))}))(dims()),
    "Tile": lambda: (lambda s: ([numbers(s), vec(*[r.randint(1, 3) for _ in s])], {}))(dims()), "Trilu": lambda: ([numbers(dims(2, 3)), np.array(r.randint(-2, 2), dtype=I)], {"upper": r.randint(0, 1)}),
    "NonZero": lambda: ([ints(dims(), 0, 1)], {}), "Where": lambda: (lambda s: ([ints(s, 0, 1, B), floats(s), floats(smaller(s))], {}))(dims()),
    "Dropout": lambda: ([floats(dims())], {}), "Gemm": gemm, "Einsum": einsum, "HannWindow": window, "HammingWindow": window, "BlackmanWindow": window,
    "BitCast": lambda: ([floats(dims())], {"to": r.choice([6, 12])}),
}
OUTPUTS = {"Unique": 4, "TopK": 2, "Dropout": 2}


def number(v):
    if not isinstance(v, float):
        return v
    return float("%.8g" % v) if np.isfinite(v) else str(v)


def tensor(x):
    x = np.asarray(x)
    return {"dtype": onnx.helper.tensor_dtype_to_string(helper.np_dtype_to_tensor_dtype(x.dtype)).split(".")[1].lower(), "dims": list(x.shape),
            "values": [number(v) for v in x.flatten().tolist()]}


def run(op, ins, attrs, opset):
    names = ["x%d" % i for i in range(len(ins))]
    outs = ["y%d" % i for i in range(OUTPUTS.get(op, 1))]
    node = helper.make_node(op, names, outs, **attrs)
    g = helper.make_graph([node], "g", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), list(x.shape)) for n, x in zip(names, ins)],
                          [onnx.ValueInfoProto(name=o) for o in outs])
    m = helper.make_model(g, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(m).run(None, dict(zip(names, ins)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", default="graph/infer/testdata/elements.jsonl")
    p.add_argument("--rounds", type=int, default=8)
    a = p.parse_args()
    refused = {}
    with open(a.out, "w") as f:
        for op, make in CASES.items():
            for _ in range(a.rounds):
                ins, attrs = make()
                ins = [np.asarray(x) for x in ins]
                opset = 26 if op in ("CumProd", "BitCast") else 24 if op == "Swish" else 22
                try:
                    with np.errstate(all="ignore"):
                        outs = run(op, ins, attrs, opset)
                except Exception as e:  # the evaluator's limits, or a case that no one may run
                    refused[op] = refused.get(op, 0) + 1
                    last = "%s: %s" % (op, str(e)[:120].replace("\n", " "))
                    if refused[op] == a.rounds:
                        print("never runs:", last)
                    continue
                line = {"op": op, "opset": opset, "in": [tensor(x) for x in ins], "attrs": attrs, "out": [tensor(y) for y in outs]}
                f.write(json.dumps(line, separators=(",", ":")) + "\n")
    print("refused:", refused)


main()
