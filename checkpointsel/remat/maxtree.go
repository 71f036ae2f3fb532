package remat

// A maxTree holds one number per position, all zero at first, and answers
// for ranges of positions: add to all, maximum of all. Both take time
// logarithmic in the number of positions.
type maxTree struct {
	size int     // positions, a power of two
	top  []int64 // maximum of the subtree, with its own add but not its ancestors'
	add  []int64 // what is added to the whole subtree
}

func newMaxTree(size int) *maxTree {
	return &maxTree{size: size, top: make([]int64, 2*size), add: make([]int64, 2*size)}
}

// apply adds x to the positions in [from, to).
func (t *maxTree) apply(from, to int32, x int64) {
	if from >= to || x == 0 {
		return
	}
	l, r := int(from)+t.size, int(to)+t.size
	for a, b := l, r; a < b; a, b = a>>1, b>>1 {
		if a&1 == 1 {
			t.top[a] += x
			t.add[a] += x
			a++
		}
		if b&1 == 1 {
			b--
			t.top[b] += x
			t.add[b] += x
		}
	}
	t.pull(l)
	t.pull(r - 1)
}

// pull recomputes the maxima above a leaf.
func (t *maxTree) pull(i int) {
	for i >>= 1; i >= 1; i >>= 1 {
		t.top[i] = max(t.top[2*i], t.top[2*i+1]) + t.add[i]
	}
}

// max returns the maximum over the positions in [from, to), and a number
// below any maximum if there are none.
func (t *maxTree) max(from, to int32) int64 {
	if from >= to {
		return -infinite
	}
	a, b := int(from)+t.size, int(to)+t.size-1
	la, lb := a, b
	left, right := t.top[a], t.top[b]
	for a>>1 != b>>1 {
		if a&1 == 0 {
			left = max(left, t.top[a+1])
		}
		if b&1 == 1 {
			right = max(right, t.top[b-1])
		}
		a, b = a>>1, b>>1
		left += t.add[a]
		right += t.add[b]
	}
	best := max(left, right)
	if la == lb {
		best = left
	}
	for a >>= 1; a >= 1; a >>= 1 {
		best += t.add[a]
	}
	return best
}

// argmax returns the first position that holds the maximum of all.
func (t *maxTree) argmax() int32 {
	i := 1
	for i < t.size {
		if i *= 2; t.top[i] < t.top[i+1] {
			i++
		}
	}
	return int32(i - t.size)
}

// argmaxIn returns the first position in [from, to), which is not empty, that
// holds the maximum there.
func (t *maxTree) argmaxIn(from, to int32) int32 {
	for to-from > 1 {
		mid := from + (to-from)/2
		if t.max(from, mid) >= t.max(mid, to) {
			to = mid
		} else {
			from = mid
		}
	}
	return from
}
