package lift

import (
	"math"
	"slices"
	"strings"

	"github.com/memplan/memplan/graph"
)

// A window is the geometry of a convolution or pooling, with one entry for each
// spatial dim.
type window struct {
	kernel, stride, dil, begin, end []int64
}

// windowOf reads a node's attributes; in are the operand's dims. It fails if
// automatic padding depends on an unknown size.
func windowOf(p *patLift, n *graph.Node, kernel, in []int64) (window, bool) {
	k := len(kernel)
	ones, zeros := slices.Repeat([]int64{1}, k), make([]int64, 2*k)
	w := window{kernel: kernel, stride: attrInts(n, "strides", ones), dil: attrInts(n, "dilations", ones)}
	pads := attrInts(n, "pads", zeros)
	if k == 0 || len(w.stride) != k || len(w.dil) != k || len(pads) != 2*k || len(in) != k+2 || slices.Min(w.stride) < 1 {
		return w, false
	}
	w.begin, w.end = slices.Clone(pads[:k]), slices.Clone(pads[k:])
	mode := attrStr(n, "auto_pad", "NOTSET")
	if mode == "NOTSET" || mode == "" {
		return w, true
	}
	for i := range k {
		w.begin[i], w.end[i] = 0, 0
		if mode == "VALID" {
			continue
		}
		d := in[2+i]
		if d < 0 {
			return w, false
		}
		out := (d + w.stride[i] - 1) / w.stride[i]
		total := max((out-1)*w.stride[i]+(kernel[i]-1)*w.dil[i]+1-d, 0)
		w.begin[i], w.end[i] = total/2, total-total/2
		if mode == "SAME_LOWER" {
			w.begin[i], w.end[i] = w.end[i], w.begin[i]
		}
	}
	return w, true
}

// padded returns the operand of a window with equal padding on both sides: if
// the sides differ, it first emits a constant_pad_nd with value.
func padded(p *patLift, n *graph.Node, w *window, value float64) graph.Arg {
	x := p.in(n, 0)
	if slices.Equal(w.begin, w.end) {
		return x
	}
	dims := slices.Clone(p.dims(n.Inputs[0]))
	var pads []int64
	for i := len(w.begin) - 1; i >= 0; i-- {
		pads = append(pads, w.begin[i], w.end[i])
		if dims[2+i] >= 0 {
			dims[2+i] += w.begin[i] + w.end[i]
		}
		w.begin[i], w.end[i] = 0, 0
	}
	return p.step(n, "pad", shaped(p.typeOf(n.Inputs[0]), dims...), "constant_pad_nd.default", x, argInts(pads...), argFloat(value))
}

// spatialOp appends the number of spatial dims to an operator's name.
func spatialOp(base string, k int) string { return base + [...]string{"", "1d", "2d", "3d"}[k] }

func convCall(p *patLift, n *graph.Node, _ *match) bool {
	fx := foldedNorm(n)
	if fx == nil {
		return conv(p, n, p.value(n.Outputs[0]))
	}
	t := p.temp(n, "conv", p.typeOf(n.Outputs[0]))
	if !conv(p, beforeNorm(p, n), t) {
		return false
	}
	restoreNorm(p, n, fx, t)
	return true
}

// foldedNorm returns the batch normalisation that the exporter folded into a
// convolution, according to the node's metadata.
func foldedNorm(n *graph.Node) *fxCall {
	text := n.MetaValue(keyFX)
	if !strings.Contains(text, "batch_norm") {
		return nil
	}
	fx, err := parseFX(text)
	if err != nil || !strings.HasPrefix(fx.target, "aten.") || !strings.Contains(fx.target, "batch_norm") || len(fx.args) < 5 {
		return nil
	}
	return fx
}

// beforeNorm returns the convolution as it was before a batch normalisation was
// folded into it: without the bias from folding, in its own module.
func beforeNorm(p *patLift, n *graph.Node) *graph.Node {
	c := *n
	c.Inputs = n.Inputs[:2]
	module, scopes := p.weightModule(&c), pyList(n.MetaValue(keyScopes))
	if module == "" || len(scopes) < 2 {
		return &c
	}
	scopes[len(scopes)-2] = module
	c.Meta = slices.Clone(n.Meta)
	for i := range c.Meta {
		switch c.Meta[i].Key {
		case keyScopes:
			c.Meta[i].Value = pyRepr(scopes)
		case keyClasses:
			classes := pyList(c.Meta[i].Value)
			if len(classes) >= 2 {
				classes[len(classes)-2] = ""
			}
			c.Meta[i].Value = pyRepr(classes)
		}
	}
	return &c
}

// restoreNorm emits the folded batch normalisation with new parameters and
// running statistics.
func restoreNorm(p *patLift, n *graph.Node, fx *fxCall, x graph.ValueID) {
	module, _ := owner(n)
	args := []graph.Arg{argOf(x)}
	for i, name := range []string{"weight", "bias", "running_mean", "running_var"} {
		if fx.args[1+i].kind != graph.ArgValue {
			args = append(args, argNone())
			continue
		}
		role := Parameter
		if i >= 2 {
			role = Buffer
		}
		args = append(args, argOf(added(p, module+"."+name, shaped(p.typeOf(n.Outputs[0]), p.dims(n.Inputs[1])[0]), role)))
	}
	p.restored++
	p.emit(n, "batch_norm.default", append(args, argBool(true), argFloat(0.1), argFloat(1e-5), argBool(true)), p.value(n.Outputs[0]))
}

// added makes a stored tensor that the file no longer holds.
func added(p *patLift, name string, t graph.Type, role Role) graph.ValueID {
	id := p.fresh(name, t)
	v := &p.l.Graph.Values[id]
	dims, _ := t.Shape.Static()
	v.Kind, v.Const = graph.Initializer, &graph.Constant{Name: name, Type: t.Elem, Dims: dims}
	p.l.Roles[id] = role
	return id
}

func conv(p *patLift, n *graph.Node, out graph.ValueID) bool {
	w, in := p.dims(input(n, 1)), p.dims(n.Inputs[0])
	k := len(w) - 2
	if k < 1 || k > 3 || len(in) != len(w) || slices.Min(w) < 1 {
		return false
	}
	win, ok := windowOf(p, n, w[2:], in)
	if !ok {
		return false
	}
	p.weight(n.Inputs[1])
	p.weight(input(n, 2))
	x := padded(p, n, &win, 0)
	p.emit(n, spatialOp("conv", k)+".default", []graph.Arg{x, p.in(n, 1), p.in(n, 2), argInts(win.stride...), argInts(win.begin...),
		argInts(win.dil...), argInt(attrInt(n, "group", 1))}, out)
	return true
}

func fusedConvCall(p *patLift, n *graph.Node, _ *match) bool {
	out, t := p.value(n.Outputs[0]), p.typeOf(n.Outputs[0])
	act := activation(attrStr(n, "activation", ""))
	sum := input(n, 3) >= 0
	at := out
	if act != "" || sum {
		at = p.temp(n, "conv", t)
	}
	if !conv(p, n, at) {
		return false
	}
	if sum {
		to := out
		if act != "" {
			to = p.temp(n, "add", t)
		}
		p.emit(n, "add.Tensor", []graph.Arg{argOf(at), p.in(n, 3)}, to)
		at = to
	}
	if act != "" {
		p.emit(n, act+".default", []graph.Arg{argOf(at)}, out)
	}
	return true
}

// activation maps the activation attribute of fused operators.
func activation(name string) string {
	switch name {
	case "Relu":
		return "relu"
	case "Sigmoid":
		return "sigmoid"
	case "Tanh":
		return "tanh"
	case "LeakyRelu":
		return "leaky_relu"
	case "Clip":
		return "hardtanh"
	case "HardSigmoid":
		return "hardsigmoid"
	case "HardSwish":
		return "hardswish"
	}
	return ""
}

// convTransposeCall chooses the padding and output padding that give the
// inferred size, so that automatic and uneven padding take the same memory.
func convTransposeCall(p *patLift, n *graph.Node, _ *match) bool {
	w, in, out := p.dims(input(n, 1)), p.dims(n.Inputs[0]), p.dims(n.Outputs[0])
	k := len(w) - 2
	if k < 1 || k > 3 || len(in) != len(w) || slices.Min(w) < 1 {
		return false
	}
	ones, zeros := slices.Repeat([]int64{1}, k), make([]int64, k)
	stride, dil, more := attrInts(n, "strides", ones), attrInts(n, "dilations", ones), slices.Clone(attrInts(n, "output_padding", zeros))
	pads := attrInts(n, "pads", make([]int64, 2*k))
	if len(stride) != k || len(dil) != k || len(more) != k || len(pads) != 2*k {
		return false
	}
	pad := make([]int64, k)
	for i := range k {
		total := pads[i] + pads[k+i]
		if len(out) == k+2 && in[2+i] >= 0 && out[2+i] >= 0 {
			total = (in[2+i]-1)*stride[i] + dil[i]*(w[2+i]-1) + 1 + more[i] - out[2+i]
		}
		if pad[i] = (total + 1) / 2; total < 0 {
			pad[i] = 0
		}
		more[i] += 2*pad[i] - total
	}
	p.weight(n.Inputs[1])
	p.weight(input(n, 2))
	p.emit(n, spatialOp("conv_transpose", k)+".default", []graph.Arg{p.in(n, 0), p.in(n, 1), p.in(n, 2), argInts(stride...), argInts(pad...),
		argInts(more...), argInt(attrInt(n, "group", 1)), argInts(dil...)}, p.value(n.Outputs[0]))
	return true
}

func maxPoolCall(p *patLift, n *graph.Node, _ *match) bool {
	kernel, in := attrInts(n, "kernel_shape", nil), p.dims(n.Inputs[0])
	k := len(kernel)
	if k < 1 || k > 3 || slices.Min(kernel) < 1 {
		return false
	}
	w, ok := windowOf(p, n, kernel, in)
	if !ok {
		return false
	}
	x := padded(p, n, &w, lowest(p.typeOf(n.Inputs[0]).Elem))
	p.emit(n, spatialOp("max_pool", k)+".default", []graph.Arg{x, argInts(kernel...), argInts(w.stride...), argInts(w.begin...), argInts(w.dil...),
		argBool(attrInt(n, "ceil_mode", 0) != 0)}, p.outs(n)...)
	return true
}

// lowest returns the least value of a type, with which maximum pooling pads.
func lowest(d graph.DType) float64 {
	if d.IsFloat() {
		return math.Inf(-1)
	}
	return 0
}

func avgPoolCall(p *patLift, n *graph.Node, _ *match) bool {
	kernel, in := attrInts(n, "kernel_shape", nil), p.dims(n.Inputs[0])
	k := len(kernel)
	if k < 1 || k > 3 || slices.Min(kernel) < 1 {
		return false
	}
	w, ok := windowOf(p, n, kernel, in)
	if !ok || slices.Max(w.dil) != 1 {
		return false
	}
	x := padded(p, n, &w, 0)
	p.emit(n, spatialOp("avg_pool", k)+".default", []graph.Arg{x, argInts(kernel...), argInts(w.stride...), argInts(w.begin...),
		argBool(attrInt(n, "ceil_mode", 0) != 0), argBool(attrInt(n, "count_include_pad", 0) != 0)}, p.value(n.Outputs[0]))
	return true
}

func globalPoolCall(p *patLift, n *graph.Node, _ *match) bool {
	k := len(p.dims(n.Inputs[0])) - 2
	if k < 1 || k > 3 {
		return false
	}
	base := "adaptive_avg_pool"
	if n.Op == "GlobalMaxPool" {
		base = "adaptive_max_pool"
	}
	p.emit(n, spatialOp(base, k)+".default", []graph.Arg{p.in(n, 0), argInts(slices.Repeat([]int64{1}, k)...)}, p.value(n.Outputs[0]))
	return true
}

func padCall(p *patLift, n *graph.Node, _ *match) bool {
	op := "constant_pad_nd.default"
	k := len(p.dims(n.Inputs[0])) - 2
	switch mode := attrStr(n, "mode", "constant"); {
	case mode == "reflect" && (k == 1 || k == 2):
		op = spatialOp("reflection_pad", k) + ".default"
	case mode == "edge" && k == 2:
		op = "replication_pad2d.default"
	case mode != "constant":
		return false
	}
	list, _ := pads(p, n)
	args := []graph.Arg{p.in(n, 0), argInts(list...)}
	if f, _ := padValue(p, n); f != 0 && op == "constant_pad_nd.default" {
		args = append(args, argFloat(f))
	}
	p.emit(n, op, args, p.value(n.Outputs[0]))
	return true
}

// pads returns the numbers of elements that a Pad adds before and after each
// dim, in torch's order, the innermost first; it fails if the file does not
// show them.
func pads(p *patLift, n *graph.Node) ([]int64, bool) {
	pads, ok := p.ints(input(n, 1))
	if !ok {
		pads = attrInts(n, "pads", attrInts(n, "paddings", nil))
	}
	half, rank := len(pads)/2, len(p.dims(n.Inputs[0]))
	dim := func(i int) int { return i }
	if id := input(n, 3); id >= 0 {
		axes, ok := p.ints(id)
		if !ok || len(axes) != half {
			return nil, false
		}
		dim = func(i int) int { return (int(axes[i]) + rank) % max(rank, 1) }
		rank = max(rank, 1)
	} else {
		rank = half
	}
	list := make([]int64, 2*rank)
	for i := range half {
		at := 2 * (rank - 1 - dim(i))
		if at < 0 || at >= len(list) {
			return nil, false
		}
		list[at], list[at+1] = pads[i], pads[half+i]
	}
	return list, len(pads) > 0
}

// padValue returns the value that a Pad fills with; it fails if the file does
// not show it.
func padValue(p *patLift, n *graph.Node) (float64, bool) {
	if id := input(n, 2); id >= 0 {
		return p.number(id)
	}
	return attrFloat(n, "value", 0), true
}

// resizeNames are the operators by interpolation and number of spatial dims.
var resizeNames = map[string][4]string{
	"nearest": {"", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"},
	"linear":  {"", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"},
	"cubic":   {"", "", "upsample_bicubic2d", ""},
}

func resizeCall(p *patLift, n *graph.Node, _ *match) bool {
	in, out := p.dims(n.Inputs[0]), p.dims(n.Outputs[0])
	k := len(in) - 2
	mode := attrStr(n, "mode", "nearest")
	if mode == "bilinear" {
		mode = "linear"
	}
	if k < 1 || k > 3 || len(out) != len(in) || in[1] != out[1] || resizeNames[mode][k] == "" {
		return false
	}
	p.emit(n, resizeNames[mode][k]+".default", []graph.Arg{p.in(n, 0), argInts(out[2:]...)}, p.value(n.Outputs[0]))
	return true
}

func pixelCall(p *patLift, n *graph.Node, _ *match) bool {
	op := "pixel_shuffle.default"
	if n.Op == "SpaceToDepth" {
		op = "pixel_unshuffle.default"
	}
	p.emit(n, op, []graph.Arg{p.in(n, 0), argInt(attrInt(n, "blocksize", 1))}, p.value(n.Outputs[0]))
	return true
}

func gridCall(p *patLift, n *graph.Node, _ *match) bool {
	if len(p.dims(n.Inputs[0])) != 4 {
		return false
	}
	p.emit(n, "grid_sampler_2d.default", []graph.Arg{p.in(n, 0), p.in(n, 1)}, p.value(n.Outputs[0]))
	return true
}
