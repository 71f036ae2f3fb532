package alloc

import (
	"cmp"
	"slices"
)

// An Extent is a piece of memory taken from the driver.
type Extent struct{ Addr, Size int64 }

// Address returns where an allocation lies; 0 for one of no bytes.
func (c *Caching) Address(h Handle) int64 {
	if h.id == 0 {
		return 0
	}
	return c.blocks[h.id-1].addr
}

// Segments returns the memory taken from the driver, by address: a Snapshot's
// segments without their blocks.
func (c *Caching) Segments() []Extent {
	var out []Extent
	for i := range c.blocks {
		if c.blocks[i].state == dead || c.blocks[i].prev != none {
			continue
		}
		open := false
		for b := int32(i); b != none; b = c.blocks[b].next {
			bl := &c.blocks[b]
			if bl.state == unmapped {
				open = false
				continue
			}
			if !open {
				open = true
				out = append(out, Extent{Addr: bl.addr})
			}
			out[len(out)-1].Size += bl.size
		}
	}
	slices.SortFunc(out, func(a, b Extent) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}
