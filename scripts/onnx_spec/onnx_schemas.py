#!/usr/bin/env python3
"""Writes graph/infer/schemas.txt: what ONNX's own schemas say of every operator, in every version of it.

    pip install onnx==1.23.2
    python3 scripts/onnx_spec/onnx_schemas.py > graph/infer/schemas.txt

Lines, by their first word:
    #        a comment
    =N       set N of types, as ONNX writes them without "tensor": float stands for tensor(float)
    NAME     an operator: name, version that brings it, inputs -> outputs | attributes | type variables

Operators of a domain other than ai.onnx are called domain.name. An input or output is name:type (a variable, or a type),
then "?" if it may be left out, or "*N" or "~N" if it stands for N or more, of one type or of many. An attribute is
name:kind, with "!" if it must be there; kinds are the numbers of AttributeProto.AttributeType. A type variable is
NAME=N, N a set. "!" after the version: the operator was withdrawn.
"""

import onnx.defs as defs

OPTION = defs.OpSchema.FormalParameterOption
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.preview")


def short(text):
    """tensor(float) as float; other types in full."""
    if text.startswith("tensor(") and text.count("(") == 1:
        return text[len("tensor("):-1]
    return text.replace(" ", "")


def parameter(p, variables):
    mark = ""
    if p.option == OPTION.Optional:
        mark = "?"
    elif p.option == OPTION.Variadic:
        mark = ("*" if p.is_homogeneous else "~") + str(p.min_arity)
    return p.name + ":" + (p.type_str if p.type_str in variables else short(p.type_str)) + mark


def attribute(a):
    return f"{a.name}:{int(a.type.value)}{'!' if a.required else ''}"


def line(s, sets):
    name = f"{s.domain}.{s.name}" if s.domain else s.name
    version = f"{s.since_version}{'!' if s.deprecated else ''}"
    variables = {c.type_param_str: tuple(sorted(short(t) for t in c.allowed_type_strs)) for c in s.type_constraints}
    parts = [name, version] + [parameter(p, variables) for p in s.inputs] + ["->"] + [parameter(p, variables) for p in s.outputs]
    parts += ["|"] + [attribute(a) for _, a in sorted(s.attributes.items())]
    parts += ["|"] + [f"{v}={sets.setdefault(types, len(sets))}" for v, types in variables.items()]
    return " ".join(parts)


def main():
    import onnx

    sets = {}
    schemas = [s for s in defs.get_all_schemas_with_history() if s.domain in DOMAINS]
    schemas.sort(key=lambda s: (s.domain, s.name, s.since_version))
    lines = [line(s, sets) for s in schemas]
    print(f"# The operator schemas of onnx {onnx.__version__}; scripts/onnx_spec/onnx_schemas.py wrote this and explains it.")
    for types, n in sets.items():
        print(f"={n}", *types)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
