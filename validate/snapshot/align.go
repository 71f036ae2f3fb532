package snapshot

import (
	"slices"

	"github.com/memplan/memplan/liveness"
)

// mostCells bounds the table of one exact alignment.
const mostCells = 1 << 20

// deepest bounds the nesting of alignments between anchors, each of which takes
// linear time.
const deepest = 32

// mostDifferences bounds the differences that are sought between two parts, and
// mostSteps the work on all of them.
const (
	mostDifferences = 2000
	mostSteps       = 100_000_000
)

// align matches equal tokens of two sequences in order, and returns for each of a
// its index in b, or -1: a longest common subsequence where they are short or differ
// in up to mostDifferences tokens, else nearly one, from runs that occur once in both.
func align(a, b []int64) []int32 {
	m := make([]int32, len(a))
	for i := range m {
		m[i] = -1
	}
	(&aligner{a, b, m, mostSteps}).between(0, len(a), 0, len(b), 0)
	return m
}

type aligner struct {
	a, b []int64
	m    []int32
	left int // steps
}

// between aligns a[alo:ahi] with b[blo:bhi].
func (x *aligner) between(alo, ahi, blo, bhi, depth int) {
	for alo < ahi && blo < bhi && x.a[alo] == x.b[blo] {
		x.m[alo] = int32(blo)
		alo, blo = alo+1, blo+1
	}
	for alo < ahi && blo < bhi && x.a[ahi-1] == x.b[bhi-1] {
		ahi, bhi = ahi-1, bhi-1
		x.m[ahi] = int32(bhi)
	}
	switch n, m := ahi-alo, bhi-blo; {
	case n == 0 || m == 0 || depth > deepest:
		return
	case n < mostCells && m < mostCells && n*m <= mostCells:
		x.exact(alo, ahi, blo, bhi)
		return
	}
	if x.greedy(alo, ahi, blo, bhi) {
		return
	}
	for _, k := range []int{16, 8, 4, 2, 1} {
		anchors := x.anchors(alo, ahi, blo, bhi, k)
		if len(anchors) == 0 {
			continue
		}
		for _, p := range anchors {
			x.between(alo, p[0], blo, p[1], depth+1)
			x.m[p[0]] = int32(p[1])
			alo, blo = p[0]+1, p[1]+1
		}
		x.between(alo, ahi, blo, bhi, depth+1)
		return
	}
}

// exact finds a longest common subsequence with a table.
func (x *aligner) exact(alo, ahi, blo, bhi int) {
	n, m := ahi-alo, bhi-blo
	t := make([]uint16, (n+1)*(m+1)) // the shorter side has at most 1024 tokens
	at := func(i, j int) *uint16 { return &t[i*(m+1)+j] }
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			if x.a[alo+i] == x.b[blo+j] {
				*at(i, j) = *at(i+1, j+1) + 1
			} else {
				*at(i, j) = max(*at(i+1, j), *at(i, j+1))
			}
		}
	}
	for i, j := 0, 0; i < n && j < m; {
		switch {
		case x.a[alo+i] == x.b[blo+j]:
			x.m[alo+i] = int32(blo + j)
			i, j = i+1, j+1
		case *at(i+1, j) >= *at(i, j+1):
			i++
		default:
			j++
		}
	}
}

// greedy finds a longest common subsequence of parts that differ little: the furthest
// that each number of differences leads to, on each diagonal (E. W. Myers, An O(ND)
// Difference Algorithm and Its Variations, 1986). It reports whether it found one.
func (x *aligner) greedy(alo, ahi, blo, bhi int) bool {
	n, m := ahi-alo, bhi-blo
	most := min(mostDifferences, n+m)
	furthest := make([]int32, 2*most+3) // of a, by diagonal
	var rows [][]int32
	for d := 0; d <= most; d++ {
		rows = append(rows, append([]int32(nil), furthest[most+1-d:most+2+d]...))
		for k := -d; k <= d; k += 2 {
			at := &furthest[most+1+k]
			if i := furthest[most+k] + 1; k == -d || k != d && furthest[most+k] < furthest[most+2+k] {
				*at = furthest[most+2+k]
			} else {
				*at = i
			}
			i := int(*at)
			for i < n && i-k < m && x.a[alo+i] == x.b[blo+i-k] {
				i++
				x.left--
			}
			*at = int32(i)
			if i >= n && i-k >= m {
				x.trace(rows, alo, blo, n, m)
				return true
			}
		}
		if x.left -= d; x.left < 0 {
			return false
		}
	}
	return false
}

// trace follows greedy's rows back: rows[d] has what it had before d differences, for
// the diagonals from -d to d.
func (x *aligner) trace(rows [][]int32, alo, blo, i, j int) {
	for d := len(rows) - 1; d >= 0; d-- {
		k := i - j
		at := func(k int) int { return int(rows[d][k+d]) }
		from, back := 0, 0 // where the last difference led from, and on which diagonal
		if d > 0 {
			if k == -d || k != d && at(k-1) < at(k+1) {
				from, back = at(k+1), k+1
			} else {
				from, back = at(k-1), k-1
			}
		}
		for start := from + max(0, k-back); i > start && j > 0; { // the diagonal, back to the difference
			i, j = i-1, j-1
			x.m[alo+i] = int32(blo + j)
		}
		i, j = from, from-back
	}
}

// anchors returns pairs of places, rising in both, at which runs of k tokens begin
// that occur once in either part.
func (x *aligner) anchors(alo, ahi, blo, bhi, k int) [][2]int {
	ours, theirs := runs(x.a[:ahi], alo, k), runs(x.b[:bhi], blo, k)
	var pairs [][2]int
	for h, i := range ours {
		if j, ok := theirs[h]; ok && i >= 0 && j >= 0 && slices.Equal(x.a[i:i+k], x.b[j:j+k]) {
			pairs = append(pairs, [2]int{i, j})
		}
	}
	slices.SortFunc(pairs, func(p, q [2]int) int { return p[0] - q[0] })
	return rising(pairs)
}

// runs returns where each run of k tokens from lo on begins, by its hash; -1 if it
// occurs more than once.
func runs(s []int64, lo, k int) map[uint64]int {
	out := map[uint64]int{}
	for i := lo; i+k <= len(s); i++ {
		h := uint64(14695981039346656037) // FNV-1a's basis and prime
		for _, v := range s[i : i+k] {
			h = (h ^ uint64(v)) * 1099511628211
			h ^= h >> 29
		}
		if _, again := out[h]; again {
			out[h] = -1
		} else {
			out[h] = i
		}
	}
	return out
}

// rising returns a longest subsequence of pairs, sorted by the first, that rises in
// the second, too.
func rising(pairs [][2]int) [][2]int {
	var tails []int // the index of the pair that ends the best sequence of each length
	prev := make([]int, len(pairs))
	for i, p := range pairs {
		n, _ := slices.BinarySearchFunc(tails, p[1], func(t, v int) int { return pairs[t][1] - v })
		prev[i] = -1
		if n > 0 {
			prev[i] = tails[n-1]
		}
		if n == len(tails) {
			tails = append(tails, i)
		} else {
			tails[n] = i
		}
	}
	var out [][2]int
	if len(tails) > 0 {
		for i := tails[len(tails)-1]; i >= 0; i = prev[i] {
			out = append(out, pairs[i])
		}
	}
	slices.Reverse(out)
	return out
}

// rounded returns tokens of the sizes that PyTorch's allocator rounds to: some
// libraries ask for odd numbers of bytes.
func rounded(tokens []int64) []int64 {
	out := make([]int64, len(tokens))
	for i, t := range tokens {
		if out[i] = liveness.Rounded(t); t < 0 {
			out[i] = -liveness.Rounded(-t)
		}
	}
	return out
}

// paired matches what lies between two matches, too, where both sides have the same
// allocations and frees there in the same order: then only sizes differ.
func paired(a, b []int64, m []int32) []int32 {
	before := -1
	for i, j := range m {
		if j < 0 {
			continue
		}
		if before >= 0 {
			pair(a, b, m, before, i)
		}
		before = i
	}
	return m
}

// pair matches a between two places that are matched.
func pair(a, b []int64, m []int32, from, to int) {
	at := int(m[from])
	if to-from != int(m[to])-at {
		return
	}
	for k := 1; k < to-from; k++ {
		if a[from+k] < 0 != (b[at+k] < 0) {
			return
		}
	}
	for k := 1; k < to-from; k++ {
		m[from+k] = int32(at + k)
	}
}
