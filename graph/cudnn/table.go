package cudnn

import (
	"bytes"
	"compress/flate"
	_ "embed"
	"encoding/binary"
	"io"
	"math"
	"sort"
	"sync"
)

// h200 holds the workspaces of about 357,000 convolutions: for each geometry
// and type the batches that were asked for, with the bytes of the three
// passes. They are what cuDNN 9.19's heuristic (mode instant, the first plan
// that can be built, as PyTorch takes it with benchmark off) says on an H200;
// on 15,905 random convolutions it agrees with the bytes that PyTorch 2.11 took
// from its allocator in all but four (which were larger than the card). The
// geometries are those of torchvision's, timm's and transformers' models and a
// grid. scripts/conv_table.py makes the file (cuDNN 9.19, an H200's device
// description; November 2026).
//
//	uint32 groups, uint32 bytes, groups * uint32 offset, then per group
//	17 uvarints: type, C H W K R S, strides, pads, dilations, groups,
//	transposed, output pads; uvarint samples; per sample uvarint batch
//	increment and per pass a base (see bases; 0 none at all, 255 unknown)
//	and the uvarint rest.
//
//go:embed h200.flate
var h200 []byte

// A table is the embedded file, decompressed.
type table struct {
	index []byte // offsets
	data  []byte
	n     int
}

// loaded decompresses the table at first use.
var loaded = sync.OnceValue(func() *table {
	raw, err := io.ReadAll(flate.NewReader(bytes.NewReader(h200)))
	if err != nil {
		panic("cudnn: the embedded table is broken: " + err.Error())
	}
	n := int(binary.LittleEndian.Uint32(raw))
	return &table{raw[8 : 8+4*n], raw[8+4*n:], n}
})

const keyLen = 17

// A key is a geometry and type, without the batch.
type key [keyLen]int64

// typeCodes are the file's numbers of types; channels-last tensors have
// numbers of their own, half types the same.
var (
	typeCodes = [numTypes]int64{TF32: 0, Float16: 1, BFloat16: 2, Float32: -1}
	lastCodes = [numTypes]int64{TF32: 3, Float16: 5, BFloat16: 5, Float32: -1}
)

func (c *Conv) key() key {
	t := int64(0)
	if c.Transposed {
		t = 1
	}
	code := typeCodes[c.Type]
	if c.ChannelsLast {
		code = lastCodes[c.Type]
	}
	return key{code, c.C, c.H, c.W, c.K, c.R, c.S, c.StrideH, c.StrideW, c.PadH, c.PadW, c.DilH, c.DilW, c.Groups, t, c.OutPadH, c.OutPadW}
}

// conv is the convolution of a key at a batch.
func (k *key) conv(n int64) Conv {
	ty := [...]Type{TF32, Float16, BFloat16, TF32, Float16, BFloat16}[k[0]]
	return Conv{N: n, C: k[1], H: k[2], W: k[3], K: k[4], R: k[5], S: k[6], StrideH: k[7], StrideW: k[8], PadH: k[9], PadW: k[10], DilH: k[11], DilW: k[12],
		Groups: k[13], Transposed: k[14] == 1, OutPadH: k[15], OutPadW: k[16], Type: ty, ChannelsLast: k[0] > 2}
}

// at returns the key of group i and what follows it.
func (t *table) at(i int) (k key, body []byte) {
	b := t.data[binary.LittleEndian.Uint32(t.index[4*i:]):]
	for j := range k {
		v, n := binary.Uvarint(b)
		k[j], b = int64(v), b[n:]
	}
	return k, b
}

func compare(a, b *key) int {
	for i := range a {
		if a[i] != b[i] {
			if a[i] < b[i] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// find returns the group of a key, or -1.
func (t *table) find(k *key) int {
	i := sort.Search(t.n, func(i int) bool {
		g, _ := t.at(i)
		return compare(&g, k) >= 0
	})
	if i < t.n {
		if g, _ := t.at(i); g == *k {
			return i
		}
	}
	return -1
}

// A sample is one batch of a group.
type sample struct {
	batch int64
	pass  [numPasses]regime
}

// A regime is what a kernel asks for: the operands that it keeps in another
// layout, and a rest. Bytes are base(batch) + rest.
type regime struct {
	base  int8 // index of bases; -1: nothing at all; -2: unknown
	rest  int64
	bytes int64
}

// bases are the sums of operands found in workspaces: x, w, y.
var bases = [...][3]int64{{1, 1, 1}, {1, 0, 1}, {1, 1, 0}, {0, 1, 1}, {1, 0, 0}, {0, 0, 1}, {0, 1, 0}, {0, 0, 0}}

// baseBytes are the bytes of base i for c.
func baseBytes(i int8, c *Conv) int64 {
	if i < 0 {
		return 0
	}
	x, w, y := c.tensorBytes()
	b := bases[i]
	return b[0]*x + b[1]*w + b[2]*y
}

// samples decodes a group.
func (t *table) samples(i int) []sample {
	k, b := t.at(i)
	next := func() int64 {
		v, n := binary.Uvarint(b)
		b = b[n:]
		return int64(v)
	}
	out := make([]sample, next())
	batch := int64(0)
	for j := range out {
		batch += next()
		out[j].batch = batch
		c := k.conv(batch)
		for p := range out[j].pass {
			r := &out[j].pass[p]
			r.base = int8(b[0]) - 1
			if b[0] == 255 {
				r.base = -2
			}
			b = b[1:]
			if r.base >= 0 {
				r.rest = next()
				r.bytes = baseBytes(r.base, &c) + r.rest
			}
		}
	}
	return out
}

// A Predictor predicts workspaces and remembers which measured geometry is
// nearest to one that was not measured. It is not safe for concurrent use.
type Predictor struct {
	t     *table
	near  map[key]int
	class map[[6]int64][]int32 // groups by class
	keys  []key
	blind bool // tests: a geometry is predicted as if the table lacked it
}

// NewPredictor returns a Predictor on the embedded table.
func NewPredictor() *Predictor { return &Predictor{t: loaded(), near: map[key]int{}} }

// small is the size below which a workspace is a constant, in bytes.
const small = 4096

// Workspace predicts the bytes that pass p of c requests. A Conv that fails
// Check gets the zero Estimate.
func (pr *Predictor) Workspace(c Conv, p Pass) Estimate {
	if c.Check() != nil || p >= numPasses {
		return Estimate{}
	}
	if c.Groups > 1 && c.Groups == c.C && c.K%c.C == 0 && c.Type != Float16 && !c.ChannelsLast || c.Type == Float32 {
		return Estimate{Source: Rule}
	}
	k := c.key()
	if i := pr.t.find(&k); i >= 0 && !pr.blind {
		if n, exact, ok := interpolate(pr.t.samples(i), &c, p); ok {
			e := Estimate{Bytes: n, Bound: n, Source: Measured}
			if !exact {
				e.Source = Formula
				e.Bound = max(n, c.bound(p, n))
			}
			return e
		}
	}
	return pr.neighbour(c, &k, p)
}

// interpolate gives the bytes at c's batch from the samples of its geometry:
// a regime is affine in the batch, so that two samples of one regime give
// those between them exactly.
func interpolate(s []sample, c *Conv, p Pass) (bytes int64, exact, ok bool) {
	known := s[:0:0]
	for _, x := range s {
		if x.pass[p].base != -2 {
			known = append(known, x)
		}
	}
	if len(known) == 0 {
		return 0, false, false
	}
	i := sort.Search(len(known), func(i int) bool { return known[i].batch >= c.N })
	switch {
	case i < len(known) && known[i].batch == c.N:
		return known[i].pass[p].bytes, true, true
	case i == 0:
		return known[0].pass[p].of(c), false, true
	case i == len(known):
		return known[i-1].pass[p].of(c), false, true
	}
	lo, hi := &known[i-1], &known[i]
	a, b := lo.pass[p], hi.pass[p]
	if a.base == b.base && a.base >= 0 && a.bytes >= small {
		if a.rest == b.rest {
			return a.of(c), false, true
		}
		return a.bytes + (b.bytes-a.bytes)*(c.N-lo.batch)/(hi.batch-lo.batch), false, true
	}
	if c.N*c.N < lo.batch*hi.batch {
		return a.of(c), false, true
	}
	return b.of(c), false, true
}

// of applies a regime to another batch.
func (r regime) of(c *Conv) int64 {
	if r.base < 0 || r.bytes < small {
		return r.bytes
	}
	return baseBytes(r.base, c) + r.rest
}

// neighbour takes the regime of the nearest measured geometry.
func (pr *Predictor) neighbour(c Conv, k *key, p Pass) Estimate {
	i, ok := pr.near[*k]
	if !ok {
		i = pr.nearest(k)
		pr.near[*k] = i
	}
	x, w, y := c.tensorBytes()
	if i < 0 {
		n := x + w + y + 147
		return Estimate{Bytes: n, Bound: c.bound(p, n), Source: Formula}
	}
	g := pr.keys[i]
	d := g.conv(c.N)
	n, _, _ := interpolate(pr.t.samples(i), &d, p)
	if n >= small {
		r := regimeOf(n, &d)
		if r.rest > small { // partial sums: as many weights
			_, dw, _ := d.tensorBytes()
			if m := float64(r.rest) / float64(max(dw, 1)); m < 400 {
				r.rest = int64(m * float64(w))
			}
		}
		n = baseBytes(r.base, &c) + r.rest
	}
	b := c.bound(p, n)
	if b += b / 2; p == WeightGrad {
		b += b / 3
	}
	return Estimate{Bytes: n, Bound: b + 36<<20, Source: Neighbour} // too low for one in a hundred random convolutions (TestRandomConvolutions)
}

// regimeOf finds the base that leaves the least rest.
func regimeOf(n int64, c *Conv) regime {
	best := regime{base: int8(len(bases) - 1), rest: n, bytes: n}
	for i := range bases {
		if rest := n - baseBytes(int8(i), c); rest >= 0 && rest < best.rest {
			best = regime{int8(i), rest, n}
		}
	}
	return best
}

// bound is the largest usual workspace: all operands in another layout, and
// for the weight gradient partial sums as well.
func (c *Conv) bound(p Pass, n int64) int64 {
	x, w, y := c.tensorBytes()
	all := x + w + y + small
	if p == WeightGrad {
		all += 20 * w
	}
	return max(all, n)
}

// classOf groups geometries between which regimes carry over.
func classOf(k *key) [6]int64 {
	area := k[5] * k[6]
	switch {
	case area > 25:
		area = 49
	case area > 9:
		area = 25
	}
	groups := min(k[13], 2)
	if groups > 1 && k[13] == k[1] {
		groups = 3 // depthwise
	}
	return [6]int64{k[0], area, k[7], k[14], groups, min(k[11], 2)}
}

// nearest returns the group of the same class whose channels and image are
// most alike, or -1.
func (pr *Predictor) nearest(k *key) int {
	if pr.class == nil {
		pr.class = map[[6]int64][]int32{}
		pr.keys = make([]key, pr.t.n)
		for i := range pr.keys {
			pr.keys[i], _ = pr.t.at(i)
			cl := classOf(&pr.keys[i])
			pr.class[cl] = append(pr.class[cl], int32(i))
		}
	}
	best, least := -1, math.Inf(1)
	for _, i := range pr.class[classOf(k)] {
		if pr.blind && pr.keys[i] == *k {
			continue
		}
		if d := distance(&pr.keys[i], k); d < least {
			best, least = int(i), d
		}
	}
	return best
}

// distance compares channels, image size and what kernels care about most,
// whether channels are multiples of 4 and 8.
func distance(a, b *key) float64 {
	ratio := func(x, y int64) float64 { return math.Abs(math.Log2(float64(x) / float64(y))) }
	d := ratio(a[1], b[1]) + ratio(a[4], b[4]) + 0.5*ratio(a[2]*a[3], b[2]*b[3])
	if align(a[1]) != align(b[1]) {
		d += 1.5
	}
	if align(a[4]) != align(b[4]) {
		d += 1.5
	}
	return d
}

func align(n int64) int {
	switch {
	case n%8 == 0:
		return 0
	case n%4 == 0:
		return 1
	}
	return 2
}
