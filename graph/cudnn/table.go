package cudnn

import (
	_ "embed"
	"encoding/binary"
	"math/bits"
	"slices"
	"sort"
)

// h200 holds workspaces of 437,000 convolutions: for each of 113,000 pairs
// of geometry and type some batches with the bytes of the three passes, from
// which the others follow. They are what cuDNN 9.19's heuristic (mode instant,
// the first plan that PyTorch's filter passes, benchmark off) says on an H200;
// what PyTorch 2.11 took from its allocator there was the same in all but four
// of 15,905 random contiguous convolutions (the four did not fit the card) and
// in 3,583 passes of 1,195 channels-last ones. The geometries are those of
// torchvision's, timm's and transformers' models at several resolutions, a
// grid around them and random ones. scripts/conv/conv_workspace.py makes the file and says how; November 2026.
//
//	uint32 blocks, per block uint32 its place after these, then the blocks: 64
//	groups each, sorted by key; per group, in uvarints but for bytes: the
//	columns of its key (see key) that differ from the group before, as bits, and
//	those columns, in a block's first group all of them; its samples' length and
//	samples: their number; per sample the batch's increment and per pass a byte,
//	the base's index in bases plus one (0 none at all, 255 unknown), and unless
//	it is 0 or 255 the rest.
//
// A process asks about a few dozen geometries: nothing is decoded but the
// blocks that a search meets.
//
//go:embed h200.table
var h200 []byte

// blockGroups is the number of groups of a block, the last has fewer.
const blockGroups = 64

// A table is the embedded file.
type table struct {
	places, blocks []byte
}

// embedded is the file as a table.
func embedded() *table {
	n := 4 * binary.LittleEndian.Uint32(h200)
	return &table{h200[4 : 4+n], h200[4+n:]}
}

// numBlocks returns the number of blocks.
func (t *table) numBlocks() int { return len(t.places) / 4 }

// block returns the groups of block i.
func (t *table) block(i int) groupReader {
	return groupReader{rest: t.blocks[binary.LittleEndian.Uint32(t.places[4*i:]):], left: blockGroups}
}

// A groupReader decodes the groups of a block, one after the other.
type groupReader struct {
	rest    []byte
	left    int
	key     key
	samples []byte
}

// next decodes a group; false at the end.
func (r *groupReader) next() bool {
	if r.left == 0 || len(r.rest) == 0 {
		return false
	}
	r.left--
	for differ := r.uvarint(); differ > 0; differ &= differ - 1 {
		r.key[bits.TrailingZeros64(differ)] = int32(r.uvarint())
	}
	n := r.uvarint()
	r.samples, r.rest = r.rest[:n], r.rest[n:]
	return true
}

func (r *groupReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	r.rest = r.rest[n:]
	return v
}

const keyLen = 17

// A key is a geometry and type, without the batch: type and layout, C H W K R
// S, strides, pads, dilations, groups, transposed, output pads.
type key [keyLen]int32

// typeCodes are the file's numbers of types; channelsLast is added for the
// layout. Channels-last convolutions with TF32 forbidden were not measured and
// share the entries of contiguous ones.
var typeCodes = [numTypes]int32{TF32: 0, Float16: 1, BFloat16: 2, Float32: 3}

const channelsLast = 4

// unknown is the base of a pass that cuDNN had no answer for.
const unknown = -2

func (c *Conv) key() key {
	ty := typeCodes[c.Type]
	if c.ChannelsLast && c.Type != Float32 {
		ty += channelsLast
	}
	t := int32(0)
	if c.Transposed {
		t = 1
	}
	k := key{0: ty, 14: t}
	for i, v := range [...]int64{1: c.C, c.H, c.W, c.K, c.R, c.S, c.StrideH, c.StrideW, c.PadH, c.PadW, c.DilH, c.DilW, c.Groups, 15: c.OutPadH, c.OutPadW} {
		if i != 0 && i != 14 {
			k[i] = int32(v) // Check bounds it
		}
	}
	return k
}

// conv returns the convolution of a key at a batch.
func (k *key) conv(n int64) Conv {
	ty := [...]Type{TF32, Float16, BFloat16, Float32}[k[0]%channelsLast]
	v := func(i int) int64 { return int64(k[i]) }
	return Conv{N: n, C: v(1), H: v(2), W: v(3), K: v(4), R: v(5), S: v(6), StrideH: v(7), StrideW: v(8), PadH: v(9), PadW: v(10), DilH: v(11), DilW: v(12),
		Groups: v(13), Transposed: k[14] == 1, OutPadH: v(15), OutPadW: v(16), Type: ty, ChannelsLast: k[0] >= channelsLast}
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

// find returns the encoded samples of a key's group, nil where there is none.
func (t *table) find(k *key) []byte {
	after := sort.Search(t.numBlocks(), func(i int) bool {
		first := t.block(i)
		first.next()
		return compare(&first.key, k) > 0
	})
	if after == 0 {
		return nil
	}
	for r := t.block(after - 1); r.next(); {
		if c := compare(&r.key, k); c >= 0 {
			if c == 0 {
				return r.samples
			}
			break
		}
	}
	return nil
}

// A sample is one batch of a group.
type sample struct {
	batch int64
	pass  [numPasses]regime
}

// A regime is one formula of the workspace over a range of batches: base(batch)
// + rest, where the base is the operands that the kernel keeps in another
// layout.
type regime struct {
	base  int8 // index of bases; -1: nothing at all; -2: unknown
	rest  int64
	bytes int64
}

// bases are the sums of operands found in workspaces, for x, w and y: 0 none,
// 1 a copy, 2 a copy with channels padded to 16 bytes.
var bases = [...][3]int8{{1, 1, 1}, {1, 0, 1}, {1, 1, 0}, {0, 1, 1}, {1, 0, 0}, {0, 0, 1}, {0, 1, 0}, {0, 0, 0},
	{2, 2, 2}, {2, 1, 2}, {2, 2, 0}, {2, 0, 2}, {2, 0, 0}, {2, 2, 1}, {1, 2, 2}, {1, 2, 1}, {2, 1, 0}, {2, 0, 1}, {2, 1, 1}, {1, 1, 2}, {1, 0, 2}, {0, 2, 2}}

// baseBytes returns the bytes of base i for c.
func baseBytes(i int8, c *Conv) int64 {
	if i < 0 {
		return 0
	}
	s, n := c.copyBytes(), int64(0)
	for j, how := range bases[i] {
		n += s[j][how]
	}
	return n
}

// copyBytes returns, for x, w and y, the bytes of no copy, of a copy and of one
// with padded channels.
func (c *Conv) copyBytes() [3][3]int64 {
	x, w, y := c.tensorBytes()
	size := types[c.Type].size
	up := func(n int64) int64 { return (n*size + 15) / 16 * 16 / size }
	p, q := c.OutSize()
	d, t, o := c.Depth.sizes(c.Transposed)
	g := c.Groups
	wp := up(c.C/g) * up(c.K/g) * g
	return [3][3]int64{{0, x, c.N * up(c.C) * d * c.H * c.W * size}, {0, w, wp * t * c.R * c.S * size}, {0, y, c.N * up(c.K) * o * p * q * size}}
}

// samples decodes the samples of the key's group.
func (k *key) samples(b []byte) []sample {
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

// A Predictor predicts workspaces. It is safe for concurrent use.
type Predictor struct {
	t     *table
	blind bool // tests: predict as if the table lacked the geometry
}

// NewPredictor returns a Predictor on the embedded table.
func NewPredictor() *Predictor { return &Predictor{t: embedded()} }

// small is the size below which a workspace is a constant, in bytes.
const small int64 = 4096

// Workspace predicts the bytes that pass p of c requests. A Conv that fails
// Check gets the zero Estimate.
func (pr *Predictor) Workspace(c Conv, p Pass) Estimate {
	if c.Check() != nil || p >= numPasses {
		return Estimate{}
	}
	if c.OwnDepthwise() {
		return Estimate{Source: Rule}
	}
	if c.ChannelsLast && c.Groups > 1 && c.Groups == c.C {
		c.Type = c.Type.rounded()
	}
	k := c.key()
	guess := func() Estimate { return c.predict(&k, p) }
	b := pr.t.find(&k)
	if b == nil || pr.blind || c.Depth.In > 0 {
		return guess()
	}
	known := slices.DeleteFunc(k.samples(b), func(s sample) bool { return s.pass[p].base == unknown })
	if len(known) == 0 {
		return guess()
	}
	return c.interpolate(&k, known, p, guess)
}

// interpolate predicts the bytes at c's batch from the samples of its geometry;
// predicted is the prediction of the trees without them. The kernel may change with
// the batch: the samples around it bound c's workspace.
func (c *Conv) interpolate(k *key, known []sample, p Pass, predicted func() Estimate) Estimate {
	i := sort.Search(len(known), func(i int) bool { return known[i].batch >= c.N })
	if i < len(known) && known[i].batch == c.N {
		n := known[i].pass[p].bytes
		return Estimate{Bytes: n, Bound: n, Source: Measured}
	}
	near, guess := known[max(i-1, 0):min(i+1, len(known))], predicted()
	e := Estimate{Bytes: c.between(k, near, p), Source: Formula}
	other := max(e.Bytes, guess.Bytes, guess.Other)
	for _, s := range near {
		other = max(other, s.at(c, p))
	}
	if other > e.Bytes+e.Bytes/64+small {
		e.Other = other
		if !slices.Contains(gridBatches, c.N) { // other batches are in the table only if the samples do not imply them
			e.Bytes = guess.Bytes
		}
	}
	e.Bound = max(other, min(guess.Bound, c.bound(p, e.Bytes)))
	e.Bound += e.Bound / 64
	return e
}

// between returns the bytes at c's batch from the samples around it, or from the
// nearest one beyond the ends. A regime is affine in the batch: two samples of one
// regime determine those between them exactly. Otherwise a family that fits both
// is their kernel, and c's; where two kernels ran, c's is the tree's choice if it
// fits either sample, and that of the nearer batch if not.
func (c *Conv) between(k *key, near []sample, p Pass) int64 {
	lo, hi := near[0], near[len(near)-1]
	a, b := lo.pass[p], hi.pass[p]
	if a.base == b.base && a.rest == b.rest && len(near) > 1 {
		return lo.at(c, p)
	}
	if n, ok := c.sameKernel(k, near, p); ok {
		return n
	}
	switch {
	case a.base == b.base && a.base >= 0 && a.bytes >= small && len(near) > 1:
		return a.bytes + (b.bytes-a.bytes)*(c.N-lo.batch)/(hi.batch-lo.batch)
	case c.N*c.N < lo.batch*hi.batch:
		return lo.at(c, p)
	}
	return hi.at(c, p)
}

// sameKernel returns the bytes of a family that fits all samples, or of the
// tree's if that fits one, corrected by the family's error there.
func (c *Conv) sameKernel(k *key, near []sample, p Pass) (bytes int64, ok bool) {
	f := c.frame(p)
	g := c.grove(k, f.pass)
	likely := g.vote(&f).likely
	misses := func(a family, s *sample) int64 {
		at := f
		at.n = s.batch
		return s.pass[p].bytes - a.bytes(&at)
	}
	tells := func(a family) func(sample) bool {
		return func(s sample) bool { d := misses(a, &s); return max(d, -d) <= allocBlock }
	}
	all := func(a family) bool {
		return slices.IndexFunc(near, func(s sample) bool { return !tells(a)(s) }) < 0
	}
	a, at := likely, slices.IndexFunc(near, tells(likely))
	if i := slices.IndexFunc(g.families, all); len(near) > 1 && i >= 0 && !all(likely) {
		a, at = g.families[i], 0
	}
	if at < 0 {
		return 0, false
	}
	return a.bytes(&f) + misses(a, &near[at]), true
}

// allocBlock is the allocator's rounding, in bytes.
const allocBlock = 512

// at applies the sample's regime to another batch. The rest is proportional to
// the weight, as partial sums are, or grows with the batch.
func (s *sample) at(c *Conv, p Pass) int64 {
	r := s.pass[p]
	if r.base < 0 || r.bytes < small {
		return r.bytes
	}
	if _, w, _ := c.tensorBytes(); r.rest > maxSums*w*4/types[c.Type].size+maxRest {
		return baseBytes(r.base, c) + r.rest/s.batch*c.N
	}
	return baseBytes(r.base, c) + r.rest
}

const (
	maxSums = 352       // most partial sums of a weight (scripts/conv/conv_families.py)
	maxRest = 128 << 20 // largest rest that depends on neither weight nor batch
)

// bound is the largest usual workspace: all operands in another layout with
// padded channels, and for the weight gradient partial sums as well.
func (c *Conv) bound(p Pass, n int64) int64 {
	s := c.copyBytes()
	all := small
	for _, t := range s {
		all += max(t[1], t[2])
	}
	if p == WeightGrad {
		all += 20*s[1][1] + 32<<20
	}
	return max(all, n+n/64)
}
