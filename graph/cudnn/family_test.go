package cudnn

import (
	"fmt"
	"slices"
	"testing"
)

// TestTrees walks every node: each leaf has a family, and a bound above it.
func TestTrees(t *testing.T) {
	for i, load := range slices.Concat(groves, gridGroves) {
		g := load()
		for j, tr := range g.trees {
			checkTree(t, fmt.Sprintf("grove %d, tree %d", i, j), g, tr, j == 0)
		}
		if len(g.trees) == 0 {
			t.Errorf("grove %d has no tree", i)
		}
	}
}

// checkTree walks a tree; bounds is whether each leaf must have one.
func checkTree(t *testing.T, name string, g *grove, tr tree, bounds bool) {
	t.Helper()
	leaves := 0
	type visit struct {
		at    tree
		bound int
	}
	for stack := []visit{{tr, -1}}; len(stack) > 0; {
		v := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		n := v.at.root()
		if n.bound >= 0 {
			v.bound = n.bound
		}
		if n.feature > 0 {
			if n.feature > numFeatures {
				t.Fatalf("%s: a node asks for feature %d", name, n.feature)
			}
			stack = append(stack, visit{n.yes, v.bound}, visit{n.no, v.bound})
			continue
		}
		leaves++
		if n.family >= len(g.families) || bounds != (v.bound >= 0) || v.bound >= len(g.families) {
			t.Fatalf("%s: leaf %d has family %d and bound %d of %d", name, leaves, n.family, v.bound, len(g.families))
		}
	}
	if leaves < 10 {
		t.Errorf("%s: %d leaves", name, leaves)
	}
}

// TestUnusualConvolutions predicts at the limits of the types.
func TestUnusualConvolutions(t *testing.T) {
	const most = 1<<31 - 1
	for _, c := range []Conv{
		{N: 1, C: 1, H: 1, W: 1, K: 1, R: 1, S: 1},
		{N: most, C: 1, H: 1, W: 1, K: 1, R: 1, S: 1},
		{N: 1, C: most, H: 1, W: 1, K: 1, R: 1, S: 1},
		{N: 1, C: most, H: 1, W: 1, K: most, R: 1, S: 1, Groups: most},
		{N: 1, C: 1, H: most, W: 1, K: 1, R: most, S: 1},
		{N: 1, C: 1, H: 1 << 20, W: 1 << 20, K: 1, R: 3, S: 3},
		{N: 1 << 20, C: 1 << 20, H: 1 << 10, W: 1 << 9, K: 1, R: 1, S: 1},
	} {
		c.StrideH, c.StrideW, c.DilH, c.DilW, c.Groups = 1, 1, 1, 1, max(c.Groups, 1)
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		for ty := TF32; ty < numTypes; ty++ {
			for _, c.ChannelsLast = range []bool{false, true} {
				for p := Forward; p < numPasses; p++ {
					c.Type = ty
					if e := Workspace(c, p); e.Bytes < 0 || e.Bound < e.Bytes || e.Source == None {
						t.Errorf("%+v, %v: %+v", c, p, e)
					}
				}
			}
		}
	}
}
