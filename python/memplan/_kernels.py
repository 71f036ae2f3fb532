"""Calls whose kernel PyTorch chooses by the device: here, where there may be no GPU, as on a Hopper GPU."""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.nn.functional as F

from . import _values

aten = torch.ops.aten
Special = Callable[..., Any]


def special(name: str) -> Special | None:
    return _SPECIAL.get(name)


# ---- attention (ATen/native/transformers/cuda/sdp_utils.cpp) ----


def _attention(fake: Any, call: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *, scale: Any = None, enable_gqa: bool = False) -> Any:
    q, k, v, mask = query, key, value, attn_mask
    cast = torch.is_autocast_enabled("cuda")
    if cast:
        low = torch.get_autocast_dtype("cuda")
        q, k, v = (t.to(low) if t.is_floating_point() else t for t in (q, k, v))
        mask = mask.to(low) if mask is not None and mask.is_floating_point() else mask
    allowed = _allowed()
    chosen = _choice(q, k, v, mask, dropout_p, enable_gqa, allowed)
    if call is not None:
        call["attention"] = chosen
        if len(allowed) < 4:
            call["backends"] = sorted(allowed)
    torch.set_autocast_enabled("cuda", False)
    try:
        return _ATTENTION[chosen](q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)
    finally:
        torch.set_autocast_enabled("cuda", cast)


def _allowed() -> set[str]:
    """The kernels that sdpa_kernel() and the flags of torch.backends.cuda allow."""
    b = torch.backends.cuda
    flags = {"flash": b.flash_sdp_enabled(), "efficient": b.mem_efficient_sdp_enabled(), "math": b.math_sdp_enabled(), "cudnn": b.cudnn_sdp_enabled()}
    return {k for k, on in flags.items() if on}


def _choice(q: Any, k: Any, v: Any, mask: Any, dropout: float, gqa: bool, allowed: set[str]) -> str:
    half, d = q.dtype in (torch.float16, torch.bfloat16), q.shape[-1]
    four = q.dim() == k.dim() == v.dim() == 4
    heads = gqa or q.shape[:2] == k.shape[:2] == v.shape[:2]
    aligned = d % (8 if half else 4) == 0 and v.shape[-1] % (8 if half else 4) == 0
    masked = mask is not None and mask.requires_grad
    if heads and four:
        if "cudnn" in allowed and half and not masked and d % 8 == 0 and d <= 256 and v.shape[-1] % 8 == 0 and k.shape[2] > 1 and (q.shape[2] > 1 or dropout == 0):
            return "cudnn"
        if "flash" in allowed and half and mask is None and d == k.shape[-1] == v.shape[-1] and d <= 256:
            return "flash"
        if "efficient" in allowed and not gqa and aligned:
            return "efficient"
    return "math"


def _cudnn(q: Any, k: Any, v: Any, mask: Any, p: float, causal: bool, scale: Any, gqa: bool) -> Any:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, _added(mask, q), True, p, causal, False, scale=scale)[0]


def _flash(q: Any, k: Any, v: Any, mask: Any, p: float, causal: bool, scale: Any, gqa: bool) -> Any:
    d = q.shape[-1]
    q, k, v = (F.pad(t, (0, -d % 8)) if d % 8 else t for t in (q, k, v))
    out = aten._scaled_dot_product_flash_attention(q, k, v, p, causal, False, scale=d**-0.5 if scale is None else scale)[0]
    return out[..., :d] if d % 8 else out


def _efficient(q: Any, k: Any, v: Any, mask: Any, p: float, causal: bool, scale: Any, gqa: bool) -> Any:
    mask = _added(mask, q)
    if mask is not None:
        n = mask.shape[-1]
        if n % 8:  # sdp::preprocess_mask
            mask = F.pad(mask, (0, 8 - n % 8))[..., :n]
        mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, p, causal, scale=scale)[0]


def _math(q: Any, k: Any, v: Any, mask: Any, p: float, causal: bool, scale: Any, gqa: bool) -> Any:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return aten.scaled_dot_product_attention(q, k, v, mask, p, causal, scale=scale, enable_gqa=gqa)


def _added(mask: Any, q: Any) -> Any:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, torch.scalar_tensor(0.0, dtype=q.dtype, device=q.device), torch.scalar_tensor(float("-inf"), dtype=q.dtype, device=q.device))


_ATTENTION: dict[str, Callable[..., Any]] = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient, "math": _math}


# ---- products of groups (ATen/native/cuda/GroupedBlas.cpp) ----


def grouped_mm() -> Any:
    """The fake kernel of _grouped_mm for every type that a GPU supports: PyTorch's own supports only bfloat16."""
    known: Any = getattr(torch._meta_registrations, "_meta_grouped_mm_common", None)

    def any_type(mat_a: Any, mat_b: Any, *args: Any, **kwargs: Any) -> Any:
        if mat_a.dtype != mat_b.dtype or mat_a.dtype not in (torch.float32, torch.float16):
            return known(mat_a, mat_b, *args, **kwargs)
        out = known(mat_a.to(torch.bfloat16), mat_b.to(torch.bfloat16), *args, **kwargs)
        return torch.empty_strided(out.shape, out.stride(), dtype=mat_a.dtype, device=out.device)

    return [] if known is None else [(torch._meta_registrations, "_meta_grouped_mm_common", any_type)]


# ---- recurrent layers (ATen/native/cudnn/RNN.cpp) ----


def _recurrent(mode: int, states: int, packed: bool) -> Special:
    def run(fake: Any, call: Any, x: Any, *args: Any) -> Any:
        if packed:
            sizes, hx, weights, biases, layers, p, train, both = args
            sizes, batch_first = _values.known(sizes).tolist(), False  # type: ignore[union-attr]  # PackedSequence keeps them on the CPU
        else:
            hx, weights, biases, layers, p, train, both, batch_first = args
            sizes = []
        h, c = (hx[0], hx[1]) if states == 2 else (hx, None)
        if torch.is_autocast_enabled("cuda"):
            low = torch.float16  # whatever type autocast has (autocast_mode.cpp, RNN.cpp)
            x, h, c = (None if t is None else t.to(low) for t in (x, h, c))
            weights = [w.to(low) for w in weights]
        each = len(weights) // (layers * (2 if both else 1))
        projected = weights[1].shape[1] if each in (3, 5) else 0
        hidden = weights[0].shape[0] // 4 if projected else weights[1].shape[1]
        stride = 4 if biases else 2
        # Weights that no cast copies lie in one buffer already (nn.RNN.flatten_parameters).
        buffer = x.new_empty(sum(w.numel() for w in weights)) if torch.is_autocast_enabled("cuda") else weights[0].detach().view(-1)
        cast = torch.is_autocast_enabled("cuda")
        torch.set_autocast_enabled("cuda", False)
        try:
            out = aten._cudnn_rnn(x, list(weights), stride + (1 if projected else 0), buffer, h, c, mode, hidden, projected, layers, batch_first, p, train, both, sizes, None)
        finally:
            torch.set_autocast_enabled("cuda", cast)
        return (out[0], out[1], out[2]) if states == 2 else (out[0], out[1])

    return run


_SPECIAL: dict[str, Special] = {"aten.scaled_dot_product_attention.default": _attention}
for _name, _mode, _states in (("rnn_relu", 0, 1), ("rnn_tanh", 1, 1), ("lstm", 2, 2), ("gru", 3, 1)):
    for _overload in ("input", "data"):
        _SPECIAL[f"aten.{_name}.{_overload}"] = _recurrent(_mode, _states, _overload == "data")


# ---- nn.LSTMCell and nn.GRUCell: two products and a fused kernel (ATen/native/RNN.cpp, cuda/RNN.cu), of which PyTorch lacks some fake ones ----


def parts(name: str) -> Callable[..., Any] | None:
    """How C++ takes a call apart on a GPU, where that is what is recorded: a function of the recorder's own call, and of the arguments."""
    return _PARTS.get(name)


def _cell(fused: str, outputs: int) -> Callable[..., Any]:
    def run(call: Callable[..., Any], x: Any, state: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        hx, cx = state if outputs == 2 else (state, state)
        gates = call(aten.linear.default, x, w_ih), call(aten.linear.default, hx, w_hh)
        out = call(getattr(aten, fused).default, *gates, cx, b_ih, b_hh)
        return tuple(out[:2]) if outputs == 2 else out[0]

    return run


_PARTS: dict[str, Callable[..., Any]] = {"aten.lstm_cell.default": _cell("_thnn_fused_lstm_cell", 2), "aten.gru_cell.default": _cell("_thnn_fused_gru_cell", 1)}


def _gru_cell(input_gates: Any, hidden_gates: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    return torch.empty_like(hx, memory_format=torch.contiguous_format), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def _gru_cell_backward(grad: Any, workspace: Any, has_bias: bool) -> Any:
    gates, hidden = (workspace.new_empty((grad.shape[0], 3 * grad.shape[1])) for _ in range(2))
    return gates, hidden, torch.empty_like(grad), gates.sum(0) if has_bias else None, hidden.sum(0) if has_bias else None


_LIBRARY = torch.library.Library("aten", "IMPL")  # kept: what it registers goes with it
for _name, _kernel in (("_thnn_fused_gru_cell", _gru_cell), ("_thnn_fused_gru_cell_backward", _gru_cell_backward)):
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "Meta"):
        _LIBRARY.impl(_name, _kernel, "Meta")
