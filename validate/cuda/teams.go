package cuda

// A share is the distribution of blocks along rows or columns.
type share struct {
	x      int64 // blocks
	tx, ty int   // threads of a block
}

// wideOf returns how many elements of a training type, in the kernels'
// numbering, fill the 16 bytes that one instruction reads.
func wideOf(dtype int32) int64 {
	if dtype == 0 {
		return 4
	}
	return 8
}

// alignment returns the alignment of an address in bytes, at most 32, as PyTorch
// tells cuDNN (getAlignment, Conv_v8.cpp).
func alignment(at int64) int8 {
	n := int8(1)
	for n < 32 && at%(2*int64(n)) == 0 {
		n *= 2
	}
	return n
}

// aligned reports whether packs of 16 bytes may start at the addresses; 0 is
// none.
func aligned(addresses ...uint64) bool {
	for _, p := range addresses {
		if alignment(int64(p)) < 16 {
			return false
		}
	}
	return true
}

// teamElements is the number of elements of a row that a thread of a team keeps
// in registers (vector.cuh).
const teamElements = 32

// team returns the number of threads that share a row of cols elements, read in
// packs of wide: few that keep two packs each, or as many as the row needs, at
// most 512; 0 for longer rows. Up to 32 it is a power of two, above that a
// multiple of 32.
func team(cols, wide int64) int {
	t := int64(4)
	for t < 32 && 2*t*wide < cols {
		t *= 2
	}
	for t*teamElements < cols {
		t *= 2
	}
	if t > 512 {
		return 0
	}
	return int(t)
}

// teamGrid assigns blocks to the teams of rows: of 128 threads, or a team that
// is more than a warp.
func teamGrid(rows int64, t int) share {
	each := 1
	if t <= 32 {
		each = 128 / t
	}
	return share{x: (rows + int64(each) - 1) / int64(each), tx: t, ty: each}
}

// columnGrid distributes a matrix that is summed over its rows among blocks of
// 256 threads, each with wide columns: along x for neighbouring columns, along y
// for rows. The rows are split among blocks if the columns alone make fewer than
// blocks of them, so that a thread still has four rows.
func columnGrid(rows, cols, wide, blocks int64) (share, int64) {
	packs := (cols + wide - 1) / wide
	tx := int64(4)
	for tx < 32 && tx < packs || tx < 256 && tx < packs && rows*tx < 1024 {
		tx *= 2
	}
	ty := 256 / tx
	for ty > 1 && tx*ty > 64 && 2*rows < 4*ty {
		ty /= 2
	}
	g := share{x: (packs + tx - 1) / tx, tx: int(tx), ty: int(ty)}
	splits := min((blocks+g.x-1)/max(g.x, 1), (rows+4*ty-1)/(4*ty), 65535)
	return g, max(splits, 1)
}
