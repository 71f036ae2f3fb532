package graph

import (
	"fmt"
	"slices"
	"strings"
)

// maxCalls bounds the nesting of function calls.
const maxCalls = 256

// checkCalls returns an error if a function is defined twice, calls itself,
// directly or through others, or calls are nested more than maxCalls deep.
func checkCalls(funcs []*Function) error {
	c := calls{funcs: funcs, index: make(map[[3]string]int, len(funcs)), height: make([]int, len(funcs))}
	for i, f := range funcs {
		key := [3]string{f.Domain, f.Name, f.Overload}
		if _, twice := c.index[key]; twice {
			return fmt.Errorf("function %s is defined twice", f.label())
		}
		c.index[key] = i
	}
	for i := range funcs {
		if err := c.visit(i); err != nil {
			return err
		}
	}
	return nil
}

// calls walks the call graph of functions.
type calls struct {
	funcs  []*Function
	index  map[[3]string]int // by domain, name, overload
	height []int             // calls below a function, itself included; 0 before the visit, -1 during it
	path   []string          // labels of the functions being visited
}

func (c *calls) visit(i int) error {
	label := c.funcs[i].label()
	switch {
	case c.height[i] > 0:
		return nil
	case c.height[i] < 0:
		at := slices.Index(c.path, label)
		return fmt.Errorf("functions call each other in a cycle: %s -> %s", strings.Join(c.path[at:], " -> "), label)
	}
	c.height[i] = -1
	c.path = append(c.path, label)
	height := 1
	err := c.funcs[i].Body.visitNodes(func(n *Node) error {
		j, ok := c.index[[3]string{n.Domain, n.Op, n.Overload}]
		if !ok {
			return nil
		}
		if len(c.path) <= maxCalls {
			if err := c.visit(j); err != nil {
				return err
			}
		}
		if height = max(height, 1+c.height[j]); height > maxCalls || len(c.path) > maxCalls {
			return fmt.Errorf("function %s: functions call functions more than %d deep", label, maxCalls)
		}
		return nil
	})
	c.height[i], c.path = height, c.path[:len(c.path)-1]
	return err
}
