package cudnn

import (
	_ "embed"
	"encoding/binary"
	"slices"
	"sync"
)

// h200Forest tells the formula of a workspace from the geometry, for
// convolutions that are not in h200: decision trees, which vote, for each
// domain, kind of type and computation, grown on convolutions of usual and of
// odd extents that cuDNN 9.19 was asked about on an H200.
// scripts/conv/conv_forest.py makes the file and says how.
//
//	uint32 groves, uint32 length of each, and the groves, in uvarints and bytes:
//	families (base, kind, number and constant); per tree its length and nodes in
//	preorder (see tree), which are walked where they lie: decoding all of them
//	would take longer than the whole prediction of a step
//
//go:embed h200.forest
var h200Forest []byte

// h200Trees are the same for images, grown on 2,760,000 convolutions with the
// extents most frequent in networks (onGrid), by scripts/conv/conv_families.py.
//
//go:embed h200.trees
var h200Trees []byte

// A frame is a convolution as cuDNN computes it: x[n,c,h,w] * w[k,c/g,r,s] ->
// y[n,k,p,q]. A transposed convolution's input is y, so that its forward pass
// is a data gradient.
type frame struct {
	n, c, h, w, k, p, q, r, s, g int64
	stride, dil, pad             int64
	strideW, padW, dilW          int64
	d, o, t, strideD, padD       int64 // lengths of x, y and w along the third dim, which h, p and r include; 1 without one
	size                         int64 // bytes of an element
	half, last                   bool  // float16; channels last
	pass                         Pass  // what is computed: y, x or w
}

func (c *Conv) frame(pass Pass) frame {
	p, q := c.OutSize()
	d, t, o := c.Depth.sizes(c.Transposed)
	h := c.H * d
	p *= o
	f := frame{n: c.N, c: c.C, h: h, w: c.W, k: c.K, p: p, q: q, r: c.R * t, s: c.S, g: c.Groups, stride: c.StrideH, dil: max(c.DilH, c.DilW), pad: c.PadH,
		strideW: c.StrideW, padW: c.PadW, dilW: c.DilW, d: d, o: o, t: t, strideD: max(c.Depth.Stride, 1), padD: c.Depth.Pad,
		size: types[c.Type].size, half: c.Type == Float16, last: c.ChannelsLast && c.Type != Float32, pass: pass}
	if c.Transposed {
		f.c, f.h, f.w, f.k, f.p, f.q, f.d, f.o = c.K, p, q, c.C, h, c.W, o, d
		f.pass = [numPasses]Pass{DataGrad, Forward, WeightGrad}[pass]
	}
	return f
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

func roundUp(a, b int64) int64 { return ceilDiv(a, b) * b }

// numFeatures is the number of features; tree.feature holds their indices.
const numFeatures = 62

// features computes the features; equal to features in
// scripts/conv/conv_forest.py.
func (f *frame) features() [numFeatures]int64 {
	low := func(v int64) int64 { return min(64, v&-v) }
	flag := func(b bool) int64 {
		if b {
			return 1
		}
		return 0
	}
	tiles := func(m, k, a, b int64) int64 { return ceilDiv(m, a) * ceilDiv(k, b) }
	hw, pq, cg, kg, rs := f.h*f.w, f.p*f.q, f.c/f.g, f.k/f.g, f.r*f.s
	n := f.n
	v := [numFeatures]int64{n, f.c, f.k, hw, pq, n * pq, n * hw, f.r, f.s, rs, f.stride, f.dil, f.g, cg, kg, low(cg), low(kg), low(hw), low(pq), f.w, f.q,
		tiles(n*pq, f.k, 128, 128), tiles(n*hw, f.c, 128, 128), tiles(cg, kg, 128, 128) * rs, tiles(cg*rs, kg, 128, 128), cg * rs, kg * rs,
		flag(f.pad*2+1 == f.r), cg * kg * rs, n * pq * cg * kg * rs / 1000, n * pq / (cg * rs), n * pq * 1024 / kg,
		cg * 1024 / kg, tiles(n*pq, f.k, 64, 64), tiles(n*hw, f.c, 64, 64), tiles(n*pq, f.k, 128, 128) % multiprocessors, tiles(cg, kg, 64, 64) * rs, flag(f.half), f.pad,
		f.strideW, f.padW, flag(f.padW*2+1 == f.s), f.h / f.d, f.p / f.o, f.d, f.o, f.t, f.strideD, f.padD, f.dilW, flag(hw == pq), low(n), low(f.w), low(f.q),
		n * hw * f.c, n * pq * f.k, tiles(n*pq, kg, 256, 128), tiles(n*hw, cg, 256, 128), ceilDiv(cg*rs, 128), ceilDiv(kg*rs, 128),
		ceilDiv(n*pq, 128) / tiles(kg, cg*rs, 128, 128), tiles(kg, cg*rs, 256, 128)}
	for i := range v {
		v[i] = int64(float32(v[i])) // the trees were grown on float32 values
	}
	return v
}

// multiprocessors of an H200.
const multiprocessors = 132

// A family is a formula of a workspace: a base (operands in another layout, or
// transforms), a rest and a constant.
type family struct {
	base, kind   uint8
	number, plus int64
}

// The kinds of rests.
const (
	nothing = iota
	parts   // number of partial sums of the weight in float32
	mib     // number of MiB
	streamK // tiles of the last wave that several thread blocks add up
	parts32 // partial sums with input channels padded to 32
	parts64 // and with input and output channels padded to 64
	parts128
	partsGEMM // of the weight as a matrix with rows padded to 256 and columns to 128
)

var (
	tiles    = [...][2]int64{{128, 128}, {128, 64}, {256, 128}, {256, 64}, {64, 64}, {128, 256}, {64, 128}, {64, 256}}
	clusters = [...][2]int64{{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {1, 4}, {4, 1}, {2, 2}, {1, 5}, {5, 1}, {1, 6}, {6, 1}, {1, 7}, {7, 1}, {1, 8}, {8, 1},
		{2, 4}, {4, 2}, {2, 3}, {3, 2}, {2, 8}, {8, 2}, {4, 4}}
	splits = [...]int64{7, 14, 24, 48, 100} // least iterations of a split
)

// bytes returns the workspace of the family's kernel.
func (a family) bytes(f *frame) int64 {
	n := f.baseBytes(a.base) + a.plus
	cg, kg, rs := f.c/f.g, f.k/f.g, f.r*f.s
	switch a.kind {
	case parts:
		n += a.number * f.k * cg * rs * 4
	case parts32:
		n += a.number * roundUp(cg, 32) * f.k * rs * 4
	case parts64:
		n += a.number * roundUp(cg, 64) * roundUp(kg, 64) * f.g * rs * 4
	case parts128:
		n += a.number * roundUp(cg, 128) * roundUp(kg, 128) * f.g * rs * 4
	case partsGEMM:
		n += a.number * roundUp(kg, 256) * roundUp(cg*rs, 128) * f.g * 4
	case mib:
		n += a.number << 20
	case streamK:
		n += f.streamK(a.number)
	}
	return n
}

// The bases of families, by their number in the trees; in the order of bases in
// scripts/conv/conv_families.py.
const (
	noBase         uint8 = iota // no bytes
	copies                      // copies of x, w and y into channels-last order
	paddedCopies                // and with padded channels, where a kernel needs that
	paddedCopiesXW              // y's alone not padded
	paddedCopiesWY              // x's alone not padded
	onlyX                       // operands as they are
	onlyW
	onlyY
	allXW
	allXY
	allWY
	allXWY
	copiesXY // copies of some into channels-last order
	paddedXY // operands with padded channels
	paddedXWY
	paddedXW
	paddedWY
	paddedX
	paddedY
	paddedW
	copiesTwoW // copies, two of w
	groupsXWY  // channels of a group padded to one power of two
	groupsXY
	eightGroups   // padded operands, eight groups at a time
	oneGroup      // and one
	winograd4     // Winograd's transforms for 4 x 4 outputs, w in float32
	winograd4Half // and w in 16 bits
	winograd2     // for 2 x 2 outputs
	semaphores32  // semaphores of tiles of 32 x 32 channels
	semaphores64  // and of 64 x 64
	sumsY1        // padded copies and partial sums of y, and 2, 4, 8 of them
	sumsY2
	sumsY4
	sumsY8
	sumsX1 // and of x
	sumsX2
	sumsX4
	sumsX8
	sumsDepthwise // partial sums of each image's weight gradient, depthwise
	fourierY      // Fourier transforms for y, x and w
	fourierX
	fourierW
	sumsImages    // each image's weight gradient
	windowIndex   // an index of the window's elements
	fourierTiles  // Fourier transforms of tiles of 32 x 32, two of an image at a time
	winograd4Of16 // winograd4 of images padded to 16
)

// baseBytes returns the bytes of a base; equal to bases in
// scripts/conv/conv_families.py.
func (f *frame) baseBytes(base uint8) int64 {
	hw, pq, rs, cg, kg, n, size := f.h*f.w, f.p*f.q, f.r*f.s, f.c/f.g, f.k/f.g, f.n, f.size
	al := 16 / size
	x, w, y := n*f.c*hw*size, f.k*cg*rs*size, n*f.k*pq*size
	xp, yp, wp := n*roundUp(f.c, al)*hw*size, n*roundUp(f.k, al)*pq*size, roundUp(cg, al)*roundUp(kg, al)*f.g*rs*size // padded channels
	xn, wn, yn := x, w, y                                                                                             // copies into channels-last order
	if f.last || hw == 1 || f.c == 1 {
		xn = 0
	}
	if f.last || rs == 1 || cg == 1 {
		wn = 0
	}
	if f.last || pq == 1 || f.k == 1 {
		yn = 0
	}
	px, pw, py := xn, wn, yn // copies, padded where channels need it
	if cg%al != 0 {
		px, pw = xp, wp
	}
	if kg%al != 0 {
		py, pw = yp, wp
	}
	switch base {
	case noBase:
		return 0
	case copies:
		return xn + wn + yn
	case paddedCopies:
		return px + pw + py
	case paddedCopiesXW:
		return px + pw + yn
	case paddedCopiesWY:
		return xn + pw + py
	case onlyX:
		return x
	case onlyW:
		return w
	case onlyY:
		return y
	case allXW:
		return x + w
	case allXY:
		return x + y
	case allWY:
		return w + y
	case allXWY:
		return x + w + y
	case copiesXY:
		return xn + yn
	case paddedXY:
		return xp + yp
	case paddedXWY:
		return xp + wp + yp
	case paddedXW:
		return xp + wp
	case paddedWY:
		return wp + yp
	case paddedX:
		return xp
	case paddedY:
		return yp
	case paddedW:
		return wp
	case copiesTwoW:
		return xn + 2*wn + yn
	case groupsXWY, groupsXY: // channels of a group padded to one power of two
		u := int64(8)
		for u < max(cg, kg) && u < 4096 {
			u *= 2
		}
		n = n * u * f.g * (hw + pq) * size
		if base == groupsXWY {
			n += u * u * f.g * rs * size
		}
		return n
	case eightGroups: // eight groups at a time
		return (xp + wp + yp) * min(8, f.g) / f.g
	case oneGroup:
		return (xp + wp + yp) / f.g
	case winograd4: // Winograd's transforms for 4 x 4 outputs
		return f.transforms(n, 4) + f.k*cg*144
	case winograd4Half:
		return f.transforms(n, 4) + f.k*cg*72
	case winograd2:
		return f.transforms(n, 2) + f.k*cg*64
	case semaphores32: // semaphores
		return roundUp(f.c, 32) * roundUp(f.k, 32) * rs * f.g / 128
	case semaphores64:
		return roundUp(f.c, 64) * roundUp(f.k, 64) * rs * f.g / 16
	case sumsY1, sumsY2, sumsY4, sumsY8: // partial sums of y
		return px + pw + py + n*roundUp(f.k, 32)*pq*4<<(base-sumsY1)
	case sumsX1, sumsX2, sumsX4, sumsX8: // and of x
		return px + pw + py + n*roundUp(f.c, 32)*hw*4<<(base-sumsX1)
	case sumsDepthwise: // partial sums of each image's weight gradient, depthwise
		return n * roundUp(f.c, 32) * rs * 32
	case fourierY: // Fourier transforms for y, x and w
		return w + max(f.k*cg+n*f.c, n*f.k)*f.spectrum()
	case fourierX:
		return w + max(f.k*cg+n*f.k, n*f.c)*f.spectrum()
	case fourierW:
		return y + max(n*f.c+n*f.k, f.k*cg)*f.spectrum()
	case sumsImages: // each image's weight gradient
		return n * f.k * cg * rs * 4
	case fourierTiles: // Fourier transforms of tiles of 32 x 32, two of an image at a time
		return (f.k*cg + 2*n*(f.c+f.k)) * 4352
	case winograd4Of16:
		return f.transforms(roundUp(n, 16), 4) + f.k*cg*144
	default: // windowIndex
		return cg * rs * 4
	}
}

// spectrum returns the bytes of an image and of its Fourier transform.
func (f *frame) spectrum() int64 {
	n := int64(32)
	for n < max(f.h+f.r, f.w+f.s)-1 && n < 2048 {
		n *= 2
	}
	return n * (n/2 + 1) * 16
}

// transforms returns the bytes of n images' x and y in float32 after Winograd's
// transforms for m x m outputs of a 3 x 3 kernel.
func (f *frame) transforms(n, m int64) int64 {
	rows, cols := f.p, f.q
	if f.pass == DataGrad {
		rows, cols = f.h, f.w
	}
	return n * ceilDiv(rows, m) * ceilDiv(cols, m) * (m + 2) * (m + 2) * 4 * (f.c + f.k)
}

// streamK returns the bytes of partial sums of the last, partial wave of tiles,
// each of which several thread blocks compute along the inner dimension; equal
// to stream_k in scripts/conv/conv_families.py.
func (f *frame) streamK(i int64) int64 {
	least := splits[i%int64(len(splits))]
	i /= int64(len(splits))
	tile, cluster := tiles[i/int64(len(clusters))], clusters[i%int64(len(clusters))]
	inner := 128 / f.size
	var a, b, its int64
	switch f.pass {
	case Forward:
		a, b, its = ceilDiv(f.n*f.p*f.q, tile[0]), ceilDiv(f.k, tile[1]), f.r*f.s*ceilDiv(f.c, inner)
	case DataGrad:
		a, b, its = ceilDiv(f.n*f.h*f.w, tile[0]), ceilDiv(f.c, tile[1]), f.r*f.s*ceilDiv(f.k, inner)
	default:
		a, b, its = ceilDiv(f.k, tile[0]), f.r*f.s*ceilDiv(f.c, tile[1]), ceilDiv(f.n*f.p*f.q, inner)
	}
	// the thread blocks that run at once: whole clusters on the graphics
	// processing clusters of 18, 16 and 8 multiprocessors
	c := cluster[0] * cluster[1]
	wave := c * (6*(18/c) + 16/c + 8/c)
	all := roundUp(a, cluster[0]) * roundUp(b, cluster[1])
	rest, most, split, counter := all%wave, int64(1), int64(1), int64(0)
	if rest > 0 {
		most = wave / rest
	}
	if all > wave {
		least /= 2
		counter = 4
	}
	for p := int64(2); p <= 64; p *= 2 {
		if its >= p*least && most >= p {
			split = p
		}
	}
	if most > split && its*20 >= most*least*21 {
		split = most
	}
	split = ceilDiv(its, ceilDiv(its, split))
	switch {
	case split > 1: // plus semaphores
		sums := rest * split
		return sums*tile[0]*tile[1]*4 + 4*(sums-rest) + counter + 159
	case all >= 2*wave:
		return 131
	}
	return 0
}

// A grove is a set of trees grown on the same convolutions with different
// features, and the families that their leaves name.
type grove struct {
	families []family
	trees    []tree
}

// A tree is a decision tree, its nodes in preorder, each a byte: the feature
// plus one, 0 for a leaf, and boundMark where a bound follows, the number of
// the family that suffices for nearly all below the node (only in the first tree of a
// grove). Then a leaf has its family's number, and an inner node, in uvarints,
// the threshold and the length of the nodes of the child that follows: that of
// features at most the threshold. The other child comes after it.
type tree []byte

const boundMark = 64

// kindOf numbers the types that share trees.
var kindOf = map[int32]int{0: 0, 1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4}

// A domain is the class of convolutions that trees were grown on.
type domain int

const (
	twoDims domain = iota
	oneDim         // also images of one row
	threeDims
	numDomains
)

func (c *Conv) domain() domain {
	switch {
	case c.Depth.In > 0:
		return threeDims
	case c.H == 1 && c.R == 1:
		return oneDim
	}
	return twoDims
}

// numKinds is the number of kinds of types with trees.
const numKinds = 5

// groves are decoded one by one, at first use.
var groves, gridGroves = plant(h200Forest), plant(h200Trees)

func plant(raw []byte) []func() *grove {
	t := make([]func() *grove, binary.LittleEndian.Uint32(raw))
	at := 4 + 4*len(t)
	for i := range t {
		n := int(binary.LittleEndian.Uint32(raw[4+4*i:]))
		part := raw[at : at+n]
		at += n
		t[i] = sync.OnceValue(func() *grove { return decodeGrove(part) })
	}
	return t
}

// Extents of the convolutions that h200Trees were grown on.
var (
	gridImages   = []int64{4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224, 256}
	gridChannels = []int64{3, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 960, 1024, 1280, 2048}
	gridBatches  = []int64{1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}
)

// onGrid reports whether c is a convolution of images with those extents.
func (c *Conv) onGrid() bool {
	return c.domain() == twoDims && c.H == c.W && slices.Contains(gridImages, c.H) && slices.Contains(gridBatches, c.N) &&
		slices.Contains(gridChannels, c.C) && slices.Contains(gridChannels, c.K)
}

func decodeGrove(raw []byte) *grove {
	d := &decoder{raw}
	g := &grove{families: make([]family, d.next())}
	for i := range g.families {
		base, kind := d.raw[0], d.raw[1]
		d.raw = d.raw[2:]
		g.families[i] = family{base, kind, d.next(), d.next()}
	}
	for len(d.raw) > 0 {
		n := d.next()
		g.trees = append(g.trees, tree(d.raw[:n]))
		d.raw = d.raw[n:]
	}
	return g
}

// A decoder holds the unread rest of a grove.
type decoder struct{ raw []byte }

func (d *decoder) next() int64 {
	v, n := binary.Uvarint(d.raw)
	d.raw = d.raw[n:]
	return int64(v)
}

// A node is the first of a tree.
type node struct {
	feature   int // plus one, 0 for a leaf
	bound     int // family, -1 for none
	family    int // of a leaf
	threshold int64
	yes, no   tree // children
}

// root decodes the first node.
func (t tree) root() node {
	n := node{feature: int(t[0] % boundMark), bound: -1}
	marked := t[0] >= boundMark
	t = t[1:]
	if marked {
		n.bound, t = int(t[0]), t[1:]
	}
	if n.feature == 0 {
		n.family = int(t[0])
		return n
	}
	d := decoder{t}
	n.threshold = d.next()
	skip := d.next()
	n.yes, n.no = d.raw[:skip], d.raw[skip:]
	return n
}

// find returns the number of the predicted family and of the bound's.
func (t tree) find(v *[numFeatures]int64) (likely, bound int) {
	bound = -1
	for {
		n := t.root()
		if n.bound >= 0 {
			bound = n.bound
		}
		switch {
		case n.feature == 0:
			return n.family, bound
		case v[n.feature-1] <= n.threshold:
			t = n.yes
		default:
			t = n.no
		}
	}
}

// A ballot is the result of a vote of trees on a convolution.
type ballot struct {
	likely family  // family of the bytes with most votes
	votes  int     // votes for it
	bytes  []int64 // bytes by each tree's family
	bound  family
}

// vote lets the trees vote on the bytes. The first tree breaks ties; the bound
// is its own.
func (g *grove) vote(f *frame) ballot {
	var b ballot
	v := f.features()
	var named []family
	for i, t := range g.trees {
		likely, bound := t.find(&v)
		if i == 0 {
			b.bound = g.families[bound]
		}
		named = append(named, g.families[likely])
		b.bytes = append(b.bytes, named[i].bytes(f))
	}
	for i := range named {
		n := 0
		for _, w := range b.bytes {
			if sameBytes(w, b.bytes[i]) {
				n++
			}
		}
		if n > b.votes {
			b.votes, b.likely = n, named[i]
		}
	}
	return b
}

// sameBytes reports whether bytes differ by no more than 1% or the allocator's
// block.
func sameBytes(a, b int64) bool { return max(a-b, b-a) <= max(a, b)/100+allocBlock }

// maxElements is the number of elements of the largest tensor in the convolutions
// that the trees were grown on; PyTorch splits larger ones.
const maxElements = 1 << 31

// predict estimates the workspace of a convolution that was not measured.
func (c *Conv) predict(k *key, p Pass) Estimate {
	x, w, y := c.tensorBytes()
	if slices.Max([]int64{x, w, y}) >= maxElements*types[c.Type].size {
		n := x + w + y
		if c.Type == Float32 {
			n = 0
		}
		return Estimate{Bytes: n, Bound: max(x+w+y, c.bound(p, n)), Source: Formula}
	}
	f := c.frame(p)
	b := c.grove(k, f.pass).vote(&f)
	e := Estimate{Bytes: c.votedBytes(&f, &b), Source: Family}
	other := e.Bytes
	for _, n := range b.bytes {
		if n <= h200Memory {
			other = max(other, n)
		}
	}
	if !sameBytes(other, e.Bytes) {
		e.Other = other
	}
	e.Bound = max(other, min(b.bound.bytes(&f), c.usualBound(f.pass)))
	e.Bound += e.Bound/64 + 512
	return e
}

// votedBytes returns the bytes that most trees give. PyTorch skips a kernel whose
// workspace is larger than the card; the next one's is taken to be copies of the
// operands.
func (c *Conv) votedBytes(f *frame, b *ballot) int64 {
	n := b.likely.bytes(f)
	if n > h200Memory {
		n = family{base: paddedCopies}.bytes(f)
	}
	if c.domain() != twoDims && b.votes < 2 {
		n = min(n, c.ceiling(f.pass))
	}
	return n
}

// h200Memory is an H200's memory in bytes.
const h200Memory = 140 << 30

// grove returns the trees that apply to c.
func (c *Conv) grove(k *key, pass Pass) *grove {
	i := kindOf[k[0]]*numPasses + int(pass)
	if c.onGrid() {
		return gridGroves[i]()
	}
	return groves[int(c.domain())*numKinds*numPasses+i]()
}

// usualCopies are the 99th percentiles of workspaces in the table and of random
// convolutions, in multiples of the operands copied with padded channels:
// without and with groups, by pass.
var usualCopies = [2][numPasses]float64{{1, 1, 7}, {3.5, 3.5, 8}}

// usualBound returns the workspace that 99 of 100 convolutions stay below. Fourier
// transforms and channels padded to a power of two take a hundred times as
// much, and a tree that cannot exclude them would raise the bound of all
// others.
func (c *Conv) usualBound(pass Pass) int64 {
	all := int64(0)
	for _, t := range c.copyBytes() {
		all += max(t[1], t[2])
	}
	groups := 0
	if c.Groups > 1 {
		groups = 1
	}
	return int64(float64(all)*usualCopies[groups][pass]) + 32<<20
}

// ceiling returns what 99 of 100 random convolutions of one and of three dims
// stay below, as a multiple of their operands: copies in another layout with
// padded channels, float32 sums of results and, for the weight gradient,
// partial sums. A Fourier transform takes more, and a tree that predicts one
// wrongly would be wrong by a factor of a thousand.
func (c *Conv) ceiling(pass Pass) int64 {
	s := c.copyBytes()
	all := int64(0)
	for _, t := range s {
		all += max(t[1], t[2])
	}
	if pass == WeightGrad {
		w := max(s[1][1], s[1][2])
		return 8*all + 20*w + 64<<20
	}
	return 4*all + 64<<20
}
