package cuda

import "testing"

// TestTeam: a team has room for its row, and no more threads than that needs.
func TestTeam(t *testing.T) {
	for cols := int64(1); cols < 20000; cols += 1 + cols/50 {
		for _, wide := range []int64{1, 4, 8} {
			n := int64(team(cols, wide))
			switch {
			case n == 0:
				if cols <= 512*teamElements {
					t.Errorf("%d columns in packs of %d: no team", cols, wide)
				}
				continue
			case n*teamElements < cols:
				t.Errorf("%d columns in packs of %d: %d threads keep %d", cols, wide, n, n*teamElements)
			case n > 32 && n/2*teamElements >= cols, n > 4 && n <= 32 && n/2*teamElements >= cols && n*wide >= cols:
				t.Errorf("%d columns in packs of %d: %d threads, half as many would do", cols, wide, n)
			}
			if n&(n-1) != 0 || n > 512 {
				t.Errorf("%d columns: a team of %d", cols, n)
			}
			if g := teamGrid(1000, int(n)); g.x*int64(g.ty) < 1000 || (g.x-1)*int64(g.ty) >= 1000 || g.tx > 32 && g.ty != 1 || g.tx*g.ty%32 != 0 {
				t.Errorf("1000 rows of teams of %d: %+v", n, g)
			}
		}
	}
}

// TestColumnGrid: blocks have the threads that fold_columns has room for, reach
// every column, and leave no split without rows where there is another.
func TestColumnGrid(t *testing.T) {
	for rows := int64(1); rows < 100000; rows += 1 + rows/3 {
		for cols := int64(1); cols < 60000; cols += 1 + cols/3 {
			for _, wide := range []int64{1, 4, 8} {
				g, splits := columnGrid(rows, cols, wide, 396)
				across := int64(g.tx) * wide
				if g.tx*g.ty > 256 || g.tx*g.ty%32 != 0 || g.tx&(g.tx-1) != 0 || g.x*across < cols || (g.x-1)*across >= cols {
					t.Fatalf("%d x %d in packs of %d: %+v", rows, cols, wide, g)
				}
				if splits < 1 || splits > 1 && (splits-1)*4*int64(g.ty) >= rows {
					t.Fatalf("%d x %d in packs of %d: %d splits of %+v", rows, cols, wide, splits, g)
				}
			}
		}
	}
}

func TestPacks(t *testing.T) {
	if !aligned(0, 256, 16) || aligned(256, 8) {
		t.Error("addresses that packs may start at")
	}
	if wideOf(0) != 4 || wideOf(1) != 8 || wideOf(2) != 8 {
		t.Error("elements of 16 bytes")
	}
}
