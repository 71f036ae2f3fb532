package planner

import (
	"math"
	"strings"

	"github.com/memplan/memplan/graph/kernel"
	"github.com/memplan/memplan/graph/program"
)

// What the host takes, in seconds, to issue what a step runs in eager mode, and the
// device from one kernel to the next: fitted to the steps of testdata/times and those of
// the shared data, on two hosts of an H200. Hosts differ by half, and one of them from step
// to step by a quarter.
const (
	stepHost      = 1.8e-3 // before the first kernel
	updateHost    = 0.4e-3 // the optimizer's step
	parameterHost = 14e-6  // and what it adds for each gradient
	gapSeconds    = 2e-6
)

// A hosted is what the host takes for a kernel: called from Python, and by autograd.
type hosted struct{ called, autograd float64 }

// autocastHost is how much longer the host takes for a call that autocast dispatches.
const autocastHost = 1.5

// casts are those of autocast, which looks each operand up.
var casts = hosted{42e-6, 42e-6}

// hostOf has a row for each pace, the others' where there is none.
var hostOf = map[kernel.Pace]hosted{
	kernel.Elements: {15e-6, 11e-6}, kernel.Products: {34e-6, 70e-6}, kernel.Recurrences: {1e-3, 1e-3},
	kernel.Convolutions: {75e-6, 60e-6}, kernel.ConvolutionsBackward: {75e-6, 60e-6},
	kernel.BatchNorms: {60e-6, 20e-6}, kernel.BatchNormsBackward: {60e-6, 20e-6}, kernel.LayerNorms: {60e-6, 20e-6}, kernel.LayerNormsBackward: {60e-6, 20e-6},
	kernel.GroupNorms: {60e-6, 20e-6}, kernel.GroupNormsBackward: {60e-6, 20e-6}, kernel.Attentions: {60e-6, 20e-6}, kernel.AttentionsBackward: {60e-6, 20e-6},
}

// ringHost is what the host takes for attention over the ranks of a sequence, which is some
// thirty calls through DTensor's dispatcher; likewise for its backward (docs/distributed.md).
const ringHost = 1.2e-3

// hookHost is the seconds that the host takes for a hook of backward that updates one parameter:
// Python's optimizer.step and zero_grad. AdamW of one parameter on a processor took 54 to 68 us a step.
const hookHost = 80e-6

// hostSeconds is what the host takes to start a node.
func (m *TimeModel) hostSeconds(n *program.Node) float64 {
	if n.Attrs != nil && n.Attrs.Rule != nil && n.Phase == program.Backward {
		return hookHost
	}
	if n.Attrs != nil && n.Attrs.Ring {
		return ringHost
	}
	h, ok := hostOf[paceOf(n)]
	switch {
	case n.Op == "to":
		h = casts
	case !ok:
		h = hostOf[kernel.Elements]
	}
	switch {
	case n.Phase == program.Update:
		return 0
	case n.Phase == program.Backward && !n.Recompute:
		return h.autograd
	case m.Autocast:
		return h.called * autocastHost
	}
	return h.called
}

// paceOf is the pace of what a node does.
func paceOf(n *program.Node) kernel.Pace {
	if k := kernel.Find(n.Does()); k != nil {
		return k.Pace
	}
	return kernel.Elements
}

// A work is a node whose device time is asked for.
type work struct {
	*program.Node
	m    *TimeModel
	half bool
}

// h200 is what an H200's multiprocessor does of plain arithmetic, in operations a
// second: times of one block of threads go by it.
const h200 = 67e12 / 132

const micro = 1e-6

// paces say how long kernels of each pace take on the device, in seconds. The constants
// are fitted to what PyTorch 2.11's profiler showed of 240 steps of 61 models on an H200
// (scripts/gpu/times.py, docs/times.md has what the halves that were fitted said of each
// other). A share of the memory's bandwidth or of the arithmetic's rate is what kernels
// reach; a serial part is one block of threads that goes over its part alone, which other
// blocks do not shorten.
var paces = [kernel.NumPaces]func(*work) float64{
	kernel.Elements:             elements,
	kernel.Products:             products,
	kernel.Convolutions:         convolutions,
	kernel.ConvolutionsBackward: convolutionsBackward,
	kernel.BatchNorms: func(w *work) float64 {
		if !w.training() { // element by element
			return elements(w)
		}
		ns := 0.53
		if w.half { // PyTorch's kernel, not cuDNN's
			ns = 1.06
		}
		return 2.2*micro + max(w.memory(0.46), w.channels(ns, 1.1))
	},
	kernel.BatchNormsBackward: func(w *work) float64 {
		ns := 1.45
		if w.half {
			ns = 1.77
		}
		return 1.5*micro + max(w.memory(0.37), w.channels(ns, 2.2))
	},
	kernel.LayerNorms:         layerNorms,
	kernel.LayerNormsBackward: layerNormsBackward,
	kernel.GroupNorms: func(w *work) float64 {
		rows, of := w.groups(w.Out)
		return 7*micro + w.memory(0.38) + w.serial(0.57*of*max(1, rows/w.blocks(2.3)))
	},
	kernel.GroupNormsBackward: func(w *work) float64 { return 9.6*micro + w.memory(0.27) },
	kernel.Attentions:         attentions,
	kernel.AttentionsBackward: attentionsBackward,
	kernel.Reductions:         reductions,
	kernel.Softmaxes:          func(w *work) float64 { return 1.5*micro + w.memory(0.67) },
	kernel.Windows:            func(w *work) float64 { return 5*micro + w.memory(0.33) },
	kernel.WindowsBackward:    func(w *work) float64 { return 5*micro + w.memory(0.14) },
	kernel.Lookups:            func(w *work) float64 { return 2.6*micro + w.memory(0.25) },
	kernel.LookupsBackward: func(w *work) float64 { // the indices are sorted first
		return 32*micro + w.memory(1.1) + 1.03e-9*w.elements(1)
	},
	kernel.Indices:     func(w *work) float64 { return 10.9*micro + w.memory(0.12) },
	kernel.Recurrences: recurrences,
}

// memory is the time of the node's traffic, and of writing and reading its workspaces
// once, at a share of the bandwidth.
func (w *work) memory(share float64) float64 {
	return float64(w.Traffic+2*w.Scratch) / (w.m.Device.Bandwidth * share)
}

// arithmetic is that of the node's arithmetic at a share of the device's peak for it.
func (w *work) arithmetic(share float64) float64 {
	if w.FLOPs == 0 {
		return 0
	}
	return float64(w.FLOPs) / (w.m.rate(w.Node) * share)
}

// serial is the time of what takes so many nanoseconds on an H200 whatever runs beside it.
func (w *work) serial(ns float64) float64 {
	return ns * 1e-9 * h200 / (w.m.Device.FP32 / float64(max(w.m.Device.SMs, 1)))
}

// blocks is how many blocks of threads run at once, so many to a multiprocessor.
func (w *work) blocks(each float64) float64 { return each * float64(max(w.m.Device.SMs, 1)) }

// shape is that of an operand; nil: there is none, as in rows of measured times.
func (w *work) shape(operand int) []int64 {
	if operand >= len(w.In) {
		return nil
	}
	return w.In[operand].Shape
}

// elements counts those of an operand.
func (w *work) elements(operand int) float64 { return numel(w.shape(operand)) }

func numel(shape []int64) float64 {
	n := 1.0
	for _, d := range shape {
		n *= float64(d)
	}
	return n
}

// training reports a batch normalisation by the batch's own statistics.
func (w *work) training() bool {
	k := kernel.Find(w.Does())
	return w.Attrs == nil || k == nil || k.Scalar(w.Node, "training") != 0
}

// channels is the time of one block for each channel, of so many nanoseconds an element.
func (w *work) channels(ns, each float64) float64 {
	x := w.shape(0)
	if len(x) < 2 || x[1] == 0 {
		return 0
	}
	c := float64(x[1])
	return w.serial(ns * w.elements(0) / c * max(1, c/w.blocks(each)))
}

// groups are how many rows of statistics there are, [samples, groups] among tensors, and
// the elements of each.
func (w *work) groups(among []program.View) (rows, of float64) {
	x := w.shape(0)
	if len(x) == 0 || x[0] == 0 {
		return 1, 0
	}
	rows = float64(x[0])
	for i := range among {
		if s := among[i].Shape; len(s) == 2 && numel(s) > 0 {
			rows = numel(s)
		}
	}
	return rows, w.elements(0) / rows
}

// rows are how many rows are normalized, how long they are, and whether there is a weight.
func (w *work) rows() (rows, width float64, weight bool) {
	x := w.shape(0)
	if len(x) == 0 {
		return 0, 1, false
	}
	width = float64(x[len(x)-1])
	for _, t := range w.In[1:] {
		if len(t.Shape) == 1 {
			width, weight = float64(t.Shape[0]), true
		}
	}
	width = max(width, 1)
	return w.elements(0) / width, width, weight
}

func layerNorms(w *work) float64 {
	rows, width, _ := w.rows()
	t := 1.8*micro + max(w.serial(rows*(1.22+0.002*width)), w.memory(0.39))
	if math.Mod(width, 4) != 0 { // no vectorized kernel
		t += w.serial(4.2 * rows)
	}
	return t
}

// layerNormsBackward: the weight's gradients sum over rows, by one kernel that has a block
// for 32 columns, or by partial sums where there are many rows
// (native/cuda/layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel).
func layerNormsBackward(w *work) float64 {
	rows, width, weight := w.rows()
	t := 1.4*micro + max(w.serial(0.83*rows), w.memory(0.85))
	switch {
	case !weight:
	case rows > 64*1024 && width/32 < float64(w.m.Device.SMs)/2:
		t += w.memory(1)
	default:
		t += w.serial(3.6 * rows)
	}
	return t
}

// elements: what is small is still in the second-level cache.
func elements(w *work) float64 {
	all := float64(w.Traffic + 2*w.Scratch)
	cached := min(all, 0.45*float64(w.m.Device.L2))
	t := (cached/0.86 + (all-cached)/0.62) / w.m.Device.Bandwidth
	if w.mixed() {
		t *= 1.12
	}
	return 2.3*micro + t
}

// mixed reports operands or results of more than one floating-point type.
func (w *work) mixed() bool {
	half, single := false, false
	for _, list := range [][]program.View{w.In, w.Out} {
		for i := range list {
			if d := list[i].DType; d.IsFloat() {
				half, single = half || isHalf(d), single || !isHalf(d)
			}
		}
	}
	return half && single
}

func reductions(w *work) float64 {
	t := w.memory(0.46)
	if len(w.In) > 0 && isHalf(w.In[0].DType) {
		t *= 1.44
	}
	if len(w.Out) > 0 && numel(w.Out[0].Shape) < 1400 { // few results: partial sums, which are summed in turn
		t *= 3.1
	}
	return 6.9*micro + t
}

func recurrences(w *work) float64 {
	t := 50*micro + float64(w.FLOPs)/(max(w.m.Device.Half, w.m.Device.FP32)*0.2)
	if !w.half {
		t = 50*micro + (t-50*micro)*1.9
	}
	layers := 0.0
	for i := range w.In {
		if len(w.In[i].Shape) == 2 { // two weights each
			layers += 0.5
		}
	}
	if x := w.shape(0); len(x) > 0 {
		t += w.serial(750 * float64(x[0]) * max(layers, 1))
	}
	return t
}

// An attention is how the kernels of one type run: a block of threads for so many rows of
// queries (forward) or keys (backward), each of them over all of the others, in tiles; widths are padded to
// those that kernels exist for, and the exponential costs as much as so many elements of
// width more. Fitted to 1,238 attentions of random shapes, as products are: half within 15%.
type attention struct {
	start      float64
	memory     float64   // share of the bandwidth
	arithmetic float64   // share of the rate
	causal     float64   // share of the work where the mask is causal
	each       float64   // blocks of a multiprocessor
	more       float64   // elements of width
	rows       float64   // of tiles
	keys       bool      // blocks are of keys
	widths     []float64 // ascending
}

var (
	flashWidths       = []float64{32, 64, 96, 128, 192, 256}
	efficientWidths   = []float64{64, 128, 256}
	flash             = attention{6 * micro, 0.47, 0.8, 0.58, 1, 60, 128, false, flashWidths}
	flashBackward     = attention{11.2 * micro, 0.24, 0.65, 0.75, 2, 43, 64, true, flashWidths}
	efficient         = attention{7.5 * micro, 0.2, 0.93, 0.63, 1, 48, 64, false, efficientWidths}
	efficientBackward = attention{22 * micro, 0.1, 0.565, 0.57, 1, 1.4, 64, true, efficientWidths}
)

func attentions(w *work) float64 { return attended(w, 0, 1, &flash, &efficient) }

func attentionsBackward(w *work) float64 {
	key := 2 // after the gradient and the mask
	if w.Does() == "_scaled_dot_product_flash_attention_backward" {
		key = 1
	}
	return attended(w, key+1, key, &flashBackward, &efficientBackward)
}

// attended is the time of attention of an operand's queries over another's keys, by the
// kernels of half and of single precision.
func attended(w *work, query, key int, half, single *attention) float64 {
	q, k, rows := w.shape(query), w.shape(key), kernel.Find(w.Does())
	a := single
	if w.half {
		a = half
	}
	if len(q) != 4 || len(k) != 4 || rows == nil || w.Attrs == nil || w.Attrs.Ring || w.half && strings.Contains(w.Does(), "efficient") {
		return 2.2*micro + max(w.memory(0.3), w.arithmetic(0.4))
	}
	width := float64(q[3])
	for _, to := range a.widths {
		if to >= width {
			width = to
			break
		}
	}
	up := func(n int64) float64 { return math.Ceil(float64(n)/a.rows) * a.rows }
	heads, m, n := float64(q[0]*q[1]), up(q[2]), up(k[2])
	work, blocks := 4*heads*m*n*(width+a.more), heads*m/a.rows
	if a.keys {
		work, blocks = 2.5*work, heads*n/a.rows
	}
	if rows.Scalar(w.Node, "causal") != 0 {
		work *= a.causal
	}
	once := w.blocks(a.each)
	waves := math.Ceil(blocks/once) * once / max(blocks, 1)
	return a.start + max(w.memory(a.memory), work*waves/(w.m.rate(w.Node)*a.arithmetic))
}

// A gemm is how products of one type run on the card: in tiles of the result, one to a
// block of threads, in waves of as many as there are multiprocessors; the library takes
// about the tile, and the number of parts of k, that are fastest. Fitted to 5,800 products of
// random shapes and layouts (scripts/gpu/kernels.py): half of those of more than 0.1 ms are within
// 10% (float32) to 15%, nine of ten within 35 to 40%.
type gemm struct {
	tiles  []tile
	start  float64 // seconds
	memory float64 // share of the bandwidth
	step   float64 // nanoseconds of a block for each element of k, at least
	odd    [3]slower
}

// A tile of so many rows and columns computes at a share of the multiprocessor's rate.
type tile struct{ rows, columns, share float64 }

// A slower is how many times longer arithmetic and traffic take where a matrix's rows begin at
// multiples of 4, 2 and 1 elements, not of 8: kernels of the card's own units need 16 bytes.
type slower struct{ arithmetic, memory float64 }

var (
	gemm32 = gemm{start: 5.5 * micro, memory: 0.43, step: 3, odd: [3]slower{{1, 1}, {1, 1}, {1, 1}},
		tiles: []tile{{128, 256, 0.46}, {128, 128, 0.53}, {64, 128, 0.715}, {128, 64, 0.664}, {64, 64, 0.632}, {64, 32, 0.49}, {32, 64, 0.5}}}
	gemmTF32 = gemm{start: 5.5 * micro, memory: 0.7, step: 8, odd: [3]slower{{1.7, 1}, {3.1, 1.4}, {3.2, 1.6}},
		tiles: []tile{{128, 256, 0.656}, {128, 128, 0.4}, {64, 128, 0.444}, {128, 64, 0.794}, {64, 64, 0.485}, {64, 32, 0.172}, {32, 64, 0.41}}}
	gemmHalf = gemm{start: 5 * micro, memory: 0.78, step: 0.67, odd: [3]slower{{4, 2.6}, {4.3, 2.3}, {7.4, 3.4}},
		tiles: []tile{{128, 256, 0.312}, {128, 128, 0.784}, {64, 128, 0.778}, {128, 64, 0.5}, {64, 64, 0.176}, {64, 32, 0.258}, {32, 64, 0.476}}}
)

// padded is how many times as much is computed of a dim as it has, by tiles of so many.
func padded(dim, tile float64) float64 { return math.Ceil(dim/tile) * tile / max(dim, 1) }

// products: dims of less than a tile, waves that are not full and rows that begin oddly take
// longer than the arithmetic says.
func products(w *work) float64 {
	g := &gemm32
	switch {
	case w.half:
		g = &gemmHalf
	case w.m.Device.TF32 > 0 && w.m.TF32:
		g = &gemmTF32
	}
	p, ok := w.product()
	if !ok {
		return g.start + max(w.arithmetic(0.7), w.memory(g.memory))
	}
	late := slower{1, 1}
	for i, of := range []float64{8, 4, 2} {
		if math.Mod(p.lead, of) != 0 {
			late = g.odd[i]
		}
	}
	return g.start + max(g.fastest(w, &p, late.arithmetic), w.memory(g.memory)*late.memory)
}

// fastest is the time of the fastest tile and number of parts of k.
func (g *gemm) fastest(w *work, p *product, late float64) float64 {
	sms := float64(max(w.m.Device.SMs, 1))
	rate := w.m.rate(w.Node) / sms
	best := math.Inf(1)
	for _, t := range g.tiles {
		tiles := math.Ceil(p.m/t.rows) * math.Ceil(p.n/t.columns) * p.batch
		for parts := 1.0; parts <= 16; parts *= 2 {
			k := math.Ceil(p.k / parts)
			if parts > 1 && k < 128 {
				break
			}
			s := math.Ceil(tiles*parts/sms) * max(2*t.rows*t.columns*k/(rate*t.share)*late, w.serial(k*g.step))
			if parts > 1 { // which are summed
				s += 1.5*micro + 8*parts*p.m*p.n*p.batch/(0.6*w.m.Device.Bandwidth)
			}
			best = min(best, s)
		}
	}
	return best
}

// A product is a batch of [m, k] by [k, n], and what the distances of all their rows in
// memory, in elements, are multiples of: 8, or less.
type product struct{ batch, m, n, k, lead float64 }

func (w *work) product() (p product, ok bool) {
	var a, b *program.View
	for i := range w.In {
		if len(w.In[i].Shape) >= 2 {
			a, b = b, &w.In[i]
		}
	}
	if a == nil || b == nil {
		return p, false
	}
	p.m, p.k, p.n, p.batch = float64(a.Shape[len(a.Shape)-2]), float64(a.Shape[len(a.Shape)-1]), float64(b.Shape[len(b.Shape)-1]), numel(a.Shape[:len(a.Shape)-2])
	if p.m*p.n*p.k*p.batch == 0 {
		return p, false
	}
	p.lead = 8
	for _, rows := range []float64{p.n, leading(a), leading(b)} {
		for math.Mod(rows, p.lead) != 0 {
			p.lead /= 2
		}
	}
	return p, true
}

// leading is the distance of a matrix's rows, or of its columns where those are contiguous,
// in elements.
func leading(v *program.View) float64 {
	n := len(v.Shape)
	switch {
	case len(v.Strides) != n:
		return float64(v.Shape[n-1])
	case v.Strides[n-1] == 1 && v.Shape[n-2] > 1 || v.Strides[n-2] != 1:
		return float64(v.Strides[n-2])
	}
	return float64(v.Strides[n-1])
}

// A convolved is the geometry of a convolution: the operands' order differs between the
// passes.
type convolved struct {
	in, out float64 // channels of a group
	groups  float64
	window  float64 // elements
	dims    int
}

func (w *work) convolved(backward bool) (g convolved, ok bool) {
	x, weight, y := w.shape(0), w.shape(1), []int64(nil)
	if len(w.Out) > 0 {
		y = w.Out[0].Shape
	}
	if backward {
		y, x, weight = w.shape(0), w.shape(1), w.shape(2)
	}
	if len(x) < 3 || len(weight) < 3 || len(y) < 3 || w.Attrs == nil || w.Attrs.Conv == nil {
		return convolved{}, false
	}
	groups := float64(max(w.Attrs.Conv.Groups, 1))
	return convolved{in: float64(x[1]) / groups, out: float64(y[1]) / groups, groups: groups, window: numel(weight[2:]), dims: len(weight) - 2}, true
}

// convolutions: cuDNN computes tiles of 32 input and 64 output channels, and brings
// tensors to its order of dims before and after.
func convolutions(w *work) float64 {
	g, ok := w.convolved(false)
	if ok && depthwise(w.Node) {
		return 7.5*micro + w.depthwise(w.Out, 2.5+0.05*g.window, 5+0.6*g.window)
	}
	rate, passes := 0.8, 1.06
	if w.half {
		rate, passes = 0.35, 0.8
	}
	t := w.arithmetic(rate)
	if ok {
		t *= min(30, padded(g.in, 32)*padded(g.out, 64))
		if g.dims == 3 {
			passes *= 1.7
		}
		if g.groups > 1 {
			passes *= 2.5
		}
	}
	return 7.5*micro + t + w.traffic(passes, 1.1)
}

func convolutionsBackward(w *work) float64 {
	g, ok := w.convolved(true)
	if ok && depthwise(w.Node) {
		return 10*micro + w.depthwise(w.In, single(w.half, 3+0.35*g.window, 3+0.05*g.window), 15+2.1*g.window)
	}
	rate, passes := 0.405, 2.57
	if w.half {
		rate, passes = 0.33, 2.0
	}
	t := w.arithmetic(rate)
	if ok {
		t *= min(22, padded(g.in, 32)*padded(g.out, 64))
		if g.dims == 3 {
			t, passes = 1.27*t, 1.56*passes
		}
		if g.groups > 1 {
			t *= 3.8
		}
	}
	return 23*micro + max(t, w.traffic(passes, 1.66))
}

// depthwise is the time of convolutions of single channels: of PyTorch's own kernels so
// many picoseconds on an H200 for each element of the first tensor, the convolution's
// result or its gradient, whatever their type; of cuDNN's that of passes over the memory.
func (w *work) depthwise(of []program.View, passes, ps float64) float64 {
	if w.Unit == program.Convolution || len(of) == 0 {
		return w.memory(0.75 / passes)
	}
	return numel(of[0].Shape) * ps * 1e-12 * 67e12 / w.m.Device.FP32
}

// traffic is the time of passes over what is read and written, and of others over the
// workspaces, at three quarters of the bandwidth.
func (w *work) traffic(passes, workspaces float64) float64 {
	return (float64(w.Traffic)*passes + 2*float64(w.Scratch)*workspaces) / (0.75 * w.m.Device.Bandwidth)
}

// single is a in single precision, b in half.
func single(half bool, a, b float64) float64 {
	if half {
		return b
	}
	return a
}
